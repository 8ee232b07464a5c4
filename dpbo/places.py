"""What this machine's user keeps between programs: the folder of dpbo's state, and in it the
ledgers of data sets that were named without a place.
"""

import hashlib
import os
import pathlib
import re

from dpbo.errors import InputError, LedgerUnavailable

# The variable of the environment that names the folder.
STATE = "DPBO_STATE"
OTHER_FOLDER = (
    "Where the folder cannot be written, name another one in the environment variable DPBO_STATE,"
    " and move what this one holds there: a data set's ledger is looked for in that folder alone."
)
# Letters of a data set's name in a file's name.
_LONGEST = 60


def state_folder() -> pathlib.Path:
    """The folder of the user's state: `DPBO_STATE`, else `dpbo` in `XDG_STATE_HOME` or
    `~/.local/state`.

    Raises:
        InputError: `DPBO_STATE` is a relative path.
        LedgerUnavailable: there is no home directory, as of a user without an entry in the system.
    """
    try:
        if named := os.environ.get(STATE):
            folder = pathlib.Path(named).expanduser()
            if not folder.is_absolute():
                remedy = "By a relative one each working folder would have ledgers of its own."
                raise InputError(STATE, named, "a whole path", remedy)
            return folder
        given = pathlib.Path(os.environ.get("XDG_STATE_HOME", "")).expanduser()
        # A relative path there is to be ignored, by the specification of that variable.
        home = given if given.is_absolute() else pathlib.Path("~/.local/state").expanduser()
    except RuntimeError:
        raise LedgerUnavailable(
            "what outlives a program is kept in the user's home directory, and this user has none."
            " Name a folder that stays in the environment variable DPBO_STATE."
        ) from None
    return home / "dpbo"


def make_state_folder() -> pathlib.Path:
    """The folder, made for its owner alone where there is none. Raises OSError."""
    folder = state_folder()
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    return folder


def ledger_name(dataset: str) -> str:
    """The name of the file of a data set's ledger."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", dataset)[:_LONGEST].strip(".-")
    # Two names may have the same letters left.
    digest = hashlib.sha256(dataset.encode(errors="replace")).hexdigest()[:8]
    return f"{readable or 'dataset'}-{digest}.db"


def ledger_of(dataset: str) -> pathlib.Path:
    """The file of the ledger that a data set has by its name alone, whatever folder a program is
    run from.

    Raises:
        InputError: `DPBO_STATE` is a relative path.
        LedgerUnavailable: the folder cannot be made.
    """
    try:
        return make_state_folder() / ledger_name(dataset)
    except OSError as error:
        raise LedgerUnavailable(
            f"the folder {str(state_folder())!r}, where the ledger of a named data set is kept,"
            f" cannot be made: {error.strerror}. {OTHER_FOLDER} Or give ledger=, a file or a"
            " server's URL."
        ) from None


def place_named(place: str) -> str:
    """The file of the ledger of a data set, where this is its name and no file has it; else what
    was given.
    """
    # A folder may have the name of a data set.
    if "://" in place or pathlib.Path(place).is_file():
        return place
    file = state_folder() / ledger_name(place)
    return str(file) if file.exists() else place
