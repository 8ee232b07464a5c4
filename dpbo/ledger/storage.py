"""Where a ledger lies: the transactions over its table in SQLite (a file, or memory), PostgreSQL,
or another database that SQLAlchemy supports.

A file stays open while it is as the last transaction left it: one that was moved, replaced by a
copy or written to by others is opened anew. A server gets a connection for each transaction, so one
that was restarted is found again. Writers queue, and wait equally long on every database. SQLite:
BEGIN IMMEDIATE, and synchronous=EXTRA, because FULL may roll the last charge back after a power
cut: it does not sync the folder. PostgreSQL: a lock of the table, and synchronous_commit for each
write, because a server, role or URL may have switched it off; readers see one snapshot. The schema
is `public`, or the one that the URL names.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import stat
import uuid
import weakref
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

from dpbo.errors import (
    InputError,
    LedgerCorrupt,
    LedgerMismatch,
    LedgerMissing,
    LedgerUnavailable,
    MissingLibrary,
    Unshown,
)
from dpbo.extras import EXTRAS
from dpbo.ledger.entries import table
from dpbo.ledger.lock import ProcessLock
from dpbo.validation import printable

# Seconds that a writer waits for the others.
_BUSY_SECONDS = 30
SCHEMA = 2
# The table of schema 1.
_FORMER = "dpbo_ledger"
# The lock under which PostgreSQL's table is made: each of several processes may be the first.
_CREATORS = 0x6470626F
# SQLITE_CORRUPT, SQLITE_NOTADB.
_SQLITE_BROKEN = (11, 26)
# SQLSTATEs of damaged data and indexes; XX000 is any internal error.
_POSTGRES_BROKEN = ("XX001", "XX002")
_SEARCH_PATH = re.compile(r"(?:-c\s*|--)search[_-]path=(\S+)")
_SCHEMA = re.compile(r'[A-Za-z_][A-Za-z0-9_]*|"[A-Za-z_][A-Za-z0-9_]*"')
_NAME_SCHEMA = (
    "Add ?options=-csearch_path%3DNAME, the same for every role: each schema has a ledger, and a"
    " budget, of its own."
)
# Bytes of an SQLite page.
_SMALLEST = 512
_LOCKED = (
    "Wait for the other process to finish. Where there is none, the file lies on a network drive,"
    " whose locks do not work: keep it on a local disk, or give ledger= a server's URL."
)
_CHECK = "Check that it exists and can be written."
# The extra whose driver is tested.
_POSTGRES = "postgres"
# Characters of its place that are shown.
_LONGEST = 300
_RESTORE = (
    "Charge nothing on it: put back a copy that holds the newest head you noted (`python -m dpbo"
    " ledger verify --expect HEAD`)."
)

# For a write on PostgreSQL, where the server, the role or the URL says otherwise.
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE"
    " current_setting('synchronous_commit') = 'off' UNION ALL SELECT"
    f" set_config('lock_timeout', '{_BUSY_SECONDS}s', true) WHERE"
    " current_setting('lock_timeout') = '0'"
)


# Bytes, device, inode and times.
File = tuple[int, ...]
# Of ledgers that a process this one was forked from had opened.
_INHERITED = list[sa.Engine]()


class Storage:
    """Transactions over the table at a place.

    Args:
        url: file name or SQLAlchemy URL; None for memory, this process only.
        create: whether a ledger may be made where there is none.

    Attributes:
        persistent: whether the records outlive this process.
        file: SQLite's file, by its whole path; None where it is not named as a path.
        identity: the same text for the same place alone, without a password; in memory, of this
            object.
        lock: held by whoever is in a transaction.

    Raises:
        InputError: no such URL, a file of another program, or a URL of PostgreSQL in which the
            role's settings choose the schema.
        MissingLibrary: the URL's driver is not installed.
        LedgerMissing: there is none, and none may be made.
        LedgerMismatch: its schema is an older one.
        LedgerUnavailable: it cannot be reached.
        LedgerCorrupt: its file is damaged.
    """

    def __init__(self, url: str | pathlib.Path | None, *, create: bool = True) -> None:
        self.lock = ProcessLock()
        self._engine = _engine(_url_of(url))
        self._sqlite = self._engine.dialect.name == "sqlite"
        self.persistent = url is not None and not _is_in_memory(self._engine.url)
        self.file = _file_of(self._engine.url)
        # The file as the last transaction left it.
        self._left: File | None = None
        weakref.finalize(self, _dispose, self._engine, os.getpid())
        # Whether the transaction under way was sent its commit, which may go unanswered.
        self._committing = False
        self._schema = ""
        self.identity = self._identity()
        self._require_ledger(create=create)

    @contextlib.contextmanager
    def writing(
        self, *, create: bool = False, found: File | None = None
    ) -> Iterator[sa.Connection]:
        """One durable transaction that no other writer interleaves with; it makes the table where
        `create` says so. `found` is what `found()` gave just before, if it was asked.
        """
        with (
            self.lock,
            self._errors_translated(creating=create, found=found),
            self._engine.connect() as connection,
        ):
            begin = "BEGIN IMMEDIATE" if self._sqlite else "BEGIN ISOLATION LEVEL READ COMMITTED"
            self._send(connection, begin)
            try:
                if not self._sqlite:
                    connection.exec_driver_sql(_DURABLE)
                if create:
                    self._create(connection)
                if self._engine.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"LOCK TABLE {table.name} IN EXCLUSIVE MODE")
                yield connection
                self._committing = True
                self._send(connection, "COMMIT")
            except BaseException:
                self._roll_back(connection)
                raise

    @contextlib.contextmanager
    def reading(self, found: File | None = None) -> Iterator[sa.Connection]:
        """A consistent view. `found` as in `writing`."""
        with self.lock, self._errors_translated(found=found), self._engine.connect() as connection:
            snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            self._send(connection, "BEGIN" if self._sqlite else snapshot)
            try:
                yield connection
            finally:
                self._roll_back(connection)

    def _send(self, connection: sa.Connection, statement: str) -> None:
        """Begin or end a transaction. SQLAlchemy takes ten times as long as SQLite itself."""
        if self._sqlite:
            connection.connection.driver_connection.execute(statement)  # type: ignore[union-attr]
        else:
            connection.exec_driver_sql(statement)

    def _roll_back(self, connection: sa.Connection) -> None:
        # A lost connection, and SQLite's own rollback, leave nothing to undo.
        with contextlib.suppress(sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error):
            self._send(connection, "ROLLBACK")

    def require_whole(self) -> None:
        """Raises LedgerCorrupt where SQLite finds its file's pages or indexes damaged, which no
        hash covers.
        """
        if self._sqlite:
            with self.reading() as connection:
                found = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
            if found != "ok":
                raise LedgerCorrupt(
                    f"the file of the ledger at {self._place()} is damaged:"
                    f" {' '.join(found.split())}. {_RESTORE}"
                )

    def _identity(self) -> str:
        if not self.persistent:
            return f"memory {uuid.uuid4().hex}"
        if self.file is not None:
            # of a link that leads to itself, too
            return os.path.realpath(self.file)
        url = self._engine.url
        if self._engine.dialect.name == "postgresql":
            with self._errors_translated(creating=True):
                self._schema = _named_schema(self._engine)
        place = ":".join(map(str, filter(None, (url.host, url.port))))
        return " ".join(filter(None, (url.get_backend_name(), place, url.database, self._schema)))

    def _create(self, connection: sa.Connection) -> None:
        if self._engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATORS)))
        if not sa.inspect(connection).has_table(table.name):
            table.create(connection)

    def _require_ledger(self, *, create: bool) -> None:
        """Raises where there is no ledger and none may be made, or something else stands there."""
        found = self.found()
        if found is not None and 0 < found[0] < _SMALLEST:
            # SQLite would take it as empty: a new ledger in its place.
            raise LedgerCorrupt(
                f"the file of the ledger at {self._place()} was cut off. {_RESTORE}"
            )
        names = list[str]()
        if self.file is None or found is not None:
            with self._errors_translated(creating=True):
                names = sa.inspect(self._engine).get_table_names()
        # Also beside one of today's, which does not know what was spent there.
        if _FORMER in names:
            raise LedgerMismatch(
                "schema", 1, SCHEMA, "Open it with the dpbo version that wrote it."
            )
        if table.name in names:
            return
        if not create:
            raise LedgerMissing(
                f"there is no ledger at {self._place()}. Check the file name or URL."
            )
        if self.file is not None and names:
            remedy = f"This one has other tables: {printable(', '.join(names[:3]))}."
            raise InputError("ledger", self._place(), "a new file, or one that dpbo made", remedy)

    def found(self) -> File | None:
        """Bytes of SQLite's file, which file it is, and when it was changed; None where there is
        none. Raises LedgerUnavailable where the system does not say, such as in a folder that may
        not be read.
        """
        try:
            found = None if self.file is None else self.file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no file can have this name"
            raise LedgerUnavailable(
                f"the ledger at {self._place()} cannot be used: {reason}. {_CHECK}"
            ) from None
        if found is None or not stat.S_ISREG(found.st_mode):
            return None
        return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns

    def is_untouched(self, found: File | None) -> bool:
        """Whether SQLite's file is as this process's last transaction left it; a server's tables
        are not put back by copying a file.
        """
        return self.file is None or (found is not None and self._left == found)

    def _place(self) -> str:
        place = printable(public_place(self._engine.url))
        if self._schema:
            place += f", schema {self._schema!r}"
        if len(place) <= _LONGEST:
            return place
        return f"{place[:_LONGEST]}..."

    @contextlib.contextmanager
    def _errors_translated(
        self, *, creating: bool = False, found: File | None = None
    ) -> Iterator[None]:
        """The database's errors as dpbo's own."""
        driver = self._engine.dialect.loaded_dbapi
        found = found or self.found()
        if not creating and self.file is not None and found is None:
            raise LedgerMissing(
                f"the file of the ledger at {self._place()} is gone. Put it back: a new one forgets"
                " what was spent."
            )
        if self.file is not None and (found is None or found != self._left):
            # Its cached pages may be of another file.
            self._engine.dispose()
        self._left = None
        self._committing = False
        try:
            yield
            now = self.found()
            if found is not None and now is not None and now[1:3] == found[1:3]:
                self._left = now
        except UnicodeDecodeError:
            # SQLite quotes the damaged bytes in its message, which Python cannot read.
            raise LedgerCorrupt(
                f"the ledger at {self._place()} is damaged: its text cannot be decoded. {_RESTORE}"
            ) from None
        except (sa.exc.DBAPIError, driver.Error) as error:
            original = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            reason = " ".join(str(original).split())
            if _is_damage(original):
                raise LedgerCorrupt(
                    f"the ledger at {self._place()} is damaged: {reason}. {_RESTORE}"
                ) from None
            remedy = _LOCKED if "lock" in reason else _CHECK
            text = f"the ledger at {self._place()} cannot be used: {reason}. {remedy}"
            raise LedgerUnavailable(text, uncertain=self._committing) from None


def public_place(url: sa.URL | str) -> str:
    """A URL as it may be shown: without a password, and without its query, which may hold one as
    well.
    """
    try:
        return sa.make_url(url).set(query={}).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return f"{str(url).partition('://')[0]}://..."


def _is_in_memory(url: sa.URL) -> bool:
    """Whether it is SQLite without a file."""
    return url.get_backend_name() == "sqlite" and (
        url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"
    )


def _file_of(url: sa.URL) -> pathlib.Path | None:
    named = (
        url.get_backend_name() == "sqlite"
        and not _is_in_memory(url)
        and not str(url.database).startswith("file:")
    )
    if named:
        return pathlib.Path(str(url.database))
    return None


def _named_schema(engine: sa.Engine) -> str:
    """The one schema in which PostgreSQL keeps the ledger: named in the URL, else `public`.

    Where the role's or the server's settings choose it, as by "$user", each role would have a
    ledger, and a budget, of its own.
    """
    given = engine.url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    named = _SEARCH_PATH.findall(options)
    if named:
        if len(named) == 1 and _SCHEMA.fullmatch(named[0]):
            return str(named[0]).strip('"')
        raise InputError(
            "ledger", Unshown(options), "one whose search_path is one schema", _NAME_SCHEMA
        )
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT current_schema()").scalar()
    if found != "public":
        raise InputError(
            "ledger",
            Unshown(options),
            f"one that names its schema, not the role's {found!r}",
            _NAME_SCHEMA,
        )
    return "public"


def _is_damage(error: BaseException | None) -> bool:
    """Whether the driver's error says that what is stored is damaged, not that it cannot be
    reached.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _SQLITE_BROKEN:
        return True
    return (
        "Could not decode to UTF-8" in str(error)
        or getattr(error, "sqlstate", None) in _POSTGRES_BROKEN
    )


