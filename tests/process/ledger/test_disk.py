"""SQLite on a disk that is full, read-only, or whose file is moved or replaced while a curator has
it open.

What limits or user ids do to the whole process happens in a child.
"""

import contextlib
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import sqlite3
import tempfile

import pytest
import sqlalchemy as sa

from dpbo.errors import LedgerCorrupt, LedgerRolledBack, LedgerUnavailable, ReleaseLost
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from tests.attacks.marks import attack
from tests.process.ledger.runs import Drawn, make
from tests.setups import MEAN

pytestmark = attack("A16")
NOISE = GaussianMechanism(60.0)
NOBODY = 65534


def release_until_refused(curator):
    """The handle on which the ledger could not be written, and what it said."""
    for _ in range(400):
        handle = curator.evaluate(MEAN)
        try:
            curator.release(handle, NOISE)
        except LedgerUnavailable as error:
            return handle, error
    raise AssertionError("the fault never struck")


def require_going_on(curator, drawn, handle, url):
    """The fault is over: the handle is delivered if it was drawn, released if it was not charged,
    else said to be lost; then life goes on.

    Returns in which step of the release the fault struck.
    """
    was_drawn = handle.id in drawn.handles
    was_charged = curator.ledger.charged(handle.id)
    assert was_charged or not was_drawn, "drawn without a charge"
    if was_charged and not was_drawn:
        with pytest.raises(ReleaseLost):
            curator.release(handle, NOISE)
    else:
        curator.release(handle, NOISE)
    curator.release(curator.evaluate(MEAN), NOISE)
    drawn.require_sound(url, lost=int(was_charged and not was_drawn))
    return "value" if was_drawn else "commit of the charge" if was_charged else "charge"


def full_disk(folder, note, room):
    """A file of one release with this note, which may grow by `room` bytes and no further: the
    system refuses the write, as a full disk does.
    """
    url = f"{folder}/l.db"
    drawn = Drawn(pytest.MonkeyPatch())
    curator = make(url)
    curator.release(curator.evaluate(MEAN, note=note), NOISE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (pathlib.Path(url).stat().st_size + room, unlimited[1])
    )
    handle, _ = release_until_refused(curator)
    with pytest.raises(LedgerUnavailable):
        curator.release(curator.evaluate(MEAN), NOISE)  # still full
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    return require_going_on(curator, drawn, handle, url)


