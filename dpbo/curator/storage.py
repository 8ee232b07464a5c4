"""Where the ledger's records live: one append-only table in SQLite (a file, or memory) or any database that SQLAlchemy speaks.

One durable transaction an append. Writers queue: SQLite by BEGIN IMMEDIATE, servers by locking the first record.
SQLite runs with synchronous=EXTRA: FULL may roll the last charge back after a power cut, because it does not sync the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from dpbo.errors import InputError, LedgerUnavailable

_BUSY_SECONDS = 30

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


class Storage:
    """Transactions over the table at `url` (None: memory, this process only)."""

    def __init__(self, url: str | None, *, create: bool = True) -> None:
        self.url = None if url is None else url if "://" in url else f"sqlite:///{url}"
        self._lock = threading.RLock()
        self._home = os.getpid()
        self._engine = _engine(self.url)
        if create:
            self._create()
        elif not self._exists():
            raise LedgerUnavailable(f"there is no ledger at {self._shown()}. Check the file name or URL.")

    @property
    def persistent(self) -> bool:
        """Whether the records outlive this process."""
        return self.url is not None and not _in_memory(self._engine.url)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One durable transaction that no other writer interleaves with."""
        with self._lock, self._translated() as stage, self._write_connection() as connection:
            transaction = connection.begin()
            if self._engine.dialect.name != "sqlite":
                connection.execute(sa.select(table.c.seq).where(table.c.seq == 0).with_for_update())
            try:
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

    def _write_connection(self) -> sa.Connection:
        return self._engine.connect().execution_options(dpbo_write=True)

    def _create(self) -> None:
        with self._lock, self._translated(), self._write_connection() as connection, connection.begin():
            connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            for index in table.indexes:
                connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))

    def _exists(self) -> bool:
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        if file and not pathlib.Path(file).is_file():
            return False
        with self._translated():
            return sa.inspect(self._engine).has_table(table.name)

    def _shown(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[_Stage]:
        if os.getpid() != self._home:
            raise LedgerUnavailable("this ledger was opened by another process, from which this one was forked. Open it anew here.")
        stage = _Stage()
        try:
            yield stage
        except sa.exc.IntegrityError:
            raise
        except sa.exc.DBAPIError as error:
            reason = str(error.orig)
            remedy = "Wait for the other process to finish." if "locked" in reason else "Check that it exists and can be written."
            message = f"the ledger at {self._shown()} cannot be used: {reason}. {remedy}"
            raise LedgerUnavailable(message, uncertain=stage.committing) from None


@dataclasses.dataclass
class _Stage:
    """How far a transaction came, to tell a refused one from one whose commit was not answered."""

    committing: bool = False


def _engine(url: str | None) -> sa.Engine:
    try:
        parsed = sa.make_url(url or "sqlite://")
        memory = _in_memory(parsed)
        extra: dict[str, Any] = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}} if memory else {}
        if parsed.get_backend_name() == "sqlite" and not memory and "timeout" not in parsed.query:
            extra = {"connect_args": {"timeout": _BUSY_SECONDS}}
        engine = sa.create_engine(parsed, hide_parameters=True, **extra)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError):
        raise InputError(
            "ledger", f"{str(url).partition('://')[0]}://...", "a file name or an SQLAlchemy URL such as sqlite:///tuning.db"
        ) from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _sqlite_connect)
        sa.event.listen(engine, "begin", _sqlite_begin)
    return engine


def _in_memory(url: sa.URL) -> bool:
    return url.get_backend_name() == "sqlite" and (url.database in (None, "", ":memory:") or "mode=memory" in str(url))


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late to be a lock
    connection.execute("PRAGMA synchronous=EXTRA")


def _sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("dpbo_write") else "BEGIN")
