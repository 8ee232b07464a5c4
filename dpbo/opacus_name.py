"""The name of dpbo's accountant in Opacus: `opacus.PrivacyEngine(accountant="dpbo")` after `import
dpbo`, which loads no Opacus.

Opacus keeps a table of accountants by name, in a module that is loaded with it. If it is loaded
already, the name is added at once; otherwise when Python loads it.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

NAME = "dpbo"
_TABLE = "opacus.accountants"


def make_known() -> None:
    """Add the name to Opacus' table of accountants, now and whenever the table is loaded."""
    if _TABLE in sys.modules:
        _add_to(sys.modules[_TABLE])
    if not any(isinstance(finder, _WhenLoaded) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenLoaded())


def _add_to(accountants: Any) -> None:
    accountants.register_accountant(NAME, _accountant, force=True)


def _accountant() -> Any:
    # of a wing, which the core names and does not import
    return importlib.import_module("dpbo.dpsgd").LedgerAccountant()


class _WhenLoaded(importlib.abc.MetaPathFinder):
    """Finds Opacus' table where Python finds it, and adds the name after it was loaded."""

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TABLE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_add(module: ModuleType) -> None:
                load(module)
                _add_to(module)

            spec.loader.exec_module = load_and_add  # type: ignore[method-assign]
        return spec
