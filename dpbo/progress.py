"""Progress bars that count and show no times: how long private work takes may depend on the
records.
"""

import sys
from typing import Any

from tqdm import tqdm

from dpbo.validation import printable

# Seconds before a bar is drawn: what ends sooner draws none.
DELAY = 0.1


def say(text: str) -> None:
    """Print a line beside the bars, at once, also into a file or a pipe."""
    tqdm.write(text)
    sys.stdout.flush()


def progress_bar(
    name: str, total: int, *, done: int = 0, rank: int = 0, hidden: bool = False
) -> Any:
    """A tqdm bar on stderr; shown on a terminal only, and by the first of several ranks; not at all
    if `hidden`.
    """
    form = "{desc}: {n_fmt}/{total_fmt} |{bar}|"
    return tqdm(
        total=total,
        initial=done,
        desc=printable(name),
        disable=True if rank or hidden else None,
        delay=DELAY,
        bar_format=form,
    )
