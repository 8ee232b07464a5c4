"""Which classes of attack a test tries, read from the source: decorators, and `pytestmark` of its class and module.

`python -m tests.attacks.marks` writes CONTRIBUTING.md's table of attacks anew.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
CLASSES = {
    "A1": "float holes: supports of neighbours are equal",
    "A2": "precision: trailing zeros tell nothing, releases lie on a public grid",
    "A3": "timing: time does not go with the noise",
    "A4": "float sensitivity: sums are exact, in any order",
    "A5": "NaN, infinity, huge, empty, hostile arguments",
    "A6": "clipped computed, raw used: replay of every release",
    "A7": "data-dependent control flow: frozen releases give the same bits",
    "A8": "data set size: one unit fewer changes nothing public",
    "A9": "adjacency constants: the worst pair attains the bound",
    "A10": "under-charged selection: exact laws against their curves",
    "A11": "sparse vector variants: the broken ones are rejected",
    "A12": "unused noise: two points",
    "A13": "sign swaps: the best without noise",
    "A14": "underflow, edges of the samplers",
    "A15": "accountant: monotone, round trips, against other programs",
    "A16": "resume and concurrency: killed, shared, full disk, corrupted",
    "A17": "randomness: forks, ranks, seeds",
    "A18": "projection: column space and known rows",
    "A19": "conditional guarantees: the construction that breaks them",
    "A20": "groups: all rows of a unit together",
    "A21": "side outputs: nothing public holds a private number",
    "A22": "several runs on one data set share one budget",
    "A23": "sampling: Poisson, charged as Poisson",
    "A24": "end to end: whole runs audited to nine tenths of the claim",
    "A25": "the noise's generator: its state from what was released",
    "A26": "labels by identity, type or encoding: the number of units of every kind",
    "A27": "one Poisson sample for several steps, a displaced hook, accumulation",
    "A28": "roles by place: removing one record moves no other",
    "A29": "rates and divisors computed from the number of records",
    "A30": "resume under another question: other data, score or estimator behind one name",
}
BEGIN, END = "<!-- attacks: written by python -m tests.attacks.marks -->\n", "<!-- attacks end -->"


def marks_of(node: str) -> set[str]:
    """The classes of `tests/x/test_y.py::TestA::test_b`, or of `::TestA`. Raises LookupError if there is no such test."""
    file, *names = node.split("::")
    if not (ROOT / file).exists():
        raise LookupError(f"there is no file {file}")
    inner: ast.AST = _parsed(ROOT / file)
    found = _named(inner)
    for name in names:
        parts = [p for p in getattr(inner, "body", []) if isinstance(p, (ast.FunctionDef, ast.ClassDef)) and p.name == name]
        if not parts:
            raise LookupError(f"there is no {node}")
        inner = parts[-1]
        found |= _named(inner)
    return found


def by_class() -> dict[str, dict[str, bool]]:
    """For each class, the files of tests/attacks and the other folders whose tests try it, and whether one of these tests is not deep."""
    found: dict[str, dict[str, bool]] = {name: {} for name in CLASSES}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        module, home = _parsed(path), path.relative_to(ROOT / "tests").with_suffix("")
        place = (home if home.parts[0] == "attacks" else home.parent).as_posix()
        for part, outer in _tests(module, _named(module)):
            marks = outer | _named(part)
            for name in marks - {"deep"}:
                found[name][place] = found[name].get(place, False) or "deep" not in marks
    return found


def table() -> str:
    """The table of attacks in Markdown."""
    found, lines = by_class(), ["| class | what dpbo tests | where |", "|---|---|---|"]
    for name, title in CLASSES.items():
        where = ", ".join(f"`{place}`" + ("" if quick else " (deep)") for place, quick in found[name].items())
        lines.append(f"| {name} | {title} | {where} |")
    return "\n".join(lines) + "\n"


def contributing(text: str) -> str:
    """CONTRIBUTING.md with the table of today."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def _tests(outer: ast.AST, marks: set[str]) -> Iterator[tuple[ast.AST, set[str]]]:
    """Test functions, and test classes that inherit their tests, each with the marks of what is around it."""
    for part in getattr(outer, "body", []):
        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_"):
            yield part, marks
        elif isinstance(part, ast.ClassDef) and part.name.startswith("Test"):
            if part.bases:
                yield part, marks
            yield from _tests(part, marks | _named(part))


@functools.cache
def _parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def _named(part: ast.AST) -> set[str]:
    """What a decorator of this function or class, or `pytestmark` in this class or module, says: classes of attack, and "deep"."""
    assigned = [line.value for line in getattr(part, "body", []) if isinstance(line, ast.Assign) and _is_pytestmark(line)]
    found: set[str] = set()
    for expression in [*getattr(part, "decorator_list", []), *assigned]:
        inside = list(ast.walk(expression))
        if any(isinstance(node, ast.Attribute) and node.attr == "attack" for node in inside):
            found |= {node.value for node in inside if isinstance(node, ast.Constant) and node.value in CLASSES}
        whole = expression.elts if isinstance(expression, ast.List) else [expression]  # not a mark inside a parametrisation
        found |= {node.attr for node in whole if isinstance(node, ast.Attribute) and node.attr == "deep"}
    return found


def _is_pytestmark(line: ast.Assign) -> bool:
    return [getattr(target, "id", "") for target in line.targets] == ["pytestmark"]


if __name__ == "__main__":
    page = ROOT / "CONTRIBUTING.md"
    page.write_text(contributing(page.read_text()))
