"""An entropy that is known beforehand: the words that a draw is to see, in the order in which it
asks.
"""

from collections.abc import Iterator

import mpmath
import numpy as np

_MOST = 12


def words_of(share: mpmath.mpf) -> tuple[int, int, int]:
    """The first 192 bits of a share of 1; the caller sets the digits that mpmath carries."""
    bits = int(mpmath.floor(share * mpmath.mpf(2) ** 192))
    return bits >> 128, bits >> 64 & 2**64 - 1, bits & 2**64 - 1


class Words:
    """Answers in turn, one word or several at once, and then words from the middle; `asked` is how
    often it was called.
    """

    def __init__(self, *answers: int | tuple[int, ...], middle: bool = False) -> None:
        self._left: Iterator[int | tuple[int, ...]] = iter(answers)
        self._middle = middle
        self.asked = 0

    def __call__(self, size: int) -> bytes:
        self.asked += 1
        assert self.asked < _MOST, "asks for ever"
        answer = next(self._left, None)
        if answer is None:
            assert self._middle, "no more bits should be needed"
            answer = (1 << 63,) * (size // 8)
        words = np.array(answer, dtype="<u8").reshape(-1)
        assert size == 8 * len(words)
        return words.tobytes()
