"""Sphinx builds the pages beside this file, and the reference from the docstrings: `make docs`."""

import importlib
import inspect
import pathlib

project, author, release = "dpbo", "the dpbo authors", "0.1"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "differentially private Bayesian optimisation", "page_width": "1100px"}
autodoc_typehints = "none"  # signatures have them
autodoc_preserve_defaults = True
napoleon_use_ivar = True
myst_heading_anchors = 3

PACKAGES = (
    "dpbo", "dpbo.curator", "dpbo.queries", "dpbo.mechanisms", "dpbo.accounting", "dpbo.models", "dpbo.acquisition", "dpbo.algorithms",
    "dpbo.algorithms.kusner", "dpbo.algorithms.outsourced", "dpbo.algorithms.em", "dpbo.integrations", "dpbo.testing", "dpbo.events",
    "dpbo.errors", "dpbo.plots",
)  # fmt: skip


def _page(package: str) -> str:
    """A package's doc, then each public name with its own."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [n for n, v in vars(module).items() if getattr(v, "__module__", "") == package]
    lines = [package, "=" * len(package), "", f".. automodule:: {package}", ""]
    for name in names:
        value = getattr(module, name)
        if inspect.ismodule(value) or name.startswith("_"):
            continue
        kind = "autoclass" if inspect.isclass(value) else "autofunction" if inspect.isroutine(value) else "autodata"
        lines += [f".. {kind}:: {package}.{name}", *(["   :members:"] if kind == "autoclass" else []), ""]
    return "\n".join(lines)


_folder = pathlib.Path(__file__).parent / "api"
_folder.mkdir(exist_ok=True)
for _package in PACKAGES:
    (_folder / f"{_package}.rst").write_text(_page(_package))
