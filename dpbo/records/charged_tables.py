"""Which tables the ledgers of this user were charged for on this machine, so that a second ledger
over the same records is found though another program made the first.

`tables.db` in the folder of the user's state (places.py) holds keyed digests of whole tables, which
ledger was charged for each, its budget, and where it lay. Digests are private: they tell who can
open the file whether a guessed table is one of these (mode 0600). What is refused or warned of
because tables are equal depends on the records, and is for the operator alone.

Not seen: tables with other rows, even by one; another user, another machine.
"""

import contextlib
import logging
import pathlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from dpbo.entropy import system_entropy
from dpbo.errors import LedgerUnavailable
from dpbo.places import OTHER_FOLDER, make_state_folder, state_folder
from dpbo.records.digests import digest_of_sums

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_FILE = "tables.db"
# Seconds that a program waits for another one.
_BUSY_SECONDS = 10
# The id and the place of ledgers that ended with their process.
MEMORY = ""
_UNNOTICED = "a second ledger over the same records would not be noticed"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS secret (id INTEGER PRIMARY KEY, key BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS charged (digest TEXT, ledger TEXT, place TEXT, dataset TEXT,"
    " budget TEXT, times INTEGER, PRIMARY KEY (digest, ledger, dataset, budget))",
)


@dataclass(frozen=True)
class Charged:
    """A budget that was charged for a table.

    Attributes:
        ledger: `Ledger.id`; "" for ledgers that ended with their process.
        place: where it was charged last, as `Storage.identity`; "" as above.
        dataset: as it was named there.
        budget: in words.
        times: number of ledgers.
    """

    ledger: str
    place: str
    dataset: str
    budget: str
    times: int = 1

    def has_moved_to(self, other: "Charged") -> bool:
        """Whether both are one ledger, wherever it lies now: not where its file still lies at the
        first place, too, because then the other one is a copy."""
        if self.ledger != other.ledger:
            return False
        first = pathlib.Path(self.place)
        return not first.is_file() or first.samefile(other.place)

    def __str__(self) -> str:
        if self.place != MEMORY:
            return f"{self.budget} in the ledger {self.place!r} of {self.dataset!r}"
        runs = "a ledger" if self.times == 1 else f"each of {self.times} ledgers"
        return f"{self.budget} in {runs} in memory"


def charged(tables: Sequence[Tensor]) -> list[Charged]:
    """The budgets that were charged for any of these tables, given as `RowDigests.sums`, oldest
    first."""

    def read(connection: sqlite3.Connection, digests: list[str]) -> list[Charged]:
        marks = ",".join("?" * len(digests))
        query = (
            "SELECT ledger, place, dataset, budget, MAX(times) FROM charged"
            f" WHERE digest IN ({marks}) GROUP BY ledger, place, dataset, budget"
            " ORDER BY MIN(rowid)"
        )
        return [Charged(*row) for row in connection.execute(query, digests)]

    return _transaction(tables, read) or []


def note(tables: Sequence[Tensor], made: Charged) -> None:
    """Note that a ledger was charged for tables, and where it lies: once a ledger, or once more for
    one in memory."""
    added = int(made.place == MEMORY)

    def write(connection: sqlite3.Connection, digests: list[str]) -> None:
        connection.executemany(
            "INSERT INTO charged VALUES (?, ?, ?, ?, ?, 1)"
            f" ON CONFLICT DO UPDATE SET times = times + {added}",
            [(digest, made.ledger, made.place, made.dataset, made.budget) for digest in digests],
        )
        # It may have moved since it was charged for other tables.
        connection.execute(
            "UPDATE charged SET place = ? WHERE ledger = ?", (made.place, made.ledger)
        )

    _transaction(tables, write)


def _transaction(
    tables: Sequence[Tensor], work: Callable[[sqlite3.Connection, list[str]], T]
) -> T | None:
    """What `work` returns, which gets the digests of tables. None without tables; and, with a line
    in the log, where the file cannot be used: the ledger itself still counts what it was charged.
    """
    if not tables:
        return None
    try:
        file = make_state_folder() / _FILE
        file.touch(mode=0o600)
        with contextlib.closing(
            sqlite3.connect(file, timeout=_BUSY_SECONDS, isolation_level=None)
        ) as connection:
            # Other programs wait from here on.
            connection.execute("BEGIN IMMEDIATE")
            for statement in _TABLES:
                connection.execute(statement)
            secret = system_entropy(32)
            connection.execute("INSERT OR IGNORE INTO secret VALUES (1, ?)", (secret,))
            key = bytes(connection.execute("SELECT key FROM secret").fetchone()[0])
            found = work(connection, sorted({digest_of_sums(each, key) for each in tables}))
            connection.execute("COMMIT")
            return found
    except LedgerUnavailable as error:
        _LOG.warning("%s: %s", _UNNOTICED, str(error))
    except (OSError, sqlite3.Error) as error:
        # Without it a data set's ledger, which lies beside it, is still found by its name.
        _LOG.warning(
            "%s cannot be used (%s): %s. Where the file is damaged, delete it alone: the ledgers"
            " beside it still count. %s",
            state_folder() / _FILE,
            # Its traceback would keep the curator's frames with the log's record.
            str(error),
            _UNNOTICED,
            OTHER_FOLDER,
        )
    return None
