"""What each reservation began with: keyed fingerprints, in the file that kept.py describes."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dpbo.entropy import system_entropy
from dpbo.errors import LedgerUnavailable, ReservationChanged
from dpbo.ledger.kept import file_of, read, write

if TYPE_CHECKING:
    from dpbo.ledger.ledger import Ledger

_LOG = logging.getLogger(__name__)
# Code is compared only where one version compiled it.
_PYTHON = f" under Python {sys.version_info.major}.{sys.version_info.minor}"


def key_of(ledger: Ledger) -> bytes:
    """The secret key of a ledger's fingerprints, made where there is none. Raises
    LedgerUnavailable."""
    with _changed(ledger) as kept:
        return bytes.fromhex(kept["key"])


def require_same(
    ledger: Ledger,
    reservation: str,
    things: Mapping[str, Any],
    tables: Mapping[str, str | None],
    *,
    begun: bool,
) -> None:
    """Compare what a reservation is given with what it began with, or keep the fingerprints where
    it begins now.

    Args:
        ledger: the reservation's ledger.
        reservation: name of the reservation.
        things: scores, functions and estimators, by name.
        tables: digests of records by `key_of` the ledger, by name; None for records that cannot be
            compared.
        begun: whether something was charged to the reservation already.

    Raises:
        ReservationChanged: names what differs.
        LedgerUnavailable: the file of fingerprints cannot be read or written.
    """
    # With torch, which opening a ledger does not need.
    from dpbo.fingerprint import fingerprint

    key = key_of(ledger)
    file = file_of(ledger.storage)
    current = {
        f"{name}{_PYTHON}": fingerprint(thing, detail="references", key=key, size=16).hex()
        for name, thing in things.items()
    }
    current |= {name: digest for name, digest in tables.items() if digest is not None}
    for name in tables.keys() - current.keys():
        _LOG.warning(
            "%r: %s not compared with those it begins or began with, because single records cannot"
            " be read alike twice",
            reservation,
            name,
        )
    with _changed(ledger) as kept:
        reservations = kept.setdefault("reservations", {})
        if begun and file is not None and reservation not in reservations:
            _LOG.warning(
                "%r: resumed unchecked, because %s does not tell which records, score and fit it"
                " began with",
                reservation,
                file.name,
            )
        first = reservations.get(reservation, {}) if begun else {}
        for name in current:
            if first.get(name, current[name]) != current[name]:
                raise ReservationChanged(reservation, name.removesuffix(_PYTHON))
        reservations[reservation] = {**first, **current}


@contextlib.contextmanager
def _changed(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """What is kept of a ledger's reservations, to read and change while no other process writes."""
    file = file_of(ledger.storage)
    if file is None:
        ledger.fingerprints.setdefault("key", system_entropy(32).hex())
        yield ledger.fingerprints
        return
    with ledger.alone() as newest:
        kept = read(file) or dict(ledger.fingerprints)
        before = json.dumps(kept)
        kept.setdefault("key", system_entropy(32).hex())
        yield kept
        if json.dumps(kept) == before:
            return
        # What others kept in the file that is replaced is no newer.
        kept["head"] = newest.seq, newest.hash
        try:
            write(file, kept)
        except (LedgerUnavailable, OSError):
            if ledger.storage.file is not None:
                raise
            _LOG.warning(
                "%s cannot be written: records are compared only while this ledger is open. Set"
                " DPBO_STATE to a folder.",
                file,
            )
            ledger.fingerprints = kept
