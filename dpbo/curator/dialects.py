"""What each database needs so that a commit is durable, writers queue, and a broken one is told from one that cannot be reached.

Every transaction has a connection of its own: a file that was moved, or replaced by a copy, is seen, a server that was restarted is found
again, and nothing stays open.
SQLite: synchronous=EXTRA, because FULL may roll the last charge back after a power cut: it does not sync the folder. BEGIN IMMEDIATE
queues the writers.
PostgreSQL: a server, role or URL with synchronous_commit=off answers before a charge is on disk, so it is switched on for each write.
Writers queue on the first record, and wait as long as on SQLite; readers see one snapshot.
"""

from __future__ import annotations

import pathlib
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

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
