"""What holds private content: it cannot be read, pickled or turned into numbers."""

from typing import Any, NoReturn, Self

from dpbo.errors import OpacityError


class Opaque:
    """No tensor, no array, no pickle; copying gives the same object, because there is one budget
    and one answer.
    """

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        self._refuse(
            "pickled",
            "For workers use objective.submit(x, executor), or make a Curator in each process, with"
            " one ledger file.",
        )

    def __array__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        self._refuse("turned into an array")

    def __float__(self) -> NoReturn:
        # other libraries ask for it, such as Ax for a trial's data
        self._refuse("turned into a number")

    def item(self) -> NoReturn:
        """Refused: only `release` lets a number out."""
        self._refuse("read")

    def _refuse(
        self, what: str, remedy: str = "Use curator.release(...), or objective.release(handle)."
    ) -> NoReturn:
        raise OpacityError(f"a {type(self).__name__} is opaque and cannot be {what}. {remedy}")
