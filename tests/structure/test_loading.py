"""What loads what: the ledger without torch, opacus without touching the application's logging."""

import subprocess
import sys


def run(code):
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_is_lazy():
    assert (
        run("import sys, dpbo; print([m for m in ('torch', 'opacus', 'dp_accounting', 'sqlalchemy', 'scipy') if m in sys.modules])") == "[]"
    )


def test_budgets_and_the_ledger_load_without_torch(tmp_path):
    code = f"""
import sys, dpbo
from dpbo.curator import Ledger
budget = dpbo.Budget(epsilon=3.0, delta=1e-6)
dpbo.accounting.calibrate(budget, releases=30)
birth = dict(dataset="d", unit="u", grouped=False, adjacency="replace-one", role="validation")
birth |= dict(budget=budget.to_json(), accounting="GDPFilter")
Ledger(r"{tmp_path / "l.db"}", birth).verify()
from dpbo.__main__ import main
assert main(["ledger", "show", r"{tmp_path / "l.db"}"]) == 0
print([m for m in ('torch', 'opacus', 'dp_accounting') if m in sys.modules])
"""
    assert run(code).endswith("[]")


def test_logging_is_the_applications_own():
    code = """
import logging, warnings
warnings.simplefilter("ignore")
import dpbo
from dpbo.loading import load_opacus
root = logging.getLogger()
before = (list(root.handlers), root.level)
assert load_opacus().PrivacyEngine and load_opacus("opacus.accountants").RDPAccountant
dpbo.Curator, dpbo.PrivateObjective, dpbo.testing.check_per_record
print(before == (list(root.handlers), root.level), len(root.handlers))
"""
    assert run(code) == "True 0"


def test_every_lazy_name_resolves():
    code = """
import warnings
warnings.filterwarnings("ignore", category=DeprecationWarning, module="(torch|linear_operator)")  # theirs, as in pyproject.toml
import dpbo, importlib
names = ("accounting", "acquisition", "algorithms", "curator", "mechanisms", "models", "queries", "testing")
for package in (dpbo, *(importlib.import_module("dpbo." + name) for name in names)):
    for name in dir(package):
        getattr(package, name)
print(sorted(n for n in dir(dpbo) if n[0].isupper()))
"""
    assert "PrivateObjective" in run(code)
