"""Where the ledger's records live: one append-only table in SQLite (a file, or memory) or any database that SQLAlchemy speaks.

One durable transaction an append. Writers queue: SQLite by BEGIN IMMEDIATE, servers by locking the first record.
See dialects.py for what each database needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
from collections.abc import Iterator

import sqlalchemy as sa

from dpbo.curator import dialects
from dpbo.errors import InputError, LedgerCorrupt, LedgerUnavailable, Unshown

_LONGEST = 300  # letters of its place that are shown
_RESTORE = "Charge nothing on it: put back a copy that holds the newest head you noted (`python -m dpbo ledger verify --expect HEAD`)."

metadata = sa.MetaData()
table = sa.Table(
    "dpbo_ledger",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("name", sa.String(200), nullable=False, index=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)


class Taken(LedgerUnavailable):
    """Another process wrote the same record first; nothing was kept."""


class Storage:
    """Transactions over the table at `url` (None: memory, this process only)."""

    def __init__(self, url: str | None, *, create: bool = True) -> None:
        self.url = None if url is None else url if "://" in url else f"sqlite:///{url}"
        self._lock = threading.RLock()
        self._home = os.getpid()
        self._engine = _engine(self.url)
        if not self._exists():
            if not create:
                raise LedgerUnavailable(f"there is no ledger at {self._shown()}. Check the file name or URL.")
            self._create()
        else:
            self.require_whole()

    @property
    def persistent(self) -> bool:
        """Whether the records outlive this process."""
        return self.url is not None and not dialects.in_memory(self._engine.url)

    @property
    def file(self) -> pathlib.Path | None:
        """Of SQLite, where it is named as a path; by its whole path."""
        return dialects.file_of(self._engine.url)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One durable transaction that no other writer interleaves with."""
        with self._lock, self._translated() as stage, self._write_connection() as connection:
            transaction = connection.begin()
            try:
                if self._engine.dialect.name != "sqlite":
                    connection.execute(sa.select(table.c.seq).where(table.c.seq == 0).with_for_update())
                yield connection
            except BaseException:
                transaction.rollback()
                raise
            stage.committing = True
            transaction.commit()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A consistent view."""
        with self._lock, self._translated(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def reading_after_writers(self) -> Iterator[sa.Connection]:
        """A view that what a server is still committing, though its answer was lost, cannot be missing from."""
        with self.reading() if self._engine.dialect.name == "sqlite" else self.writing() as connection:
            yield connection

    def require_whole(self) -> None:
        """Raises LedgerCorrupt where the file is damaged between the records: no hash covers its indexes."""
        with self.reading() as connection:
            found = dialects.damage(connection)
        if found:
            raise LedgerCorrupt(f"the file of the ledger at {self._shown()} is damaged: {found}. {_RESTORE}")

    def _write_connection(self) -> sa.Connection:
        return self._engine.connect().execution_options(**{dialects.WRITE: True})

    def _create(self) -> None:
        with self._lock, self._translated(creating=True), self._write_connection() as connection, connection.begin():
            dialects.queue_creators(connection)
            connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            for index in table.indexes:
                connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))

    def _exists(self) -> bool:
        if dialects.missing_file(self._engine.url):
            return False
        if dialects.cut_off(self._engine.url):
            raise LedgerCorrupt(f"the file of the ledger at {self._shown()} was cut off. {_RESTORE}")
        with self._translated():
            return sa.inspect(self._engine).has_table(table.name)

    def _shown(self) -> str:
        shown = self._engine.url.render_as_string(hide_password=True)
        return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."

    @contextlib.contextmanager
    def _translated(self, *, creating: bool = False) -> Iterator[_Stage]:
        if os.getpid() != self._home:
            raise LedgerUnavailable("this ledger was opened by another process, from which this one was forked. Open it anew here.")
        if not creating and dialects.missing_file(self._engine.url):
            raise LedgerUnavailable(f"the file of the ledger at {self._shown()} is gone. Put it back: a new one forgets what was spent.")
        stage = _Stage()
        try:
            yield stage
        except sa.exc.IntegrityError:
            raise Taken(f"another process wrote to the ledger at {self._shown()} first. Nothing was kept; try again.") from None
        except UnicodeDecodeError:  # SQLite quotes the damaged bytes in its message, which Python cannot read
            raise LedgerCorrupt(f"the ledger at {self._shown()} is damaged: its text cannot be decoded. {_RESTORE}") from None
        except sa.exc.DBAPIError as error:
            raise self._told(error, stage.committing) from None

    def _told(self, error: sa.exc.DBAPIError, committing: bool) -> LedgerUnavailable | LedgerCorrupt:
        reason = str(error.orig).strip()
        if dialects.is_broken(error.orig):
            return LedgerCorrupt(f"the ledger at {self._shown()} is damaged: {reason}. {_RESTORE}")
        remedy = "Wait for the other process to finish." if "lock" in reason else "Check that it exists and can be written."
        return LedgerUnavailable(f"the ledger at {self._shown()} cannot be used: {reason}. {remedy}", uncertain=committing)


@dataclasses.dataclass
class _Stage:
    """How far a transaction came, to tell a refused one from one whose commit was not answered."""

    committing: bool = False


def _engine(url: str | None) -> sa.Engine:
    if url is not None and "\0" in url:
        raise InputError("ledger", Unshown(url), "a file name or an SQLAlchemy URL, without NUL")
    try:
        parsed = dialects.rooted(sa.make_url(url or "sqlite://"))
        engine = sa.create_engine(parsed, hide_parameters=True, **dialects.settings(parsed))
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError):
        raise InputError(
            "ledger", f"{str(url).partition('://')[0]}://...", "a file name or an SQLAlchemy URL such as sqlite:///tuning.db"
        ) from None
    dialects.prepare(engine)
    return engine
