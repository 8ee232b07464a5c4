"""What loads what, without a warning: the ledger without torch, an import without slow libraries, opacus without touching logging."""

import importlib
import subprocess
import sys

import pytest

CODE = """
import sys, dpbo
print([m for m in ('torch', 'opacus', 'dp_accounting', 'sqlalchemy', 'scipy') if m in sys.modules])
from dpbo.curator import Ledger
from dpbo.__main__ import main
budget = dpbo.Budget(epsilon=3.0, delta=1e-6)
dpbo.accounting.calibrate(budget, releases=30)
from dpbo.curator.birth import Birth
made_for = dict(dataset="d", unit="u", grouped=False, adjacency=dpbo.Adjacency.REPLACE_ONE, budget=budget)
Ledger("l.db", Birth(**made_for, accounting=dpbo.accounting.GDPFilter())).verify()
assert main(["ledger", "show", "l.db"]) == 0
print([m for m in ('torch', 'opacus', 'dp_accounting') if m in sys.modules])
import importlib, logging, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning, module="(torch|linear_operator)")  # theirs, as in pyproject.toml
root = logging.getLogger()
before = (list(root.handlers), root.level)
names = ("accounting", "acquisition", "algorithms", "curator", "mechanisms", "models", "queries", "testing")
for package in (dpbo, *(importlib.import_module("dpbo." + name) for name in names)):
    for name in dir(package):
        getattr(package, name)
dir(dpbo.integrations)
print([m for m in ('ax', 'optuna') if m in sys.modules])
print(sorted(n for n in dir(dpbo) if n[0].isupper()))
import numpy as np, torch
curator = dpbo.Curator(np.zeros((999, 1)), unit="row", adjacency="replace-one", budget=budget)
curator.evaluate(dpbo.queries.ClippedMean(lambda _, rows: torch.from_numpy(rows)[:, 0], score_range=(0.0, 1.0)))  # read-only records
warnings.simplefilter("ignore")
from dpbo._opacus import load_opacus
assert load_opacus().PrivacyEngine and load_opacus("opacus.accountants").RDPAccountant
print(before == (list(root.handlers), root.level), len(root.handlers))
"""

SLOW = """
import sys
from dpbo import Curator, PrivateObjective
heavy = ('botorch', 'gpytorch', 'scipy.optimize', 'scipy.special', 'scipy.stats', 'sklearn', 'pandas', 'sqlalchemy')
print([m for m in heavy if m in sys.modules])
from dpbo import DPGIBO, DPSearch
print([m for m in ('botorch.optim.optimize', 'sklearn.model_selection', 'sklearn.tree') if m in sys.modules])
print([m for m in ('ax', 'dp_accounting', 'matplotlib', 'opacus', 'optuna', 'torch._dynamo', 'triton') if m in sys.modules])
"""


def test_an_import_loads_no_slow_library_that_only_a_later_call_needs():
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.split("\n")) == (0, ["[]", "[]", "[]", ""]), done.stdout + done.stderr


def test_the_ledger_loads_without_torch_every_lazy_name_resolves_and_logging_is_the_applications_own(tmp_path):
    done = subprocess.run([sys.executable, "-W", "error", "-c", CODE], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    imported, *_, light, optional, names, logging = done.stdout.strip().splitlines()
    assert (imported, light, optional) == ("[]", "[]", "[]")
    assert "PrivateObjective" in names
    assert logging == "True 0"


def test_an_integration_without_its_library_names_the_command_that_installs_it(monkeypatch):
    for library in ("optuna", "ax"):
        monkeypatch.setitem(sys.modules, library, None)  # as where it is not installed
        monkeypatch.delitem(sys.modules, name := f"dpbo.integrations.{library}", raising=False)
        with pytest.raises(ModuleNotFoundError, match=rf"Install it with: pip install 'dpbo\[{library}\]'"):
            importlib.import_module(name)