def _dispose(engine: sa.Engine, home: int) -> None:
    """Close the connections. Not in a forked child: SQLite would there undo what the parent is
    writing, and remove its journal.
    """
    if os.getpid() == home:
        engine.dispose()
    else:
        _INHERITED.append(engine)


def _url_of(place: str | pathlib.Path | None) -> sa.URL | str:
    """An SQLAlchemy URL as it is; a file name as one, whatever characters it has, from the home
    directory where it begins with ~.
    """
    if place is None:
        return "sqlite://"
    if "\0" in str(place):
        raise InputError("ledger", Unshown(place), "a file name or an SQLAlchemy URL, without NUL")
    if isinstance(place, str) and "://" in place:
        return place
    file = str(pathlib.Path(place).expanduser()) if place else ""
    return sa.URL.create("sqlite", database=file)


def _engine(url: sa.URL | str) -> sa.Engine:
    """The engine, which begins every transaction as its database needs it."""
    try:
        parsed = sa.make_url(url)
        if (file := _file_of(parsed)) is not None:
            # It may be opened anew, wherever the process has moved meanwhile.
            parsed = parsed.set(database=str(file.absolute()))
        arguments: dict[str, Any] = {"poolclass": NullPool}
        if file is not None or _is_in_memory(parsed):
            arguments = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        if parsed.get_backend_name() == "sqlite" and "timeout" not in parsed.query:
            arguments.setdefault("connect_args", {})["timeout"] = _BUSY_SECONDS
        engine = sa.create_engine(
            parsed,
            hide_parameters=True,
            isolation_level="AUTOCOMMIT",
            pool_reset_on_return=None,
            **arguments,
        )
    except ImportError as error:
        raise _missing_driver(parsed, error) from None
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ValueError):
        # Such as a port that is no number.
        place = f"{str(url).partition('://')[0]}://..."
        raise InputError(
            "ledger", place, "a file name or an SQLAlchemy URL such as sqlite:///tuning.db"
        ) from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _sqlite_connect)
    return engine


def _missing_driver(url: sa.URL, error: ImportError) -> MissingLibrary:
    """The error of a URL whose driver cannot be imported: SQLAlchemy imports it when it makes the
    engine.
    """
    driver = error.name or url.get_driver_name()
    extra = f'pip install "dpbo[{_POSTGRES}]"'
    if driver in EXTRAS[_POSTGRES]:
        return MissingLibrary(
            driver,
            _POSTGRES,
            f"It is the driver of {url.drivername} URLs. Install it with: {extra}",
        )
    remedy = f"It is the driver of {url.drivername} URLs. Install the library that has this module."
    if url.get_backend_name() == "postgresql":
        remedy = f"{remedy} Or write postgresql+psycopg://, with: {extra}"
    return MissingLibrary(driver, "", remedy)


def _sqlite_connect(connection: Any, _record: Any) -> None:
    try:
        connection.execute("PRAGMA synchronous=EXTRA")
    except BaseException:
        # a damaged file: SQLAlchemy forgets this connection without closing it
        connection.close()
        raise
