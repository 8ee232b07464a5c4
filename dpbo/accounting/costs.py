"""Costs: what is added up against a cap. One exact fraction for a privacy filter, one number of slots a planned event for a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

_GRAIN = 1 << 128
_LONGEST = 512


@dataclass(frozen=True)
class Cost:
    """A vector of exact numbers, added and compared part by part."""

    parts: tuple[Fraction, ...]

    @classmethod
    def of(cls, *parts: Fraction | int) -> Self:
        """The cost with these parts."""
        return cls(tuple(map(Fraction, parts)))

    @classmethod
    def read(cls, text: str) -> Self:
        """The cost that `str` wrote."""
        return cls.of(*map(Fraction, text.split(" ")))

    def __str__(self) -> str:
        return " ".join(map(str, self.parts))

    def __add__(self, other: Cost) -> Cost:
        return Cost(tuple(_added(a, b) for a, b in zip(self.parts, other.parts, strict=True)))

    def __le__(self, other: Cost) -> bool:
        return all(a <= b for a, b in zip(self.parts, other.parts, strict=True))

    def __mul__(self, share: Fraction) -> Cost:
        return Cost(tuple(part * share for part in self.parts))

    @property
    def nothing(self) -> Cost:
        """Zero in every part."""
        return self * Fraction(0)

    def first_beyond(self, cap: Cost) -> int:
        """Which part passes the cap first."""
        return next(i for i, (a, b) in enumerate(zip(self.parts, cap.parts, strict=True)) if a > b)


def _added(total: Fraction, cost: Fraction) -> Fraction:
    """Exact while the denominator is short (always for a few distinct events), else up to a multiple of 2^-128."""
    exact = total + cost
    return exact if exact.denominator.bit_length() <= _LONGEST else Fraction(math.ceil(exact * _GRAIN), _GRAIN)
