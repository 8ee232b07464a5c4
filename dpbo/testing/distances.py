"""How far an exact answer moved, against what its query declares; in exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dpbo.privacy import Sensitivity

_SLACK = 1 + Fraction(1, 2**50)  # `scale` and the norms are floats; the mechanisms' own rounding covers 2^-48


Distances = tuple[Fraction, Fraction, Fraction]


def moved(before: Sequence[int], after: Sequence[int], quanta: Sequence[float], declared: Sensitivity) -> Distances:
    """l1, squared l2 and linf distance of two lattice vectors, or tables, in the sensitivity's own units."""
    rows = 1 if declared.block is None else len(before) // declared.block
    steps = [Fraction(x - y) * Fraction(q) for x, y, q in zip(before, after, [*quanta] * rows, strict=True)]
    scaled = [abs(step) / Fraction(unit) for step, unit in zip(steps, declared.scale * rows, strict=True)]
    return sum(scaled, Fraction(0)), sum((s * s for s in scaled), Fraction(0)), max(scaled)


def require_within(before: Sequence[int], after: Sequence[int], quanta: Sequence[float], declared: Sensitivity, what: str) -> None:
    """Raises AssertionError, naming the norm, where the answer moved further than declared, or in more than one block."""
    if declared.block is not None:
        places = {i // declared.block for i, (x, y) in enumerate(zip(before, after, strict=True)) if x != y}
        assert len(places) <= 1, f"{what} moved in {len(places)} blocks, declared one"
    l1, l2_squared, linf = moved(before, after, quanta, declared)
    bounds = {"l1": (l1, Fraction(declared.l1)), "l2": (l2_squared, Fraction(declared.l2) ** 2), "linf": (linf, Fraction(declared.linf))}
    for norm, (distance, bound) in bounds.items():
        assert distance <= bound * _SLACK**2, f"{what} moved by {float(distance):.6g} in {norm}, declared {float(bound):.6g} (l2 squared)"
