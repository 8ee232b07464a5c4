"""Sphinx builds the pages beside this file, their figures from benchmarks/results, the notebooks,
and the reference from the docstrings: `make docs`.
"""

import functools
import importlib
import inspect
import pathlib
import re
import shutil
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from benchmarks.figures import rendered
from dpbo._version import __version__
from dpbo.statement import form

project, author, release = "dpbo", "the dpbo authors", __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
autosummary_generate = False
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # the notebooks hold their outputs
html_theme = "pydata_sphinx_theme"
html_title = "dpbo"
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
copyright = author
autodoc_typehints = "none"  # signatures have them
autodoc_preserve_defaults = True
napoleon_custom_sections = [
    (f"{group} args", "params_style")
    for group in (
        "Keyword",
        "Ledger",
        "Score",
        "Permission",
        "Machine",
        "Method",
        "Privacy",
        "Run",
    )
]
# names in docstrings are code, and links where they are documented
default_role = "py:obj"
toc_object_entries_show_parents = "hide"
myst_heading_anchors = 3

# The pages of the reference: file, title, what is there, modules.
PARTS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("dpbo", "dpbo", "the names to start with", ("dpbo",)),
    (
        "search",
        "Search in scikit-learn's words",
        "`DPSearch`, its strategies, `rehearse`",
        ("dpbo.search",),
    ),
    (
        "curator",
        "Curator and ledger",
        "what holds the records, and what was released",
        ("dpbo.curator", "dpbo.ledger"),
    ),
    (
        "queries",
        "Queries",
        "questions about the records, each with a proven sensitivity",
        ("dpbo.queries",),
    ),
    ("mechanisms", "Mechanisms", "laws of noise", ("dpbo.mechanisms",)),
    (
        "accounting",
        "Accounting",
        "from what releases cost to (epsilon, delta)",
        ("dpbo.accounting", "dpbo.events"),
    ),
    (
        "models",
        "Models and acquisition",
        "Gaussian processes, and the next point",
        ("dpbo.models", "dpbo.acquisition"),
    ),
    (
        "algorithms",
        "Algorithms",
        "loops over the private objective",
        ("dpbo.algorithms",),
    ),
    (
        "gibo",
        "DP-GIBO",
        "private gradients for many parameters",
        ("dpbo.gibo", "dpbo.gibo.bounds"),
    ),
    (
        "dpsgd",
        "DP-SGD",
        "training by Opacus, and its tuning",
        ("dpbo.dpsgd", "dpbo.run_counts"),
    ),
    (
        "integrations",
        "Optuna and Ax",
        "dpbo under their loops",
        ("dpbo.integrations", "dpbo.integrations.optuna", "dpbo.integrations.ax"),
    ),
    (
        "papers",
        "Published algorithms",
        "with what holds of their guarantees",
        (
            "dpbo.papers.kusner",
            "dpbo.papers.kusner.bounds",
            "dpbo.papers.po_gp_ucb",
            "dpbo.papers.po_gp_ucb.bounds",
            "dpbo.papers.em",
        ),
    ),
    (
        "plots",
        "Pictures",
        "of released values, budgets and plans",
        ("dpbo.reporting.plots",),
    ),
    (
        "testing",
        "Tests",
        "contracts, audits and replay for code of your own",
        ("dpbo.testing",),
    ),
    ("errors", "Errors", "classes of errors and warnings", ("dpbo.errors",)),
)
# Public only because another part of dpbo calls it: no user does.
INTERNAL = {
    "Curator": ("bind", "deliver", "hidden_draws", "item", "mark_probed"),
    "Handle": ("fingerprint_parts", "item"),
    "Ledger": ("alone", "charged"),
    "LedgerAccountant": ("get_optimizer_hook_fn", "protect"),
    "Planned": ("least_beside", "may_hold", "read", "require_kept"),
    "Query": ("fingerprint_parts", "try_on"),
    "Ranks": (
        "add_digests",
        "all_gather",
        "all_to_all",
        "assumptions",
        "count_units",
        "gather_mark",
        "in_shares",
        "new_id",
        "reduce",
        "reduce_tensor",
        "run_on_rank_0",
        "run_together",
        "send",
        "total",
        "unlike",
    ),
    "Session": ("is_model",),
    "Statement": ("change", "facts", "opening", "titles", "whose"),
}
# Where the site has what a link in a file at the repository's root leads to.
_PAGES = {
    "](docs/": "](",
    "](notebooks/": "](tutorials/",
    "](CHANGELOG.md": "](changes.md",
    "](CONTRIBUTING.md": "](contributing.md",
    "](SECURITY.md": "](security.md",
}


def _public(package: str) -> dict[str, Any]:
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [
        n for n, v in vars(module).items() if getattr(v, "__module__", "") == package
    ]
    return {
        name: getattr(module, name)
        for name in names
        if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
    }


