"""Records that each process loads for itself."""

import uuid
from collections.abc import Callable
from typing import Any

from dpbo.errors import InputError
from dpbo.records.containers import none_if_raised
from dpbo.validation import checked

_loaded: dict[str, Any] = {}


@checked
class Source:
    """Private records that each process loads for itself.

    Args:
        load: picklable, without arguments. It must give the same records in the same order
            everywhere, because labels and positions refer to that order.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        if not callable(load):
            raise InputError("load", load, "a callable without arguments")
        self._load = load
        self._key = uuid.uuid4().hex

    def records(self) -> Any:
        """The records, loaded at most once in each process. For the curator and its workers."""
        if self._key not in _loaded:
            _loaded[self._key] = self._load()
        return _loaded[self._key]


def load(records: Any) -> Any:
    if not isinstance(records, Source):
        return records
    if (loaded := none_if_raised(records.records)) is None:
        raise InputError(
            "records",
            records,
            "a Source that loads in this process",
            "Call its `load` directly to see why it fails.",
        )
    return loaded
