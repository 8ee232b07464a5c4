"""What loads what, without a warning: the ledger without torch, an import without slow libraries, opacus without touching logging."""

import importlib
import subprocess
import sys

import pytest

CODE = """
import importlib, logging, os, sys, warnings
import dpbo

def loaded(*names):
    print([name for name in names if name in sys.modules], flush=True)

loaded('torch', 'opacus', 'dp_accounting', 'sqlalchemy', 'scipy')
if child := os.fork():  # which has its own imports
    assert os.waitpid(child, 0)[1] == 0
else:
    from dpbo.curator import Ledger
    from dpbo.__main__ import main
    from dpbo.curator.birth import Birth
    budget = dpbo.Budget(epsilon=3.0, delta=1e-6)
    dpbo.accounting.calibrate(budget, releases=30)
    made_for = dict(dataset="d", unit="u", grouped=False, adjacency=dpbo.Adjacency.REPLACE_ONE, budget=budget)
    Ledger("l.db", Birth(**made_for, accounting=dpbo.accounting.GDPFilter())).verify()
    assert main(["ledger", "show", "l.db"]) == 0
    loaded('torch', 'opacus', 'dp_accounting')
    os._exit(0)
warnings.filterwarnings("ignore", category=DeprecationWarning, module="(torch|linear_operator)")  # theirs, as in pyproject.toml
warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", FutureWarning)
from dpbo import Curator, PrivateObjective
loaded('botorch', 'gpytorch', 'scipy.optimize', 'scipy.special', 'scipy.stats', 'sklearn', 'pandas', 'sqlalchemy')
from dpbo import DPGIBO, DPSearch
loaded('botorch.optim.optimize', 'sklearn.model_selection', 'sklearn.tree')
loaded('ax', 'dp_accounting', 'matplotlib', 'opacus', 'optuna', 'torch._dynamo', 'triton')
root = logging.getLogger()
before = (list(root.handlers), root.level)
names = ("accounting", "acquisition", "algorithms", "curator", "mechanisms", "models", "queries", "testing")
for package in (dpbo, *(importlib.import_module("dpbo." + name) for name in names)):
    for name in dir(package):
        getattr(package, name)
dir(dpbo.integrations)
loaded('ax', 'optuna')
print(sorted(n for n in dir(dpbo) if n[0].isupper()))
import numpy as np, torch
curator = dpbo.Curator(np.zeros((999, 1)), unit="row", adjacency="replace-one", budget=dpbo.Budget(epsilon=3.0, delta=1e-6))
curator.evaluate(dpbo.queries.ClippedMean(lambda _, rows: torch.from_numpy(rows)[:, 0], score_range=(0.0, 1.0)))  # read-only records
warnings.simplefilter("ignore")
from dpbo._opacus import load_opacus
assert load_opacus().PrivacyEngine and load_opacus("opacus.accountants").RDPAccountant
print(before == (list(root.handlers), root.level), len(root.handlers))
"""


def test_what_is_not_needed_is_not_loaded_every_lazy_name_resolves_and_logging_is_the_applications_own(tmp_path):
    done = subprocess.run([sys.executable, "-W", "error", "-c", CODE], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    imported, *_, ledger, everyday, searches, others, optional, names, logging = done.stdout.strip().splitlines()
    assert (imported, ledger, everyday, searches, others, optional) == ("[]",) * 6
    assert "PrivateObjective" in names
    assert logging == "True 0"


def test_an_integration_without_its_library_names_the_command_that_installs_it(monkeypatch):
    for library in ("optuna", "ax"):
        monkeypatch.setitem(sys.modules, library, None)  # as where it is not installed
        monkeypatch.delitem(sys.modules, name := f"dpbo.integrations.{library}", raising=False)
        with pytest.raises(ModuleNotFoundError, match=rf"Install it with: pip install 'dpbo\[{library}\]'"):
            importlib.import_module(name)
