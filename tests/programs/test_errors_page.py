"""The page of errors names every error and warning, and quotes what the code says."""

import ast
import importlib
import pickle
import pkgutil
import re

import pytest
import torch

import dpbo
from dpbo.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from tests.setups import DOUBLE, ROOT, first_column, owner, point, subclasses

PAGE = (ROOT / "docs" / "errors.md").read_text()
X = point(0.0)


def quoted():
    """(the page's heading, the message) of each quotation."""
    heading = ""
    for part in re.findall(r"^#+ (\w+)|```text\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE):
        heading = part[0] or heading
        if part[1]:
            yield heading, " ".join(part[1].split())


def test_every_error_and_warning_of_dpbo_is_on_the_page():
    for module in pkgutil.walk_packages(dpbo.__path__, "dpbo."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    own = {
        kind
        for kind in subclasses(BaseException)
        if kind.__module__.startswith("dpbo.") and not kind.__name__.startswith("_")
    }
    assert len(own) > 20
    for kind in own:
        assert re.search(
            rf"^### {kind.__name__}$|`(dpbo\.)?{kind.__name__}`|^## {kind.__name__}$",
            PAGE,
            flags=re.MULTILINE,
        ), kind


def test_every_quoted_message_is_in_the_code():
    nodes = (
        node
        for path in (ROOT / "dpbo").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )
    code = "\n".join(
        {
            " ".join(node.value.split())
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    )
    messages = [message for _, message in quoted()]
    allowed = re.findall(r"^\| `\w+` \| `(.*?)` \|", PAGE, flags=re.MULTILINE)
    assert len(messages) > 50
    assert len(allowed) > 20
    for message in messages + allowed:
        for part in re.split(r"\.\.\.\.?", message):
            for sentence in re.split(r"(?<=[.:;]) ", part.strip(" ().,;:%")):
                assert sentence.strip(" ().,;:%") in code, (message, sentence)


def curator(**settings):
    settings = {"budget": dpbo.Budget(1.0, 1e-6), **settings}
    return owner(torch.rand(100, 1, dtype=DOUBLE), **settings)


def objective(score=first_column, *, evaluations=2, score_range=(0, 1), **settings):
    return dpbo.PrivateObjective(
        curator(**settings), score, score_range=score_range, evaluations=evaluations
    )


def fails_on_many(_, records):
    if len(records) > 20:
        raise ValueError
    return records[:, 0]


def ask_too_often():
    spent = objective(evaluations=1)
    spent(X)
    spent(X)


def resume_with_another_score():
    objective(dataset="d", ledger="a.db")(X)
    objective(lambda x, records: records[:, 0] / 2, dataset="d", ledger="a.db")(X)


def expect_another_head():
    curator(dataset="d", ledger="c.db").ledger.verify(expect="0" * 64)


MADE = {
    "InputError": lambda: objective()(X.float()),
    "BudgetExceeded": ask_too_often,
    "ScoreError": lambda: objective(lambda x, records: records.mean())(X),
    "MostlyClipped": lambda: objective(
        lambda x, records: records[:, 0] + 5, example=torch.rand(9, 1).double()
    )(X),
    "PrivateFailure": lambda: objective(fails_on_many)(X),
    "OpacityError": lambda: pickle.dumps(objective().evaluate(X[0])),
    "LedgerMismatch": lambda: (
        curator(dataset="d", ledger="b.db"),
        curator(dataset="d", ledger="b.db", budget=dpbo.Budget(2.0, 1e-6)),
    ),
    "ReservationChanged": resume_with_another_score,
    "LedgerMissing": lambda: Ledger.open("nowhere.db"),
    "LedgerUnavailable": lambda: Ledger.open("long" * 100),
    "LedgerRolledBack": expect_another_head,
    "MissingLibrary": lambda: Ledger.open("oracle+oracledb://host/db"),
    "NoiseWarning": lambda: objective(evaluations=100),
    "UserWarning": lambda: curator(unit=dpbo.PrivacyUnit("patient", groups=["A", "a"] * 50)),
}


@pytest.mark.usefixtures("seeded_noise")
def test_messages_that_are_raised_are_the_quoted_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = dict(MADE)
    made["BudgetExceeded, noise"] = lambda: curator().release(
        ClippedMean(first_column, score_range=(0, 1)), GaussianMechanism(0.5)
    )
    for name, make in made.items():
        # Pytest turns warnings into errors.
        with pytest.raises(Exception) as raised:
            make()
        kind = name.partition(",")[0]
        assert type(raised.value).__name__ == kind, raised.value
        patterns = [
            ".*?".join(map(re.escape, message.split("...")))
            for heading, message in quoted()
            if heading == kind
        ]
        assert any(re.search(pattern.rstrip("\\ "), str(raised.value)) for pattern in patterns), (
            name,
            str(raised.value),
        )
