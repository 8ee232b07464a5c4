"""What loads what, without a warning: the ledger without torch, an import without slow libraries,
opacus without touching logging.
"""

import functools
import importlib
import pickle
import subprocess
import sys

import pytest

from dpbo.errors import InputError, MissingLibrary
from dpbo.extras import EXTRAS
from dpbo.ledger.storage import Storage
from dpbo.reporting.page import report
from dpbo.reporting.plots import plot_noise

CODE = """
import importlib, logging, os, sys, warnings
import dpbo

def loaded(*names):
    print([name for name in names if name in sys.modules], flush=True)

loaded('torch', 'opacus', 'dp_accounting', 'sqlalchemy', 'scipy')
if child := os.fork():  # which has its own imports
    assert os.waitpid(child, 0)[1] == 0
else:
    from dpbo.ledger import Ledger
    from dpbo.__main__ import main
    from dpbo.ledger.birth import Birth
    budget = dpbo.Budget(epsilon=3.0, delta=1e-6)
    dpbo.accounting.calibrate(budget, releases=30)
    promise = dict(dataset="d", unit="u", grouped=False, budget=budget)
    made_for = dict(promise, adjacency=dpbo.Adjacency.REPLACE_ONE)
    Ledger("l.db", Birth(**made_for, accounting=dpbo.accounting.GDPFilter())).verify()
    assert main(["ledger", "show", "l.db"]) == 0
    loaded('torch', 'opacus', 'dp_accounting')
    os._exit(0)
# Those of libraries, as in pyproject.toml.
warnings.filterwarnings("ignore", category=DeprecationWarning, module="(torch|linear_operator)")
warnings.filterwarnings("ignore", ".torch.jit.script. is", FutureWarning)
from dpbo import Curator, PrivateObjective
loaded('botorch', 'gpytorch', 'scipy.optimize', 'scipy.special', 'scipy.stats')
loaded('sklearn', 'pandas', 'sqlalchemy')
from dpbo import DPGIBO, DPSearch
loaded('botorch.optim.optimize', 'sklearn.model_selection', 'sklearn.tree')
loaded('ax', 'dp_accounting', 'matplotlib', 'opacus', 'optuna', 'torch._dynamo', 'triton')
root = logging.getLogger()
before = (list(root.handlers), root.level)
core = ("accounting", "acquisition", "algorithms", "curator", "mechanisms", "models", "queries")
names = (*core, "dpsgd", "gibo", "search", "testing")
for package in (dpbo, *(importlib.import_module("dpbo." + name) for name in names)):
    for name in dir(package):
        getattr(package, name)
dir(dpbo.integrations)
loaded('ax', 'optuna')
print(sorted(n for n in dir(dpbo) if n[0].isupper()))
import numpy as np, torch
budget = dpbo.Budget(epsilon=3.0, delta=1e-6)
curator = dpbo.Curator(np.zeros((999, 1)), unit="row", adjacency="replace-one", budget=budget)
# The records are read-only.
first = lambda _, rows: torch.from_numpy(rows)[:, 0]
curator.evaluate(dpbo.queries.ClippedMean(first, score_range=(0.0, 1.0)))
warnings.simplefilter("ignore")
from dpbo.dpsgd._opacus import load_opacus
assert load_opacus().PrivacyEngine and load_opacus("opacus.accountants").RDPAccountant
print(before == (list(root.handlers), root.level), len(root.handlers))
"""


def test_imports_load_only_what_is_needed_and_leave_logging_alone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    imported, *_, ledger, everyday, searches, others, optional, names, logging = (
        done.stdout.strip().splitlines()
    )
    assert (imported, ledger, everyday, searches, others, optional) == ("[]",) * 6
    assert "PrivateObjective" in names
    assert logging == "True 0"


# What each extra's libraries are imported for.
NEEDED = {
    "ax": "dpbo.integrations.ax",
    "federated": "dpbo.curator.secure_sum",
    "gpu": "dpbo.gibo.gradient_triton",
    "http": "dpbo.papers.po_gp_ucb.{}",
    "optuna": "dpbo.integrations.optuna",
    "testing": "dpbo.testing.{}",
}
HOMES = {
    "httpx": "client",
    "starlette": "server",
    "pytest": "plugin",
    "hypothesis": "query_contract",
}


def test_every_missing_library_is_answered_by_its_extra(monkeypatch, tmp_path):
    used = {
        "plots": lambda: [plot_noise(100), report(tmp_path)],
        "postgres": lambda: Storage("postgresql+psycopg://me:hunter2@host/db"),
    }
    assert {*used, *NEEDED} == set(EXTRAS)
    for extra, libraries in EXTRAS.items():
        for library in libraries:
            with monkeypatch.context() as patched:
                for name in [name for name in sys.modules if name.partition(".")[0] == library]:
                    # As where it is not installed.
                    patched.setitem(sys.modules, name, None)
                patched.setitem(sys.modules, library, None)
                use = used.get(extra)
                if use is None:
                    module = NEEDED[extra].format(HOMES.get(library))
                    patched.delitem(sys.modules, module, raising=False)
                    use = functools.partial(importlib.import_module, module)
                with pytest.raises(MissingLibrary) as missing:
                    use()
            error = missing.value
            assert isinstance(error, ModuleNotFoundError)
            assert (error.extra, error.module.partition(".")[0]) == (extra, library), str(error)
            assert f'pip install "dpbo[{extra}]"' in str(error)
            assert "hunter2" not in str(error)
            again = pickle.loads(pickle.dumps(error))
            assert (str(again), again.extra) == (str(error), extra)


def test_the_driver_of_another_database_is_named_where_it_is_missing():
    for url, module in (
        ("mysql+nodriver://h/d", ""),
        ("mysql+pymysql://h/d", "pymysql"),
        ("oracle+oracledb://h/d", "oracledb"),
    ):
        with pytest.raises(MissingLibrary if module else InputError) as refused:
            Storage(url)
        assert f"{module} is not installed" in str(refused.value) or not module
    with pytest.raises(
        MissingLibrary,
        match=(
            r"asyncpg is not installed.* postgresql\+psycopg://, with: pip install"
            r" \"dpbo\[postgres\]\""
        ),
    ):
        Storage("postgresql+asyncpg://h/d")
