"""Differentially private Bayesian optimisation for PyTorch, GPyTorch and BoTorch.

Private records stay with a curator; only answers with noise leave, within one budget.

=================================  ====================================================
`DPSearch`, `rehearse`             tune a scikit-learn model
`Curator`, `PrivateObjective`      a BoTorch loop of your own, with `dpbo.acquisition`
`DPGIBO`                           many parameters by private gradients
`dpbo.dpsgd`                       train with Opacus, and tune that, on the same budget
`dpbo.queries`, `dpbo.mechanisms`  questions of your own, and the noise of answers
`Budget`, `plan`, `Statement`      what may be spent, what it buys, what is guaranteed
`report`, `dpbo.testing`           a page for a privacy officer, tests of your score
=================================  ====================================================

>>> import dpbo, torch
>>> ages, budget = 100 * torch.rand(1000, 1), dpbo.Budget(epsilon=1.0, delta=1e-6)
>>> curator = dpbo.Curator(ages, unit="person", adjacency="replace-one", budget=budget)
>>> def near(x, records):  # one number a record: how near an age is to 100 x
...     return 1 - (records[:, 0] / 100 - x[0]).abs()
>>> f = dpbo.PrivateObjective(curator, near, score_range=(0, 1), evaluations=3)
>>> Y, Yvar = f(torch.tensor([[0.2], [0.5], [0.9]], dtype=torch.float64))  # with noise
>>> print(curator.statement().guarantee)
(1.000, 1e-06)-DP, 0.2368-GDP
"""

import dis
import pathlib
import sys
from typing import Any

import lazy_loader

from dpbo import opacus_name
from dpbo._version import __version__ as __version__

opacus_name.make_known()
_loaded, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A public name. One that lies in a package below says in which."""
    try:
        return _loaded(name)
    except AttributeError as error:
        root = pathlib.Path(__file__).parent
        for stub in sorted(root.rglob("__init__.pyi")):
            if f" as {name}\n" in stub.read_text():
                package = ".".join((__name__, *stub.parent.relative_to(root).parts))
                told = f"{name} is not in dpbo: from {package} import {name}"
                # Python puts a message of its own in place of an AttributeError there.
                caller = sys._getframe(1)
                if dis.opname[caller.f_code.co_code[caller.f_lasti]] == "IMPORT_FROM":
                    raise ImportError(told) from None
                raise AttributeError(told) from None
        raise error
