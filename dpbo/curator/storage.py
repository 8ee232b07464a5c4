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
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

from dpbo.errors import InputError, LedgerCorrupt, LedgerUnavailable, Unshown

# ========== MERGED What each database needs so that a commit is durable, writers queue, and a broken one is told from one that cannot be
# reached.
#
# Every transaction has a connection of its own: a file that was moved, or replaced by a copy, is seen, a server that was restarted is found
# again, and nothing stays open.
# SQLite: synchronous=EXTRA, because FULL may roll the last charge back after a power cut: it does not sync the folder. BEGIN IMMEDIATE
# queues the writers.
# PostgreSQL: a server, role or URL with synchronous_commit=off answers before a charge is on disk, so it is switched on for each write.
# Writers queue on the first record, and wait as long as on SQLite; readers see one snapshot.
#

BUSY_SECONDS = 30
WRITE = "dpbo_write"  # the execution option of connections that write

_CREATORS = 0x6470626F  # of the lock under which PostgreSQL's table is made: CREATE TABLE IF NOT EXISTS alone is a race
_SQLITE_BROKEN = (11, 26)  # SQLITE_CORRUPT, SQLITE_NOTADB
_SMALLEST = 512  # bytes of a page
_POSTGRES_BROKEN = ("XX001", "XX002")  # SQLSTATEs of damaged data and indexes; XX000 is any internal error


def rooted(url: sa.URL) -> sa.URL:
    """A file by its whole path: every transaction opens it anew, wherever the process has moved meanwhile."""
    file = file_of(url)
    return url if file is None else url.set(database=str(file.absolute()))


def in_memory(url: sa.URL) -> bool:
    """Whether it is SQLite without a file."""
    return url.get_backend_name() == "sqlite" and (url.database in (None, "", ":memory:") or url.query.get("mode") == "memory")


def settings(url: sa.URL) -> dict[str, Any]:
    """Arguments of create_engine."""
    if in_memory(url):
        return {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    patience = {"timeout": BUSY_SECONDS} if url.get_backend_name() == "sqlite" and "timeout" not in url.query else {}
    return {"poolclass": NullPool, "connect_args": patience}


def prepare(engine: sa.Engine) -> None:
    """Listen where transactions begin."""
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _sqlite_connect)
        sa.event.listen(engine, "begin", _sqlite_begin)
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "begin", _postgres_begin)


def queue_creators(connection: sa.Connection) -> None:
    """Only one process at a time makes the table."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATORS)))


def missing_file(url: sa.URL) -> bool:
    """Whether SQLite would make a new, empty file."""
    file = file_of(url)
    return file is not None and not _is_file(file)


def _is_file(path: pathlib.Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no name that a file could have
        return False


def cut_off(url: sa.URL) -> bool:
    """Whether the file is shorter than any database but an empty one, as which SQLite would take it: a new ledger in its place."""
    file = file_of(url)
    return file is not None and 0 < file.stat().st_size < _SMALLEST


def damage(connection: sa.Connection) -> str:
    """What SQLite finds wrong with its file's pages and indexes, which no hash covers; "" where it is whole."""
    if connection.dialect.name != "sqlite":
        return ""
    found = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
    return "" if found == "ok" else " ".join(found.split())


def is_broken(error: BaseException | None) -> bool:
    """Whether the driver's error says that what is stored is damaged, not that it cannot be reached."""
    code, state = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlstate", None)
    undecodable = "Could not decode to UTF-8" in str(error)
    return undecodable or (code is not None and code & 0xFF in _SQLITE_BROKEN) or state in _POSTGRES_BROKEN


def file_of(url: sa.URL) -> pathlib.Path | None:
    """SQLite's, where it is named as a path."""
    named = url.get_backend_name() == "sqlite" and not in_memory(url) and not str(url.database).startswith("file:")
    return pathlib.Path(str(url.database)) if named else None


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late to be a lock
    connection.execute("PRAGMA synchronous=EXTRA")


def _sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITE) else "BEGIN")


def _postgres_begin(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get(WRITE):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # each statement sees what the queue left behind
    connection.exec_driver_sql(
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off' "
        f"UNION ALL SELECT set_config('lock_timeout', '{BUSY_SECONDS}s', true) WHERE current_setting('lock_timeout') = '0'"
    )


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
        return self.url is not None and not in_memory(self._engine.url)

    @property
    def file(self) -> pathlib.Path | None:
        """Of SQLite, where it is named as a path; by its whole path."""
        return file_of(self._engine.url)

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
            found = damage(connection)
        if found:
            raise LedgerCorrupt(f"the file of the ledger at {self._shown()} is damaged: {found}. {_RESTORE}")

    def _write_connection(self) -> sa.Connection:
        return self._engine.connect().execution_options(**{WRITE: True})

    def _create(self) -> None:
        with self._lock, self._translated(creating=True), self._write_connection() as connection, connection.begin():
            queue_creators(connection)
            connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            for index in table.indexes:
                connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))

    def _exists(self) -> bool:
        if missing_file(self._engine.url):
            return False
        if cut_off(self._engine.url):
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
        if not creating and missing_file(self._engine.url):
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
        if is_broken(error.orig):
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
        parsed = rooted(sa.make_url(url or "sqlite://"))
        engine = sa.create_engine(parsed, hide_parameters=True, **settings(parsed))
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError):
        raise InputError(
            "ledger", f"{str(url).partition('://')[0]}://...", "a file name or an SQLAlchemy URL such as sqlite:///tuning.db"
        ) from None
    prepare(engine)
    return engine
