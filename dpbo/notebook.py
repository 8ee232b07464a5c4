"""Short tables for notebooks: public facts in two columns, with every text escaped."""

import html
from collections.abc import Mapping
from typing import Any

from dpbo.validation import printable

# notebooks align to the right
_LEFT = 'style="text-align: left; vertical-align: top"'


def facts_table(facts: Mapping[str, Any], *, title: str = "") -> str:
    """An HTML table with a row for each fact; a fact that is None is left out, and lines of a text
    stay lines.
    """
    shown = {_cell(name): _cell(str(fact)) for name, fact in facts.items() if fact is not None}
    rows = "".join(
        f"<tr><th {_LEFT}>{name}</th><td {_LEFT}>{text}</td></tr>" for name, text in shown.items()
    )
    caption = f"<caption {_LEFT}><strong>{_cell(title)}</strong></caption>" if title else ""
    return f"<table>{caption}{rows}</table>"


def _cell(text: str) -> str:
    return "<br>".join(html.escape(printable(line)) for line in text.split("\n"))


class FactsAfterFit:
    """Puts a table of facts under the diagram that scikit-learn shows of an estimator in a
    notebook. Goes before BaseEstimator.
    """

    def _facts(self) -> dict[str, Any]:
        """Public facts by name; none before `fit`."""
        return {}

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What a notebook shows."""
        # The class that this one is mixed into is a BaseEstimator, which has the method.
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle and (facts := self._facts()):
            bundle["text/html"] += facts_table(facts, title=f"{type(self).__name__} after fit")
        return bundle

    @property
    def _repr_html_(self) -> Any:
        """The same for programs that do not read `_repr_mimebundle_`; missing where scikit-learn is
        set to show text.
        """
        _ = super()._repr_html_  # type: ignore[misc]  # raises AttributeError there
        return lambda: self._repr_mimebundle_()["text/html"]
