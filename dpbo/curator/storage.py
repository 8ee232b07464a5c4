"""Where the ledger's records live: one append-only table in SQLite (a file, or memory) or any
database that SQLAlchemy supports.

One durable transaction an append. A server gets a connection for each, so one that was restarted is
found again. A file stays open as long as it is as the last transaction left it: one that was moved,
replaced by a copy or written to by others is opened anew. Writers queue, and wait equally long on
every database. SQLite: synchronous=EXTRA, because FULL may roll the last charge back after a power
cut: it does not sync the folder. BEGIN IMMEDIATE queues the writers. PostgreSQL: a server, role or
URL with synchronous_commit=off answers before a charge is on disk, so it is switched on for each
write. Writers queue on the first record; readers see one snapshot. The schema is `public`, or the
one that the URL names.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import stat
import threading
import uuid
import weakref
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

from dpbo.errors import (
    InputError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
    MissingLibrary,
    Unshown,
)
from dpbo.extras import EXTRAS
from dpbo.validation import printable

# Seconds that a writer waits for the others.
_BUSY_SECONDS = 30
# The execution option of connections that write.
_WRITE = "dpbo_write"
# The lock under which PostgreSQL's table is made: CREATE TABLE IF NOT EXISTS alone is a race.
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
_CHECK = "Check that it exists and can be written."
# The extra whose driver is tested.
_POSTGRES = "postgres"
# Characters of its place that are shown.
_LONGEST = 300
_RESTORE = (
    "Charge nothing on it: put back a copy that holds the newest head you noted (`python -m dpbo"
    " ledger verify --expect HEAD`)."
)

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
    """Transactions over the table at a place.

    Args:
        url: file name or SQLAlchemy URL; None for memory, this process only.
        create: whether a table may be made where there is none.

    Attributes:
        persistent: whether the records outlive this process.
        written: number of transactions of `writing`.
        keeps_head: whether the newest record can be kept beside the fingerprints.
        file: SQLite's file, by its whole path; None where it is not named as a path.
        identity: the same text for the same place alone, without a password; in memory, of this
            object.

    Raises:
        InputError: no such URL, or one of PostgreSQL in which the role's settings choose the
            schema.
        MissingLibrary: the URL's driver is not installed.
        LedgerMissing: there is none, and none may be made.
        LedgerUnavailable: it cannot be reached.
        LedgerCorrupt: its file is damaged.
    """

    def __init__(self, url: str | pathlib.Path | None, *, create: bool = True) -> None:
        self.lock = threading.RLock()
        self._home = os.getpid()
        self._engine = _engine(_url_of(url))
        self.persistent = url is not None and not _is_in_memory(self._engine.url)
        self.file = _file_of(self._engine.url)
        # The file as the last transaction left it.
        self._left: tuple[int, ...] | None = None
        self.written = 0
        self.keeps_head = True
        self._closing = weakref.finalize(self, _dispose, self._engine, self._home)
        # Whether the transaction under way was sent its commit, which may go unanswered.
        self._committing = False
        self._schema = ""
        self.identity = self._identity()
        if self._exists():
            self.require_whole()
        elif create:
            self._require_own()
            self._create()
        else:
            self._require_visible()
            raise LedgerMissing(
                f"there is no ledger at {self._place()}. Check the file name or URL."
            )

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One durable transaction that no other writer interleaves with."""
        with self.lock, self._errors_translated(), self._write_connection() as connection:
            transaction = connection.begin()
            try:
                if self._engine.dialect.name != "sqlite":
                    connection.execute(
                        sa.select(table.c.seq).where(table.c.seq == 0).with_for_update()
                    )
                yield connection
            except BaseException:
                transaction.rollback()
                raise
            self.written += 1
            self._committing = True
            transaction.commit()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A consistent view."""
        with (
            self.lock,
            self._errors_translated(),
            self._engine.connect() as connection,
            connection.begin(),
        ):
            yield connection

    @contextlib.contextmanager
    def reading_after_writers(self) -> Iterator[sa.Connection]:
        """A view that includes what a server is still committing, though its answer was lost."""
        with (
            self.reading() if self._engine.dialect.name == "sqlite" else self.writing()
        ) as connection:
            yield connection

    def version(self, connection: sa.Connection) -> tuple[object, int, int] | None:
        """What changes when anybody writes, `written` last; None where that is not known."""
        if self._engine.dialect.name != "sqlite":
            return None
        # One for each connection to the file.
        opened = connection.info.setdefault("opened", object())
        return (
            opened,
            int(_driver(connection).execute("PRAGMA data_version").fetchone()[0]),
            self.written,
        )

    def is_at(self, version: tuple[object, int, int] | None) -> bool:
        """Whether nobody has written since that `version`, without a transaction; False where that
        is not known.
        """
        if version is None:
            return False
        with self.lock, self._errors_translated(), self._engine.connect() as connection:
            return self.version(connection) == version

    def require_whole(self) -> None:
        """Raises LedgerCorrupt where SQLite finds its file's pages or indexes damaged, which no
        hash covers.
        """
        if self._engine.dialect.name == "sqlite":
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
            with self._errors_translated():
                self._schema = _named_schema(self._engine)
        place = ":".join(map(str, filter(None, (url.host, url.port))))
        return " ".join(filter(None, (url.get_backend_name(), place, url.database, self._schema)))

    def _write_connection(self) -> sa.Connection:
        return self._engine.connect().execution_options(**{_WRITE: True})

    def _create(self) -> None:
        with (
            self.lock,
            self._errors_translated(creating=True),
            self._write_connection() as connection,
            connection.begin(),
        ):
            if self._engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATORS)))
            connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            for index in table.indexes:
                connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))

    def _exists(self) -> bool:
        if self.file is not None and self._found() is None:
            return False
        if self.file is not None and 0 < self.file.stat().st_size < _SMALLEST:
            # SQLite would take it as empty: a new ledger in its place.
            raise LedgerCorrupt(
                f"the file of the ledger at {self._place()} was cut off. {_RESTORE}"
            )
        with self._errors_translated():
            return sa.inspect(self._engine).has_table(table.name)

    def _require_own(self) -> None:
        """Raises InputError for a file of SQLite's that another program has made."""
        if self.file is None or self._found() is None:
            return
        with self._errors_translated(creating=True):
            names = sa.inspect(self._engine).get_table_names()
        # Another process may have made the ledger meanwhile.
        others = [name for name in names if name != table.name]
        if others:
            allowed = "a new file, or one that dpbo made"
            remedy = f"This one has other tables: {printable(', '.join(others[:3]))}."
            raise InputError("ledger", self._place(), allowed, remedy)

    def _require_visible(self) -> None:
        """Raises LedgerUnavailable where the system does not even say whether the file exists, such
        as in a folder that may not be read.
        """
        try:
            if self.file is not None:
                self.file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            reason = f"{error.strerror}. {_CHECK}"
            raise LedgerUnavailable(
                f"the ledger at {self._place()} cannot be used: {reason}"
            ) from None

    def _found(self) -> tuple[int, ...] | None:
        """Which file stands at the place, and when it was last changed; None where SQLite would
        make a new, empty one.
        """
        try:
            found = self.file.stat() if self.file is not None else None
        except OSError:
            # Also for what no file could be named.
            found = None
        if found is None or not stat.S_ISREG(found.st_mode):
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _place(self) -> str:
        place = printable(public_place(self._engine.url))
        if self._schema:
            place += f", schema {self._schema!r}"
        if len(place) <= _LONGEST:
            return place
        return f"{place[:_LONGEST]}..."

    @contextlib.contextmanager
    def _errors_translated(self, *, creating: bool = False) -> Iterator[None]:
        """The database's errors as dpbo's own."""
        driver = self._engine.dialect.loaded_dbapi
        if os.getpid() != self._home:
            raise LedgerUnavailable(
                "this ledger was opened by another process, from which this one was forked. Open it"
                " again here."
            )
        self._committing = False
        left = self._left
        found = self._found()
        if not creating and self.file is not None and found is None:
            raise LedgerMissing(
                f"the file of the ledger at {self._place()} is gone. Put it back: a new one forgets"
                " what was spent."
            )
        if self.file is not None and (left is None or left != found):
            # Its cached pages may be of another file.
            self._engine.dispose()
        self._left = None
        try:
            yield
            if found is not None and (now := self._found()) is not None and now[:2] == found[:2]:
                self._left = now
        except (sa.exc.IntegrityError, driver.IntegrityError):
            raise Taken(
                f"another process wrote to the ledger at {self._place()} first. Nothing was kept;"
                " try again."
            ) from None
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
            remedy = "Wait for the other process to finish." if "lock" in reason else _CHECK
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
            # Every transaction opens it anew, wherever the process has moved meanwhile.
            parsed = parsed.set(database=str(file.absolute()))
        arguments: dict[str, Any] = {"poolclass": NullPool}
        if file is not None or _is_in_memory(parsed):
            arguments = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        if parsed.get_backend_name() == "sqlite" and "timeout" not in parsed.query:
            arguments.setdefault("connect_args", {})["timeout"] = _BUSY_SECONDS
        engine = sa.create_engine(parsed, hide_parameters=True, **arguments)
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
        sa.event.listen(engine, "begin", _sqlite_begin)
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "begin", _postgres_begin)
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
    # The driver's own BEGIN comes too late to be a lock.
    connection.isolation_level = None
    try:
        connection.execute("PRAGMA synchronous=EXTRA")
    except BaseException:
        # a damaged file: SQLAlchemy forgets this connection without closing it
        connection.close()
        raise


def _sqlite_begin(connection: sa.Connection) -> None:
    _driver(connection).execute(
        "BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITE) else "BEGIN"
    )


def _driver(connection: sa.Connection) -> Any:
    """SQLite's own connection: SQLAlchemy takes ten times as long as a short statement itself."""
    return connection.connection.driver_connection


def _postgres_begin(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get(_WRITE):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return
    # Each statement sees what the queue left behind.
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    connection.exec_driver_sql(
        "SELECT set_config('synchronous_commit', 'on', true) WHERE"
        " current_setting('synchronous_commit') = 'off' UNION ALL SELECT"
        f" set_config('lock_timeout', '{_BUSY_SECONDS}s', true) WHERE"
        " current_setting('lock_timeout') = '0'"
    )
