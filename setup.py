"""Makes the page of the package index from README.md. Everything else stands in pyproject.toml.

The index resolves no relative link: where [project.urls] names the repository as `Source`, it
becomes a link to the file there, else text.
"""

import pathlib
import re
import tomllib

from setuptools import setup

ROOT = pathlib.Path(__file__).parent


def long_description() -> str:
    """README.md without relative links."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    source = (
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        .get("urls", {})
        .get("Source")
    )
    link = r"\1" if source is None else rf"[\1]({source}/blob/main/\2)"
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", link, text)


setup(long_description=long_description(), long_description_content_type="text/markdown")
