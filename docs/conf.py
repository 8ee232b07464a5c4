"""Sphinx builds the pages beside this file, the notebooks, and the reference from the docstrings:
`make docs`.
"""

import importlib
import inspect
import pathlib
import re
import shutil
from typing import Any

from dpbo._version import __version__
from dpbo.statement import form

project, author, release = "dpbo", "the dpbo authors", __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
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
autodoc_default_options = {  # not ours, or told as an attribute
    "exclude-members": "set_fit_request, set_score_request, set_predict_request, optimizer"
}
napoleon_custom_sections = [("Keyword args", "params_style")]
myst_heading_anchors = 3

PACKAGES = (
    "dpbo.curator",
    "dpbo.queries",
    "dpbo.mechanisms",
    "dpbo.accounting",
    "dpbo.models",
    "dpbo.acquisition",
    "dpbo.algorithms",
    "dpbo.papers.kusner",
    "dpbo.gibo",
    "dpbo.papers.po_gp_ucb",
    "dpbo.papers.em",
    "dpbo.integrations",
    "dpbo.dpsgd",
    "dpbo.search",
    "dpbo.papers.po_gp_ucb.http",
    "dpbo.papers.kusner.bounds",
    "dpbo.gibo.bounds",
    "dpbo.papers.po_gp_ucb.bounds",
    "dpbo.testing",
    "dpbo.run_counts",
    "dpbo.events",
    "dpbo.errors",
    "dpbo.reporting.plots",
    "dpbo",
)
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


def _entry(package: str, name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        # The docstring tells of a named tuple's fields, which are members too.
        fields = getattr(value, "_fields", ())
        excluded = [f"   :exclude-members: {', '.join(fields)}"] if fields else []
        return [f".. autoclass:: {package}.{name}", "   :members:", *excluded, ""]
    return (
        [f".. autofunction:: {package}.{name}", ""]
        if inspect.isroutine(value)
        else [f"``{package}.{name}`` = ``{value}``", ""]
    )


def _write_reference(folder: pathlib.Path) -> None:
    """A page a package: its doc, then each public name; a name that has its doc on another page
    points there.
    """
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
