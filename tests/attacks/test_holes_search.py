"""Searches that spent more than they said, or answered another question than the one asked: each
attack won once.
"""

import logging

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeClassifier

from dpbo import DPSearch, Privacy, PrivateObjective
from dpbo.errors import InputError, ReservationChanged, ScoreError
from dpbo.search import NoisedSearch
from tests.attacks.setups import DOUBLE, TERMS, of, owner, point


def table(seed, rows=400):
    """Records that no other test has."""
    X, y = make_classification(rows, 5, random_state=seed)
    return X + 1e-3 * seed, y


def search(**changed):
    names = "allow_repeated", "dataset", "ledger"
    privacy = Privacy(**{name: changed.pop(name) for name in names if name in changed})
    settings = {
        "n_iter": 2,
        "strategy": NoisedSearch(n_initial=2),
        "budget": TERMS["budget"],
        **changed,
    }
    estimator = settings.pop("estimator", DecisionTreeClassifier(random_state=0))
    return DPSearch(estimator, {"max_depth": [1, 2, 3]}, **settings, privacy=privacy)


@pytest.mark.attack("A22")
def test_a_second_budget_over_the_same_records_is_refused_in_cross_validation():
    with pytest.warns(FitFailedWarning, match="allow_repeated=True"):
        scores = cross_val_score(search(test_size=0.5), *table(4, 600), cv=3)
    assert np.isnan(scores).sum() == 2


def test_coarse_records_of_other_people_are_no_repetition():
    """Rows that occur by chance: two thirds of each table have a twin in the other."""
    draw = np.random.default_rng(0)
    tables = [(draw.integers(0, 7, size=(500, 3)), draw.integers(0, 2, 500)) for _ in range(3)]
    search().fit(*tables[0], *tables[1])
    search().fit(*tables[0], *tables[2]).score(*tables[0])


@pytest.mark.attack("A21")
def test_the_protected_rows_are_not_scored_in_the_open():
    (X, y), train, others = table(6), table(7), table(8)
    found = search().fit(*train, X, y)
    for rows in (slice(None), slice(0, 1)):
        with pytest.raises(InputError, match=r"^X=.*protects"):
            found.score(X[rows], y[rows])
    with pytest.raises(InputError, match=r"^X="):
        found.score(np.concatenate([others[0], X[:20]]), np.concatenate([others[1], y[:20]]))
    assert 0 <= found.score(*others) <= 1


class Stump(DecisionTreeClassifier):  # type: ignore[misc]
    """A class of the user's own, by the same name and parameters as the next."""


def another_stump():
    class Stump(DecisionTreeClassifier):  # type: ignore[misc]
        def fit(self, X, y):
            return super().fit(X, 1 - y)

    Stump.__qualname__ = "Stump"
    return Stump


def within(margin):
    return lambda model, X, y: np.abs(model.predict(X) - y) < margin


@pytest.mark.attack("A30")
def test_a_search_is_resumed_with_what_it_began_with_alone(tmp_path, caplog):
    train, (X, y), others = table(9), table(10), table(11)
    ledger = {
        "dataset": "d",
        "ledger": str(tmp_path / "l.db"),
        "estimator": Stump(random_state=0),
        "score_range": (0.0, 1.0),
    }
    first = search(**ledger, scoring=within(0.5)).fit(*train, X, y)
    for name, tables, changed in (
        ("training records", (*others, X, y), {}),
        ("validation records", (*train, *others), {}),
        ("validation records", (*train, np.concatenate([X[:1], X[:-1]]), y), {}),
        ("scoring", (*train, X, y), {"scoring": within(0.7)}),
        ("estimator", (*train, X, y), {"estimator": another_stump()(random_state=0)}),
    ):
        with pytest.raises(
            ReservationChanged, match=f"began with (an)?other {name}, .*Nothing was charged"
        ):
            search(**{**ledger, "scoring": within(0.5), **changed}).fit(*tables)
    caplog.set_level(logging.INFO, "dpbo")
    again = search(**ledger, scoring=within(0.5)).fit(*train, X[::-1].copy(), y[::-1].copy())
    assert again.statement().entries == first.statement().entries, (
        "in another order they are the same records"
    )
    assert "values resumed: 2, lost: 0, evaluations left: 0" in caplog.text


