"""The accounting that a ledger was born with, found again by its name."""

from __future__ import annotations

from dpbo.accounting.filters import Accounting, GDPFilter, PureFilter, RDPFilter, ZCDPFilter
from dpbo.accounting.planned import Planned
from dpbo.errors import InputError


def accounting_named(name: str) -> Accounting:
    """Raises InputError on a name that no accounting bears."""
    for known in (GDPFilter(), PureFilter(), ZCDPFilter()):
        if name == known.name:
            return known
    if name.startswith("RDPFilter(") and name.endswith(")"):
        return RDPFilter(float(name.removeprefix("RDPFilter(").removesuffix(")")))
    if name.startswith("Planned(") and name.endswith(")"):
        return Planned.read(name)
    raise InputError("accounting", name, "one of dpbo.accounting", "Was this ledger written by a newer dpbo?")
