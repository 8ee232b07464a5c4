"""Which classes of attack a test tries, read from the source: decorators, and `pytestmark` of its
class and module.

`python -m tests.attacks.marks` writes CONTRIBUTING.md's table of attacks and
SECURITY.md's of likely mistakes anew.
"""

import ast
import functools
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
attack = pytest.mark.attack
# `slip("what people write", "what dpbo does")`: a likely mistake, and its check.
slip = pytest.mark.slip
CLASSES = {
    "A1": "float holes: supports of neighbours are equal",
    "A2": "precision: trailing zeros tell nothing, releases lie on a public grid",
    "A3": "the time that a draw takes shows how large its noise is",
    "A4": "float sensitivity: sums are exact, in any order",
    "A5": "NaN, infinity, huge, empty, hostile arguments",
    "A6": "the code computes the clipped value but releases the unclipped one",
    "A7": "data-dependent control flow: frozen releases give the same bits",
    "A8": "data set size: one unit fewer changes nothing public",
    "A9": "adjacency constants: the worst pair attains the bound",
    "A10": "under-charged selection: exact laws against their curves",
    "A11": "sparse vector variants: the broken ones are rejected",
    "A12": "the noise is drawn but not added, so a release tells two data sets apart",
    "A13": "a swapped sign makes the search return the worst candidate instead of the best",
    "A14": "underflow, edges of the samplers",
    "A15": "accountant: monotone, round trips, against other programs",
    "A16": "resume and concurrency: killed, shared, full disk, corrupted",
    "A17": "randomness: forks, ranks, seeds",
    "A18": "projection: column space and known rows",
    "A19": "a guarantee that rests on assumptions about the data is stated as if it always held",
    "A20": "only one record of a unit is protected, and not all of them together",
    "A21": "an error, a log, a name or a file shows a private number beside the releases",
    "A22": "each run on the same records spends a budget of its own",
    "A23": "a release is charged for Poisson sampling, but its records were sampled in another way",
    "A24": "a whole run leaks more than the sum of its charges states",
    "A25": "what was released reveals the state of the noise's generator, and so the noise",
    "A26": "labels are compared by identity, type or encoding, so the number of units is wrong",
    "A27": (
        "a DP-SGD step uses gradients or a sample that its charge does not cover, or is not charged"
        " at all"
    ),
    "A28": (
        "records are split by their place, so removing one moves another from training to"
        " validation"
    ),
    "A29": (
        "a sampling rate or a divisor is computed from the private number of records, and shows it"
    ),
    "A30": (
        "a run resumes under the name of another one, with other data, another score or another"
        " estimator"
    ),
    "A31": (
        "what was not noised leaves inside a released object: buffers, attributes, renormalised"
        " rows, optimizer state"
    ),
    "A32": (
        "what leaves tells which hidden run it came from: one stream of random numbers for all runs"
    ),
    "A33": "control flow follows a loss that was not noised",
    "A34": "one cell changes the form of a private table, and so other records' scores",
    "A35": "one record in several roles, or under several budgets, pays once",
    "A36": (
        "a user's own query or mechanism, as the documentation teaches it, breaks its declared"
        " bound"
    ),
    "A37": "a rank, or who relays messages, learns what another rank holds",
}
BEGIN = "<!-- attacks: written by python -m tests.attacks.marks -->\n"
END = "<!-- attacks end -->"
SLIPS = "<!-- slips: written by python -m tests.attacks.marks -->\n"
SLIPS_END = "<!-- slips end -->"


def marks_of(node: str) -> set[str]:
    """The classes of `tests/x/test_y.py::TestA::test_b`, or of `::TestA`. Raises LookupError if
    there is no such test.
    """
    file, *names = node.split("::")
    if not (ROOT / file).exists():
        raise LookupError(f"there is no file {file}")
    inner: ast.AST = _parsed(ROOT / file)
    found = _named(inner)
    for name in names:
        parts = [
            p
            for p in getattr(inner, "body", [])
            if isinstance(p, (ast.FunctionDef, ast.ClassDef)) and p.name == name
        ]
        if not parts:
            raise LookupError(f"there is no {node}")
        inner = parts[-1]
        found |= _named(inner)
    return found


def by_class() -> dict[str, dict[str, bool]]:
    """For each class, the files of tests/attacks and the other folders whose tests try it, and
    whether one of these tests is not deep.
    """
    found: dict[str, dict[str, bool]] = {name: {} for name in CLASSES}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        module = _parsed(path)
        home = path.relative_to(ROOT / "tests").with_suffix("")
        place = (home if home.parts[0] == "attacks" else home.parent).as_posix()
        for part, outer in _tests(module, _named(module)):
            marks = outer | _named(part)
            for name in marks - {"deep"}:
                found[name][place] = found[name].get(place, False) or "deep" not in marks
    return found


def table() -> str:
    found = by_class()
    lines = ["| class | what goes wrong, or what must hold | tests |", "|---|---|---|"]
    for name, title in CLASSES.items():
        where = ", ".join(
            f"`{place}`" + ("" if quick else " (deep)") for place, quick in found[name].items()
        )
        lines.append(f"| {name} | {title} | {where} |")
    return "\n".join(lines) + "\n"


def contributing(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def security(text: str) -> str:
    """SECURITY.md with its table of likely mistakes."""
    before, _, rest = text.partition(SLIPS)
    return before + SLIPS + slips() + SLIPS_END + rest.partition(SLIPS_END)[2]


def slips() -> str:
    """What `slip` says of each test that bears it, with the file of the test."""
    lines = ["| what is written in a hurry | what dpbo does | its test |\n", "|---|---|---|\n"]
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for part in ast.walk(_parsed(path)):
            for mark in getattr(part, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("slip"):
                    mistake, check = map(ast.literal_eval, mark.args)
                    place = path.relative_to(ROOT / "tests").with_suffix("")
                    lines.append(f"| {mistake} | {check} | `{place}` |\n")
    return "".join(lines)


def _tests(outer: ast.AST, marks: set[str]) -> Iterator[tuple[ast.AST, set[str]]]:
    """Test functions, and test classes that inherit their tests, each with the marks of what is
    around it.
    """
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
    """What a decorator of this function or class, or `pytestmark` in this class or module, says:
    classes of attack, and "deep".
    """
    assigned = [
        line.value
        for line in getattr(part, "body", [])
        if isinstance(line, ast.Assign) and _is_pytestmark(line)
    ]
    found: set[str] = set()
    for expression in [*getattr(part, "decorator_list", []), *assigned]:
        inside = list(ast.walk(expression))
        # `attack`, or `pytest.mark.attack`.
        if "attack" in {getattr(node, "attr", getattr(node, "id", None)) for node in inside}:
            found |= {
                node.value
                for node in inside
                if isinstance(node, ast.Constant) and node.value in CLASSES
            }
        # Not a mark inside a parametrisation.
        whole = expression.elts if isinstance(expression, ast.List) else [expression]
        found |= {
            node.attr for node in whole if isinstance(node, ast.Attribute) and node.attr == "deep"
        }
    return found


def _is_pytestmark(line: ast.Assign) -> bool:
    return [getattr(target, "id", "") for target in line.targets] == ["pytestmark"]


if __name__ == "__main__":
    page = ROOT / "CONTRIBUTING.md"
    page.write_text(contributing(page.read_text()))
    page = ROOT / "SECURITY.md"
    page.write_text(security(page.read_text()))
