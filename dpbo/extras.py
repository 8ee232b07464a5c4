"""Libraries that only parts of dpbo need, and the extra that installs each."""

import contextlib
from collections.abc import Iterator

from dpbo.errors import MissingLibrary

EXTRAS = {
    "ax": ("ax",),
    "federated": ("cryptography",),
    "gpu": ("triton",),
    "http": ("httpx", "starlette"),
    "optuna": ("optuna",),
    "plots": ("jinja2", "matplotlib"),
    "postgres": ("psycopg",),
    "testing": ("hypothesis", "pytest"),
}
"""The modules that parts of dpbo import only when they run, by the extra of pyproject.toml that
installs them.
"""


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports under this raise MissingLibrary, which names the extra, where a library is missing.

    A library that one of the extra's own libraries needs counts as well: installing the extra
    installs both.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingLibrary(str(error.name), extra) from None
