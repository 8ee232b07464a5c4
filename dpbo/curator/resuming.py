"""What a plan began with, so that its name is not resumed with another question: by keyed fingerprints beside the ledger.

A ledger in a file has a second file beside it, `<ledger>.fingerprints`, which only the operator may read (mode 0600): the key, and for each
plan the fingerprints of the records and of what else it was given. They are private, so back the file up with the records, not with the
ledger. Where it is missing, what a plan goes on with counts as what it began with. Of a ledger in memory or on a server, plans are compared
within this process alone.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from dpbo.curator.entropy import system_entropy
from dpbo.curator.fingerprints import table_digest, thing_digest
from dpbo.curator.ledger import Ledger
from dpbo.curator.records import PrivateView
from dpbo.errors import LedgerUnavailable, PlanChanged
from dpbo.privacy import PrivacyUnit

_UNDER = f" under Python {sys.version_info.major}.{sys.version_info.minor}"  # another one compiles the same code otherwise: not compared
_here: weakref.WeakKeyDictionary[Ledger, dict[str, Any]] = weakref.WeakKeyDictionary()
_servers: dict[str, dict[str, Any]] = {}


def require_same(
    ledger: Ledger, view: PrivateView | None, plan: str, things: Mapping[str, Any], tables: Mapping[str, Any], *, begun: bool
) -> None:
    """Raises PlanChanged where a plan that has begun is given other records, things or tables than it began with; else keeps theirs."""
    file = ledger.storage.file
    if file is not None:
        kept = _read(file)
    else:
        kept = _servers.setdefault(str(ledger.storage.url), {}) if ledger.storage.persistent else _here.setdefault(ledger, {})
    key = bytes.fromhex(kept.setdefault("key", system_entropy(32).hex()))
    given = {f"{name}{_UNDER}": thing_digest(thing, key) for name, thing in things.items()}
    views = {name: PrivateView.of(table, PrivacyUnit("record"), units_are_public=True) for name, table in tables.items()}
    if view is not None and ledger.storage.persistent:  # else one curator has the ledger, and its records
        views[f"{ledger.birth['role']} records"] = view
    given |= {name: digest for name, held in views.items() if (digest := table_digest(held, key)) is not None}
    plans = kept.setdefault("plans", {})
    before = plans.get(plan, {}) if begun else {}
    for name in given:
        if before.get(name, given[name]) != given[name]:
            raise PlanChanged(plan, name.removesuffix(_UNDER))
    if plans.get(plan) != (now := {**before, **given}):
        plans[plan] = now
        if file is not None:
            _write(file, kept)


def _beside(ledger: pathlib.Path) -> pathlib.Path:
    return ledger.with_name(f"{ledger.name}.fingerprints")


def _read(ledger: pathlib.Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError), _translated(ledger):
        found = json.loads(_beside(ledger).read_text())
        bytes.fromhex(found["key"])
        return dict(found)
    return {}


def _write(ledger: pathlib.Path, kept: Mapping[str, Any]) -> None:
    beside = _beside(ledger)
    new = beside.with_name(f"{beside.name}.{system_entropy(8).hex()}")
    with _translated(ledger):
        new.touch(mode=0o600, exist_ok=False)
        new.write_text(json.dumps(kept))
        new.replace(beside)  # whole or not at all


@contextlib.contextmanager
def _translated(ledger: pathlib.Path) -> Any:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        told = f"the file {_beside(ledger).name!r} beside the ledger cannot be read or written. Nothing was charged. Put it back, or "
        raise LedgerUnavailable(f"{told}delete it: then nothing tells whether a plan is resumed with what it began with.") from None
