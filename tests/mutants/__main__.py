"""Try every mutant, print which test kills it, and fail where one lives that should not.

    python -m tests.mutants            those written by hand, and of those made by rule an eighth, always the same
    python -m tests.mutants written    by hand alone; `generic` is that eighth, `every` all made by rule, any other word a part of names
    python -m tests.mutants --keep     and write which test killed each to killers.json
    python -m tests.mutants --learn F  against the tests that run its lines, by F: pytest --cov --cov-context=test --junitxml=F.xml

Each meets the test that killed it last, then tests near it. Survivors, explained in survivors.json, must be made by rule: no reason excuses
one written by hand.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.mutants import blind, written
from tests.mutants.covered import EVERY, covering
from tests.mutants.generic import Generic, generic
from tests.mutants.hunting import hunt
from tests.mutants.known import KILLERS, explained, read, write
from tests.mutants.mutant import Sabotage
from tests.mutants.near import near
from tests.mutants.swift import hunt_swiftly

SHARE = 8  # of the mutants made by rule, one in so many is `generic`
APART = " (apart)"  # seen in a process of its own alone, by a sabotaged copy


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every mutant is killed or explained."""
    asked = _parsed(arguments)
    mutants = [mutant for mutant in _chosen(asked.which) if not (isinstance(mutant, Generic) and explained(mutant))]
    killers, began = read(KILLERS), time.monotonic()
    made = {mutant.within(): mutant for mutant in _chosen(["written", "every"])}
    learned = covering(asked.learn) if asked.learn else {}
    kills = Counter((_place(made[known]), _test(killer)) for known, killer in killers.items() if known in made)
    lived = list[str]()

    def plan(mutant: Sabotage) -> Iterator[Sequence[str]]:
        return _groups(mutant, killers, learned, kills)

    def found(mutant: Sabotage, killer: str) -> None:
        print(f"{mutant.name}  ->  {killer or 'LIVES'}", flush=True)
        if killer:
            killers[mutant.within()] = killer
            kills[_place(mutant), _test(killer)] += 1
        else:
            lived.append(mutant.name)
            killers.pop(mutant.within(), None)
        if asked.keep:
            write(KILLERS, {known: killer for known, killer in killers.items() if known in made})

    slow = [mutant for mutant in mutants if _is_apart(killers.get(mutant.within(), ""))]

    def found_swiftly(mutant: Sabotage, killer: str) -> None:
        if killer or (isinstance(mutant, Generic) and mutant.within() not in killers):
            found(mutant, killer)
        else:
            slow.append(mutant)

    def found_slowly(mutant: Sabotage, killer: str) -> None:
        found(mutant, killer if not killer or _is_apart(killer) else killer + APART)

    swift = [mutant for mutant in mutants if mutant not in slow]
    left = hunt_swiftly(
        swift, ["tests"], lambda mutant: itertools.chain.from_iterable(plan(mutant)), asked.workers, asked.seconds, found_swiftly
    )
    if asked.quick:
        for mutant in [*left, *slow]:
            found(mutant, "")
    else:
        hunt([*left, *slow], plan, asked.workers, found_slowly)
    print(f"{len(mutants) - len(lived)} of {len(mutants)} mutants killed in {time.monotonic() - began:.0f} s")
    for name in lived:
        print(f"LIVES: {name}")
    return 1 if lived else 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("which", nargs="*", help="written, generic, or parts of names")
    parser.add_argument("--learn", metavar="FILE", help="coverage data with a context a test")
    parser.add_argument("--keep", action="store_true", help="write what killed each to killers.json")
    parser.add_argument("--quick", action="store_true", help="not the slow way as well: what needs it is told as living")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long one mutant is hunted the quick way")
    return parser.parse_args(arguments)


def _chosen(which: Sequence[str]) -> list[Sabotage]:
    by_hand: list[Sabotage] = [*written.MUTANTS, *blind.MUTANTS]
    every: list[Sabotage] = [*generic()]
    groups = {"written": by_hand, "generic": [mutant for mutant in every if int(mutant.within(), 16) % SHARE == 0], "every": every}
    found = [mutant for word in which or ["written", "generic"] for mutant in groups.get(word, [])]
    words = [word for word in which if word not in groups]
    return found + [mutant for mutant in by_hand + every if any(word in mutant.name for word in words)]


def _place(mutant: Sabotage) -> str:
    """The function it changes, of one made by rule."""
    return mutant.name.partition(":")[0]


def _is_apart(killer: str) -> bool:
    return killer.endswith((APART, " (import)"))


def _test(killer: str) -> str:
    """Its name, without how it failed."""
    return killer.partition(" (")[0]


def _groups(
    mutant: Sabotage, killers: Mapping[str, str], learned: Mapping[str, Mapping[int, list[str]]], kills: Mapping[tuple[str, str], int]
) -> Iterator[Sequence[str]]:
    """Tests to try in turn: the last killer, thrice where it draws at random; then what runs these lines, or the tests near it."""
    if killer := _test(killers.get(mutant.within(), "")):
        yield from [[killer]] * 3
    if learned:
        lines = learned.get(mutant.file, {})
        runs = dict.fromkeys(test for line in sorted(mutant.lines()) for test in lines.get(line, []))
        runs = runs or dict.fromkeys(lines.get(EVERY, []))  # a module's own lines run before any test
        own = tuple(next(near(mutant.file)))
        # what killed others in this function; then the file's own tests; then the quickest
        tests = sorted(runs, key=lambda test: (-kills[_place(mutant), test], not test.startswith(own)))
        for start in range(0, len(tests), 40):
            yield tests[start : start + 40]
    else:
        yield from near(mutant.file)


if __name__ == "__main__":
    sys.exit(main())
