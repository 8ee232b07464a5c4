"""Which module may import which, and the table of it in CONTRIBUTING.md: `python -m
tests.layers`.
"""

import ast
import pathlib
import sys

PAGE = pathlib.Path(__file__).parents[1] / "CONTRIBUTING.md"
MARKS = "<!-- layers: written by python -m tests.layers -->", "<!-- layers end -->"

# A module of the core may import from its own layer and from those above it. No module of the core
# may import a wing.
CORE: list[tuple[str, str]] = [
    (
        (
            "_version errors extras validation fingerprint isolation hidden_run notebook progress"
            " _mpmath opacus_name run_counts events entropy places"
        ),
        (
            "the version; errors; libraries that only parts need; arguments checked against"
            " annotations; digests of content; generators and warnings kept apart from private"
            " code; tables for notebooks; progress bars; the accountant's name in Opacus; the"
            " number of hidden runs; what a release costs; the only source of randomness; the"
            " folder of what a user keeps"
        ),
    ),
    ("privacy statement", "who is protected, and what is guaranteed"),
    (
        "accounting queries mechanisms release",
        (
            "from events to (epsilon, delta), without torch; questions, each with its clipping and"
            " its proof; laws of noise, one a file; a noised answer. Only the curator calls"
            " `_evaluate` and `_sample`"
        ),
    ),
    ("space", "search spaces"),
    (
        "models acquisition",
        (
            "public Gaussian processes and acquisition functions: they see released values and"
            " points, never records"
        ),
    ),
    ("ledger", "the one table of what was promised, charged and released"),
    (
        "records",
        (
            "the private records: their view, their public form, labels, digests, and checks of"
            " likely mistakes about them"
        ),
    ),
    ("curator", "the trusted side: evaluation, prices, reservations, ranks and the statement"),
    (
        "objective algorithms planning",
        "the private objective, the algorithms over it, and what a budget buys",
    ),
]
# A wing may import the core and the wings that are named here.
WINGS: dict[str, tuple[str, str]] = {
    "gibo": (
        "",
        "DP-GIBO: algorithm, design of points, gradient query, gradient posterior, theory",
    ),
    "search": ("gibo", "DPSearch and rehearse: hyper-parameter search in scikit-learn's words"),
    "dpsgd": ("", "Opacus: engine, noise, accountant, tuning; the best of hidden runs"),
    "papers": (
        "",
        "published algorithms whose guarantee is conditional, or that are kept for comparison",
    ),
    "integrations": ("gibo", "Optuna and Ax"),
    "reporting": ("search integrations gibo", "the report's page, pictures and released values"),
    "testing": ("", "contracts, audits and replay, shipped for users"),
}
# No file of these imports one that leads back to it.
ROOMS = "records ledger curator"
# What starts programs may import everything.
PROGRAMS = "demo __main__"


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement may import."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return []


def circles(root: pathlib.Path) -> list[list[str]]:
    """Files of the rooms that import one another in a circle, also within a function or for types
    alone: each strongly connected component of more than one.
    """
    files = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts): path
        for room in ROOMS.split()
        for path in (root / room).glob("*.py")
    }
    after = {
        name: {one for node in ast.walk(ast.parse(path.read_text())) for one in imported(node)}
        & files.keys()
        for name, path in files.items()
    }
    for _ in files:
        after = {
            name: reached.union(*(after[one] for one in reached)) for name, reached in after.items()
        }
    together = {
        tuple(sorted(other for other in after[name] if name in after[other]))
        for name in files
        if name in after[name]
    }
    return sorted(map(list, together))


def table() -> str:
    """The layers and wings as Markdown."""
    rows = ["| where | may import | what |", "|---|---|---|"]
    for number, (names, words) in enumerate(CORE):
        rows.append(
            f"| {_code(names)} | {'its own row' if number == 0 else 'the rows to here'} | {words} |"
        )
    for wing, (others, words) in WINGS.items():
        rows.append(
            f"| {_code(wing)} | the rows of the core{f' and {_code(others)}' if others else ''} |"
            f" {words} |"
        )
    rows.append(f"| {_code(PROGRAMS)} | all | the demonstration and the command line |")
    return "\n".join(rows)


def _code(names: str) -> str:
    return " ".join(f"`{name}`" for name in names.split())


def page(text: str) -> str:
    """The page with today's table."""
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{table()}\n{MARKS[1]}{after}"


def main() -> int:
    PAGE.write_text(page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