def read_only(what):
    """The file, or its folder, loses its write permission under a curator of an unprivileged user,
    and gets it back.
    """
    make(None).release(MEAN, NOISE)  # imports what may not be readable to that user
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dpbo_disk_"))
    url = f"{folder}/l.db"
    drawn = Drawn(pytest.MonkeyPatch())
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        curator = make(url)
        curator.release(curator.evaluate(MEAN), NOISE)
        shut = folder if what == "folder" else folder / "l.db"
        mode = shut.stat().st_mode
        shut.chmod(mode & ~0o222)
        handle = curator.evaluate(MEAN)
        for call in (
            lambda: curator.release(handle, NOISE),
            lambda: make(url).release(MEAN, NOISE),
        ):
            with pytest.raises(LedgerUnavailable) as refused:
                call()
            assert "readonly" in str(refused.value) or "unable to open" in str(refused.value), (
                refused.value
            )
        assert Ledger.open(url).verify().kind == "value", "who may only read can still verify"
        shut.chmod(mode)
        return require_going_on(curator, drawn, handle, url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def elsewhere(function, *arguments):
    """What the function returns in a process of its own."""
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        return pool.apply(function, arguments)


def test_a_full_disk_at_every_step_of_a_release(tmp_path, measured):
    """Pages that are full to another mark, and room for none or some: the steps of a release all
    get their turn.
    """
    struck = []
    for part in range(8):
        folder = tmp_path / str(part)
        folder.mkdir()
        struck.append(elsewhere(full_disk, str(folder), "x" * (part * 128), 4096 * (part % 3)))
    assert {"charge", "value"} <= set(struck), struck
    measured(len(struck))


@pytest.mark.parametrize("room", [0, 2])
def test_a_database_that_may_not_grow(tmp_path, drawn, room):
    """SQLite's own limit of pages: SQLITE_FULL."""
    curator = make(url := str(tmp_path / "l.db"))
    engine = curator.ledger.storage._engine
    limit = {"pages": 0}

    def limited(connection, _record):
        if limit["pages"]:
            connection.execute(f"PRAGMA max_page_count={limit['pages']}")

    sa.event.listen(engine, "connect", limited)
    curator.release(curator.evaluate(MEAN), NOISE)
    limit["pages"] = pathlib.Path(url).stat().st_size // 4096 + room
    engine.dispose()
    handle, told = release_until_refused(curator)
    assert "full" in str(told)
    assert not told.uncertain, "SQLite asks for the page before it commits"
    limit["pages"] = 2**30
    require_going_on(curator, drawn, handle, url)


def test_what_may_not_be_written_is_not_charged():
    assert [elsewhere(read_only, what) for what in ("file", "folder")] == ["charge"] * 2


def test_a_file_that_is_gone_is_not_begun_anew(tmp_path, drawn):
    """SQLite would make an empty file without a word, and a new ledger knows nothing of what was
    spent.
    """
    curator = make(url := str(tmp_path / "l.db"))
    file = tmp_path / "l.db"
    away = tmp_path / "away.db"
    handle = curator.evaluate(MEAN)
    file.rename(away)
    for call in (
        lambda: curator.release(handle, NOISE),
        curator.statement,
        lambda: Ledger.open(url),
    ):
        with pytest.raises(LedgerUnavailable, match=r"gone|there is no ledger"):
            call()
    assert not file.exists()
    assert drawn.handles == []
    away.rename(file)
    require_going_on(curator, drawn, handle, url)


@pytest.mark.parametrize("how", ["moved", "written"])
def test_an_older_copy_under_a_running_curator_is_seen(tmp_path, drawn, how):
    """A backup put back makes room that was spent: whoever saw the newer head says so, before
    anything is charged.
    """
    curator = make(url := str(tmp_path / "l.db"))
    curator.release(MEAN, NOISE)
    shutil.copy(url, tmp_path / "old.db")
    curator.release(MEAN, NOISE)
    newest = pathlib.Path(url).read_bytes()
    head = curator.ledger.head().hash
    if how == "moved":
        (tmp_path / "old.db").rename(url)
    else:
        pathlib.Path(url).write_bytes((tmp_path / "old.db").read_bytes())
    handle = curator.evaluate(MEAN)
    before = len(drawn.handles)
    with pytest.raises(LedgerCorrupt, match="another copy"):
        curator.release(handle, NOISE)
    with pytest.raises(LedgerRolledBack, match="an older copy"):
        Ledger.open(url)
    pathlib.Path(f"{url}.fingerprints").unlink()
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        Ledger.open(url).verify(expect=head)
    assert len(drawn.handles) == before
    pathlib.Path(url).write_bytes(newest)
    require_going_on(curator, drawn, handle, url)


def test_a_value_answers_a_charge_and_nothing_else(tmp_path):
    curator = make(str(tmp_path / "l.db"))
    curator.release(MEAN, NOISE)
    for entry in (0, 99):
        with pytest.raises(LedgerCorrupt, match="another copy"):
            curator.ledger.store(entry, "release", [{"handle": "x", "value": [0.5]}])


def test_a_ledger_is_where_it_was_opened_wherever_the_process_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    curator = make("l.db")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    curator.release(MEAN, NOISE)
    assert Ledger.open(str(tmp_path / "l.db")).head().kind == "value"


def test_an_older_copy_under_a_process_that_is_behind_is_seen(tmp_path):
    """It wrote over the head that another process had kept, and slots were drawn twice."""
    file = tmp_path / "l.db"
    behind, ahead = make(str(file)), make(str(file))
    behind.release(MEAN, GaussianMechanism(20.0))
    older = file.read_bytes()
    ahead.release(MEAN, GaussianMechanism(20.0))
    file.write_bytes(older)
    with pytest.raises(LedgerRolledBack):
        behind.release(MEAN, GaussianMechanism(20.0))


def test_no_charge_is_added_to_a_total_that_was_changed(tmp_path):
    file = tmp_path / "l.db"
    make(str(file)).release(MEAN, GaussianMechanism(20.0))
    with contextlib.closing(sqlite3.connect(file)) as opened, opened:
        opened.execute("UPDATE dpbo_entries SET total = '0' WHERE seq = 2")
    with pytest.raises(LedgerCorrupt, match="record 2"):
        make(str(file))
