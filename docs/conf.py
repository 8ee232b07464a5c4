"""Sphinx builds the pages beside this file, and the reference from the docstrings: `make docs`."""

import importlib
import inspect
import pathlib
import re
from typing import Any

from dpbo.statement import form

project, author, release = "dpbo", "the dpbo authors", "0.1"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "differentially private Bayesian optimisation", "page_width": "1100px"}
autodoc_typehints = "none"  # signatures have them
autodoc_preserve_defaults = True
autodoc_default_options = {  # not ours, or told as an attribute
    "exclude-members": "set_fit_request, set_score_request, set_predict_request, optimizer"
}
napoleon_custom_sections = [("Keyword args", "params_style")]
myst_heading_anchors = 3

PACKAGES = (
    "dpbo.curator", "dpbo.queries", "dpbo.mechanisms", "dpbo.accounting", "dpbo.models", "dpbo.acquisition", "dpbo.algorithms",
    "dpbo.papers.kusner", "dpbo.papers.dpgibo", "dpbo.papers.po_gp_ucb", "dpbo.papers.em", "dpbo.integrations", "dpbo.integrations.opacus",
    "dpbo.integrations.http", "dpbo.papers.kusner.bounds", "dpbo.papers.dpgibo.bounds", "dpbo.papers.po_gp_ucb.bounds",
    "dpbo.testing", "dpbo.run_counts", "dpbo.events", "dpbo.errors", "dpbo.plots", "dpbo",
)  # fmt: skip
_PAGES = {"docs/measured.md": "measured.md", "docs/recipes.md": "recipes.md", "docs/choosing.md": "choosing.md",
          "docs/machines.md": "machines.md", "docs/papers/index.md": "papers/index.md",
          "docs/glossary.md": "glossary.md", "docs/decisions/index.md": "decisions/index.md", "notebooks/quickstart.py": "quickstart.md",
          "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}  # fmt: skip


def _public(package: str) -> dict[str, Any]:
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [n for n, v in vars(module).items() if getattr(v, "__module__", "") == package]
    return {name: getattr(module, name) for name in names if not name.startswith("_") and not inspect.ismodule(getattr(module, name))}


def _entry(package: str, name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        return [f".. autoclass:: {package}.{name}", "   :members:", ""]
    return [f".. autofunction:: {package}.{name}", ""] if inspect.isroutine(value) else [f"``{package}.{name}`` = ``{value}``", ""]


def _write_reference(folder: pathlib.Path) -> None:
    """A page a package: its doc, then each public name; a name that has its doc on another page points there."""
    folder.mkdir(exist_ok=True)
    home: dict[int, str] = {}
    for package in PACKAGES:
        lines = [package, "=" * len(package), "", f".. automodule:: {package}", ""]
        for name, value in _public(package).items():
            if id(value) in home:
                lines += [f"``{package}.{name}``: :obj:`{home[id(value)]}`", ""]
            else:
                home[id(value)] = f"{package}.{name}"
                lines += _entry(package, name, value)
        (folder / f"{package}.rst").write_text("\n".join(lines) + "\n")


def _write_notebook(source: pathlib.Path, page: pathlib.Path) -> None:
    """A notebook's cells as text and code."""
    cells = source.read_text().split("# %%")[1:]
    texts = [re.sub(r"^# ?", "", cell.removeprefix(" [markdown]\n"), flags=re.MULTILINE) if "[markdown]" in cell[:12]
             else f"```python\n{cell.strip()}\n```\n" for cell in cells]  # fmt: skip
    page.write_text("\n".join(texts))


def _plain(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001 (Sphinx passes them)
    """Our docstrings are plain text: bars and final underscores mean themselves."""
    for i, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", part.replace("|", r"\|")) for part in parts[::2]]
        lines[i] = "`".join(parts)


def _linked(app: Any, path: pathlib.Path, name: str, content: list[str]) -> None:  # noqa: ARG001 (Sphinx passes them)
    """Links between files of the repository lead to the pages that hold them."""
    for file, page in _PAGES.items():
        content[0] = content[0].replace(f"]({file})", f"]({page})")
    content[0] = content[0].replace("](docs/pictures/", "](pictures/")


def setup(app: Any) -> None:
    """Write what is made from the code before pages are read."""
    folder = pathlib.Path(app.srcdir)
    _write_reference(folder / "api")
    (folder / "form.md").write_text(form())
    _write_notebook(folder.parent / "notebooks" / "quickstart.py", folder / "quickstart.md")
    app.connect("autodoc-process-docstring", _plain, priority=400)  # before napoleon
    app.connect("include-read", _linked)