def distance(x, records):
    return 1.0 - (records - x).abs().mean(1)


def shortened(x, records):
    return 1.0 - 0.5 * (records - x).abs().mean(1)


@pytest.mark.attack("A30")
def test_an_objective_resumes_its_own_question_alone(tmp_path):
    records = torch.rand(2000, 2, dtype=DOUBLE)

    def objective(score=distance, held=records, **changed):
        curator = owner(held, dataset="d", ledger=str(tmp_path / "l.db"))
        settings = {"score_range": (0.0, 1.0), "evaluations": 4, "budget": 0.5, **changed}
        return PrivateObjective(curator, score, **settings)

    objective()(point(0.5, 0.5))
    for name, changed in (
        ("score", {"score": shortened}),
        ("fit", {"fit": lambda point: point}),
        ("validation records", {"held": records.flip(1)}),
    ):
        with pytest.raises(ReservationChanged, match=f"began with (an)?other {name}, "):
            objective(**changed)
    assert len(objective().history()[1]) == 1


def of_examples(score):
    """An objective whose score is tried on example records first."""
    records, example = torch.rand(506, 2, dtype=DOUBLE).split([500, 6])
    return PrivateObjective(
        owner(records, example=example), score, score_range=(0.0, 1.0), evaluations=2
    )


@pytest.mark.attack("A5")
@pytest.mark.parametrize(
    ("score", "message"),
    [
        (
            lambda x, r: r[:, 0] * torch.nan,
            r"NaN or infinite for every record: .*a Tensor of torch.float64, shape \(6,\)",
        ),
        (
            lambda x, r: 100 * r[:, 0] + 2,
            r"outside score_range \(0, 1\) for 6 records.* from .* to ",
        ),
        (
            lambda x, r: 0.5 + r[:, 0] - r[:, 0].mean(),
            "each record by itself.*moved other records' scores.*no mean, rank",
        ),
        (lambda x, r: float(r.mean()), "returned a float. One number for all records"),
        (make_scorer(f1_score), "raised TypeError.*Scorers of scikit-learn.*scoring='f1'"),
    ],
    ids=["not finite", "percentages", "against the mean", "one float", "a scorer"],
)
def test_example_records_refuse_what_would_be_charged_for_nothing(score, message):
    """Percentages for a range of (0, 1), and a score against the batch's mean, were charged."""
    objective = of_examples(score)
    with pytest.raises(ScoreError, match=message):
        objective(point(0.0, 0.0))
    assert objective.remaining == 2


def test_a_point_where_every_record_is_clipped_passes_after_the_first_one():
    sound = of_examples(distance)
    sound(point(0.0, 0.0))
    sound(point(9.0, 9.0))


@pytest.mark.attack("A5")
def test_a_search_judges_its_scoring_on_training_records():
    train = table(12)
    X, y = table(13)
    for scoring, message in (
        (lambda model, X, y: 100.0 * (model.predict(X) == y) + 1.0, "outside score_range"),
        (lambda model, X, y: (model.predict(X) == y) - 0.1 * y.mean(), "each record by itself"),
    ):
        with pytest.raises(ScoreError, match=message):
            search(scoring=scoring, score_range=(-0.1, 1.0)).fit(*train, X, y)


@pytest.mark.attack("A5")
def test_a_search_is_refused_where_all_candidates_score_outside_the_range():
    def ridge(*alphas):
        settings = of(n_iter=2, scoring="neg_mean_squared_error", score_range=(-0.2, 0.0))
        search = DPSearch(Ridge(), {"alpha": [*alphas]}, budget=TERMS["budget"], **settings)
        search.fit(train, train[:, 0] * 5, X, X[:, 0] * 5)

    train = table(14)[0]
    X = table(15)[0]
    with pytest.raises(ScoreError, match="outside score_range"):
        ridge(1e9, 1e8)
    # Here only the first that is fitted is that bad.
    ridge(1e-3, 1e9)
