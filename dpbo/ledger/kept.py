"""What each reservation began with and the newest record of its ledger, in a file that only the
operator may read.

The file is `FILE.fingerprints` beside the ledger in FILE. A ledger on a server has one on each
machine that uses it, in the folder of the user's state (places.py), named by the server, the
database and the schema: another machine cannot know what a reservation began with here, and says
so. It has mode 0600 and holds a key and, for each reservation, keyed fingerprints of the records
and of what else the reservation was given. They are private (records/digests.py), so back the
file up with the records. Where it is missing, the log warns, and a reservation is taken to go on
with what it began with. Reservations of a ledger in memory are compared while it is open.

It also holds the number and hash of the newest record that its operator saw. A ledger that lacks
that record is an older copy: what was charged since is not in it, so it is refused
(`LedgerRolledBack`). An older copy of both is not noticed: keep them apart.

Reservations are read, compared and written while no other process can write to the ledger. The
newest record takes its place in the file's first line once it is durable.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dpbo.entropy import system_entropy
from dpbo.errors import LedgerRolledBack, LedgerUnavailable
from dpbo.places import state_folder

if TYPE_CHECKING:
    from dpbo.ledger.storage import Storage

_LOG = logging.getLogger(__name__)
# Of the first line of the file.
_WIDTH = 20 + 1 + 64 + 1
# Letters of a server's name in a file's name.
_LONGEST_NAME = 120


def file_of(storage: Storage) -> pathlib.Path | None:
    """Where the fingerprints of a ledger's reservations are kept; None in memory."""
    if storage.file is not None:
        # The same by each of its names.
        return pathlib.Path(f"{storage.identity}.fingerprints")
    if not storage.persistent:
        return None
    named = re.sub(r"[^A-Za-z0-9._-]+", "-", storage.identity)[:_LONGEST_NAME]
    digest = hashlib.sha256(storage.identity.encode()).hexdigest()[:12]
    return state_folder() / f"{named}-{digest}.fingerprints"


def kept_head(storage: Storage) -> tuple[int, str] | None:
    """Number and hash of the newest record that a process of this operator has seen; None where
    that is not kept.

    Raises LedgerUnavailable where the file of fingerprints cannot be read.
    """
    if (file := file_of(storage)) is None:
        return None
    if file.exists() and not os.access(file, os.R_OK):
        _LOG.warning("%s: only its owner can tell whether the ledger is an older copy", file.name)
        return None
    head: tuple[int, str] | None = read(file).get("head")
    return head


def rolled_back(storage: Storage, seq: int) -> LedgerRolledBack:
    """The error of a ledger that lacks the kept entry of this number."""
    file = file_of(storage)
    assert file is not None
    return LedgerRolledBack(
        f"the ledger lacks record {seq}, the newest one that {file.name} tells of: an older copy,"
        " or a new ledger, was put in its place, and what was charged since is not in it. Nothing"
        " was charged. Put back the ledger that holds it. If it is lost, no later statement counts"
        f" what it released: to go on even so, delete {file.name}."
    )


def keep_head(storage: Storage, seq: int, hash: str) -> None:
    """Keep a durable record as the newest one, unless a newer one is kept. It takes its place in
    the file, so that nobody waits. What fails is logged: the record itself is safe."""
    file = file_of(storage)
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        if not file.exists():
            # With a key alone, unless another process made it meanwhile; none sees it half written.
            new = _beside(file, {"key": system_entropy(32).hex()})
            try:
                with contextlib.suppress(FileExistsError):
                    file.hardlink_to(new)
            finally:
                new.unlink()
        held = _open(file, os.O_RDWR)
        try:
            # Others that keep a head wait.
            fcntl.flock(held, fcntl.LOCK_EX)
            known, _ = os.pread(held, _WIDTH, 0).decode().split()
            if known == "-" or int(known) < seq:
                os.pwrite(held, _head_line((seq, hash)), 0)
        finally:
            os.close(held)
    except (OSError, ValueError):
        _LOG.warning(
            "%s: cannot be written, so an older copy of the ledger would not be noticed", file.name
        )


def _open(file: str | pathlib.Path, flags: int) -> int:
    """A descriptor of the file itself. Raises OSError where a link stands in its place, which may
    lead to another ledger's.
    """
    return os.open(file, flags | os.O_NOFOLLOW)


def _head_line(head: tuple[int, str] | None) -> bytes:
    return (f"{'-':>20} {'-':>64}\n" if head is None else f"{head[0]:>20} {head[1]:>64}\n").encode()


def read(file: pathlib.Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _file_errors(file):
        with open(file, opener=_open) as held:
            head, rest = held.read().split("\n", 1)
        found = dict(json.loads(rest))
        bytes.fromhex(found["key"])
        seq, hash = head.split()
        return found if seq == "-" else {**found, "head": (int(seq), hash)}
    return {}


def write(file: pathlib.Path, kept: Mapping[str, Any]) -> None:
    with _file_errors(file):
        if not file.parent.exists():
            file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        # All of it or nothing.
        _beside(file, kept).replace(file)


def _beside(file: pathlib.Path, kept: Mapping[str, Any]) -> pathlib.Path:
    """A new file beside the file, for its owner alone: the newest record in a line of fixed width,
    then everything else as JSON."""
    new = file.with_name(f"{file.name}.{system_entropy(8).hex()}")
    new.touch(mode=0o600, exist_ok=False)
    rest = {name: value for name, value in kept.items() if name != "head"}
    new.write_bytes(_head_line(kept.get("head")) + json.dumps(rest).encode())
    return new


@contextlib.contextmanager
def _file_errors(file: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except PermissionError:
        raise LedgerUnavailable(
            f"the file {file.name!r}, in which the ledger's fingerprints are kept, belongs to"
            " another user of this machine, or may not be written here. Nothing was charged. Users"
            " who share records share a ledger on a server (ledger= with its URL), where each keeps"
            " fingerprints of their own; a file is for one user."
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerUnavailable(
            f"the file {file.name!r}, in which the ledger's fingerprints are kept, cannot be read"
            " or written, or is a link. Nothing was charged. Put it back, or delete it: then"
            " nothing tells whether a reservation is resumed with what it began with, or the ledger"
            " is an older copy."
        ) from None