def _members(value: type, documented: set[type]) -> list[str]:
    """What a class adds: its own methods and those of bases that have no entry, without what
    overrides a documented base's method, which that tells of, and without a contract's tests.
    """
    own = [
        kind
        for kind in value.__mro__
        if kind is value
        or (kind.__module__.startswith("dpbo.") and kind not in documented)
    ]
    # fields are told in the class's docstring, requests are scikit-learn's
    told = set(getattr(value, "__dataclass_fields__", ()))
    told |= set(getattr(value, "_fields", ()))
    for base in value.__mro__[1:]:
        told |= set(vars(base)) if base in documented else set()
    found = [
        name
        for kind in reversed(own)
        for name, member in vars(kind).items()
        if not name.startswith(("_", "test_"))
        and not name.endswith("_request")
        and (callable(member) or hasattr(member, "__get__"))
        and inspect.getdoc(getattr(value, name, None))
        and name not in told
    ]
    internal = INTERNAL.get(value.__name__, ())
    if unknown := set(internal) - set(found):
        raise AttributeError(f"INTERNAL: {value.__name__} has no {sorted(unknown)}")
    return [name for name in dict.fromkeys(found) if name not in internal]


def _entry(name: str, value: Any, documented: set[type]) -> list[str]:
    if inspect.isclass(value):
        lines = [f".. autoclass:: {name}", ""]
        for member in _members(value, documented):
            of = inspect.getattr_static(value, member)
            prop = isinstance(of, (property, functools.cached_property))
            kind = "property" if prop else "method"
            lines += [f"   .. auto{kind}:: {name}.{member}", ""]
        return lines
    return (
        [f".. autofunction:: {name}", ""]
        if inspect.isroutine(value)
        else [f"``{name}`` = ``{value}``", ""]
    )


def _heading(text: str, mark: str) -> list[str]:
    return [text, mark * len(text), ""]


def _write_reference(folder: pathlib.Path) -> None:
    """A page a part: for each module its doc, a sentence a name, then each name in full; a name
    that has its entry on another page points there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    modules = [module for *_, held in PARTS for module in held if module != "dpbo"] + [
        "dpbo"
    ]
    home: dict[int, str] = {}
    for module in modules:
        for name, value in _public(module).items():
            home.setdefault(id(value), f"{module}.{name}")
    documented = {
        value
        for module in modules
        for value in _public(module).values()
        if inspect.isclass(value)
    }
    listed = []
    for file, title, what, held in PARTS:
        listed += [f":doc:`{title} <{file}>`", f"   {what.replace('`', '``')}", ""]
        lines = _heading(title, "=")
        for module in held:
            lines += _heading(f"``{module}``", "-") if len(held) > 1 else []
            public = _public(module)
            lines += [
                f".. automodule:: {module}",
                "",
                ".. autosummary::",
                "   :nosignatures:",
                "",
            ]
            for value in public.values():
                lines.append("   ~" + home[id(value)].removeprefix(f"{module}."))
            lines.append("")
            for name, value in public.items():
                if home[id(value)] == f"{module}.{name}":
                    lines += _entry(f"{module}.{name}", value, documented)
        (folder / f"{file}.rst").write_text("\n".join(lines) + "\n")
    tree = [".. toctree::", "   :hidden:", "", *(f"   {file}" for file, *_ in PARTS)]
    text = [*_heading("Classes and functions", "="), *listed, *tree]
    (folder / "index.rst").write_text("\n".join(text) + "\n")


def _plain(*event: Any) -> None:
    """Our docstrings are plain text: bars and final underscores mean themselves."""
    lines: list[str] = event[-1]
    for i, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [
            re.sub(r"(?<=\w)_(?!\w)", r"\\_", part.replace("|", r"\|"))
            for part in parts[::2]
        ]
        lines[i] = "`".join(parts)


def _linked(app: Any, path: pathlib.Path, name: str, content: list[str]) -> None:  # noqa: ARG001
    """Links between files of the repository lead to the pages that hold them."""
    for there, here in _PAGES.items():
        content[0] = content[0].replace(there, here)


def _notebooks_linked(app: Any, name: str, content: list[str]) -> None:  # noqa: ARG001
    """Links to the repository's notebooks lead to their copies in tutorials/."""
    content[0] = content[0].replace("../notebooks/", "tutorials/")


def _rendered(app: Any, name: str, content: list[str]) -> None:
    """The pages' figures come from the stored rows."""
    if pathlib.Path(app.env.doc2path(name)).suffix == ".md":
        content[0] = rendered(content[0])


def setup(app: Any) -> None:
    """Write what is made from the code before pages are read."""
    folder = pathlib.Path(app.srcdir)
    _write_reference(folder / "api")
    (folder / "form.md").write_text(form())
    (folder / "tutorials").mkdir(exist_ok=True)
    for notebook in (folder.parent / "notebooks").glob("*.ipynb"):
        shutil.copy(notebook, folder / "tutorials")
    app.connect("autodoc-process-docstring", _plain, priority=400)  # before napoleon
    app.connect("include-read", _linked)
    app.connect("source-read", _notebooks_linked)
    app.connect("source-read", _rendered)
