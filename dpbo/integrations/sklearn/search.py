"""`DPSearch`: RandomizedSearchCV's words for a search whose validation records must not leak.

    search = DPSearch(pipeline, {"svc__C": loguniform(1e-2, 1e3)}, budget=Budget(1.0, 1e-6), n_iter=40).fit(X_train, y_train, X_val, y_val)
    search.best_params_, search.predict(X_new), print(search.statement())

Training records are public, or protected by other means: models, errors of a fit and the choice of classes show them. Validation records
are handed to a curator and steer the search through releases alone: `results_` and `best_score_` hold released values and their noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self
from urllib.parse import urlsplit

from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from dpbo.accounting.calibration import exact_share, parts_of
from dpbo.algorithms import private_choice
from dpbo.curator.curator import Curator
from dpbo.describing import described_estimator, described_scoring, described_space
from dpbo.errors import InputError
from dpbo.integrations.sklearn import strategies, training
from dpbo.integrations.sklearn.refit import Recommended
from dpbo.integrations.sklearn.scorings import Scoring, scoring_named
from dpbo.integrations.sklearn.training import Trainer
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.privacy import Adjacency, Budget, PrivacyUnit, require_count
from dpbo.space import Space
from dpbo.statement import Statement
from dpbo.validation import require_settings

_REPEATED = (
    "This process has asked some of them under another ledger, and two budgets in memory add up to more than either states. Nothing was "
    "charged. Give all the same dataset= and ledger=, or one Curator and budget= as shares of its own; or say allow_repeated=True, and the "
    "statement says it too."
)
_STRATEGIES: dict[str, strategies.Strategy] = {
    **dict.fromkeys(strategies.SEARCHES, strategies.by_search),
    "grid": strategies.by_grid,
    "gibo": strategies.by_gibo,
}
_FOLDS = "One private row in several fits and folds moves a cross-validated score far more than its own part: no bound on it is known."
_REFIT = "A model trained on protected rows shows them. best_estimator_ is trained on the training records."


class DPSearch(Recommended, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn carries no annotations that mypy follows here
    """Search hyper-parameters on private validation records.

    Args:
        estimator: any scikit-learn estimator or pipeline; give it a random_state, for it is fitted again.
        param_distributions: name -> frozen scipy.stats distribution or list, as RandomizedSearchCV takes them.
        budget: what may be spent: a `Budget`; on a Curator, a share of its budget in (0, 1]. `NoNoise(allow_not_private=True)`
            runs all but "grid" without privacy.
        n_iter: configurations to fit.
        scoring: "accuracy", "neg_log_loss" (clipped at -3 unless `score_range` says otherwise), "neg_mean_squared_error", or
            `scoring(model, X, y)` giving one number a record, each record by itself; with "bo", "turbo", "saas" also "balanced_accuracy",
            "f1", "roc_auc".
        score_range: public (lower, upper) of one record's score; scores beyond are clipped.
        strategy: "bo", "turbo" (a trust region), "saas" (few of many numbers matter), "grid" (one private choice among `n_iter` public
            candidates) or "gibo"; `dpbo.plan` says which fits.
        strategy_options: for "gibo": clip, iterations and other arguments of DPGIBO.
        final_share: part of the budget kept back to release the recommended configuration's score; None: no such release.
        n_initial: Sobol points before the model looks.
        test_size: where `fit` gets one table, the protected part of it, split once by position.
        unit: what is protected, in a word; with `groups` in `fit`, all records of one label together.
        adjacency: "replace-one", or "add-or-remove-one" with a public `divisor`.
        divisor: public number of units to divide by.
        error_score: "raise" an exception in a fit, before anything is charged for it, or count the configuration as "worst" (and pay).
        dataset, ledger: as in `Curator`: what is protected, and where its ledger is kept. The same `name`, terms, records, estimator and
            scoring resume a search.
        allow_repeated: whether validation records may be asked with a ledger in memory that this process has asked under another one
            already, as cross_val_score and GridSearchCV do; the statement then says that the others come on top.
        random_state: a whole number, for the public split, Sobol points and proposals; never for noise.
        cv, refit: refused where anything is asked of them; they are here to say why.

    Attributes:
        best_params_, best_estimator_: the recommendation, fitted on the training records.
        best_score_, best_score_std_: its separately released score and the noise of that (for F1 and its like an estimate, see
            scorings.py); None without, or where the release was lost.
        results_: configurations with released values and their noise, or which one was chosen ("grid").
        statement_: what was guaranteed.
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Mapping[str, Any],
        *,
        budget: Any,
        n_iter: int = 40,
        scoring: Any = "accuracy",
        score_range: Any = None,
        strategy: str = "bo",
        strategy_options: Mapping[str, Any] | None = None,
        final_share: float | None = 0.1,
        n_initial: int = 8,
        test_size: Any = None,
        unit: str = "record",
        adjacency: Any = "replace-one",
        divisor: float | None = None,
        error_score: str = "raise",
        dataset: str | None = None,
        ledger: str | None = None,
        allow_repeated: bool = False,
        name: str = "search",
        random_state: int = 0,
        cv: Any = None,
        refit: bool = False,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.budget = budget
        self.n_iter = n_iter
        self.scoring = scoring
        self.score_range = score_range
        self.strategy = strategy
        self.strategy_options = strategy_options
        self.final_share = final_share
        self.n_initial = n_initial
        self.test_size = test_size
        self.unit = unit
        self.adjacency = adjacency
        self.divisor = divisor
        self.error_score = error_score
        self.dataset = dataset
        self.ledger = ledger
        self.allow_repeated = allow_repeated
        self.name = name
        self.random_state = random_state
        self.cv = cv
        self.refit = refit

    def fit(
        self, X_train: Any, y_train: Any = None, X_val: Any = None, y_val: Any = None, *, groups: Any = None, groups_train: Any = None
    ) -> Self:
        """Search, recommend, and release the recommendation's score.

        Args:
            X_train, y_train: public or otherwise protected; or with `test_size` and no X_val, one table whose validation part is protected.
            X_val, y_val: private; X_val may be a Curator over (X, y).
            groups: one label a validation record: all records of a label are protected together. Private.
            groups_train: labels of the training records, where they are known: none may be among `groups`.

        Raises:
            InputError: an argument outside its range, or records that another ledger in memory protects. BudgetExceeded: the budget is not
            left. LedgerMismatch: the name is another search's.
        """
        self._refuse_what_is_not_private()
        X_train, X_val = map(training.sliced, (X_train, X_val))
        split = X_val is None
        if split and groups is not None:
            remedy = "A split by position would tear units apart. Split by group, and give X_val and y_val."
            raise InputError("groups", type(groups).__name__, "left out with one table", remedy)
        if split:
            X_train, y_train, X_val, y_val = training.split_once(X_train, y_train, self.test_size, self._seed(), self._relation())
        training.require_apart(X_train, X_val, groups, groups_train)
        training.require_alike(X_train, y_train, X_val, y_val)
        space = _space(self.param_distributions)
        trainer = Trainer(self.estimator, space, X_train, y_train, self.error_score)
        trainer.configured(space.sample(1, seed=0)[0])  # a name that the estimator lacks is found before anything is reserved
        scoring = scoring_named(self.scoring, self.score_range, y_train)
        curator = self._given(X_val, groups) if isinstance(X_val, Curator) else self._opened(X_train, y_train, X_val, y_val, groups)
        self._search(self._task(curator, space, trainer, scoring, split), {"training records": trainer.table()})
        self.statement_ = _explained(curator.statement(), split, self.test_size, self.random_state)
        if self.best_estimator_ is None:  # paid for, so results and statement stay
            raise InputError("error_score", self.error_score, "'raise' to see why", "The recommended configuration cannot be fitted.")
        return self

    def _search(self, task: strategies.Task, tables: Mapping[str, Any]) -> None:
        strategies.require_fitting(task)
        begun = task.begun()
        if not begun:
            if task.baseline is None:
                private_choice.require_left(task.curator, task.share + task.final_share, f"the search {self.name!r}")
            strategies.require_working(task)
        things = {"estimator": self.estimator, "scoring": self.scoring}
        task.curator.bind(f"{self.name}: whole", things, tables=tables, begun=begun)
        final = task.final()  # reserved first, so that whatever the search does, its share is there
        found = _STRATEGIES[self.strategy](task)
        if final is not None and final.remaining:
            final(found.x.unsqueeze(0))
        x, best, std = found.x, None, None
        if final is not None and len(told := final.history()[0]):
            x = told[0]
            score, variance = task.scoring.observed(*final.history()[1:])
            lower, upper = task.scoring.bounds
            best, std = min(max(score.item(), lower), upper), variance.sqrt().item()
        self.best_score_, self.best_score_std_ = best, std
        self.results_, self.best_params_ = found.results, task.space.decode(x)
        self.best_estimator_ = task.trainer.untouched(x)

    def _task(self, curator: Curator, space: Space, trainer: Trainer, scoring: Scoring, split: bool) -> strategies.Task:
        own = isinstance(self.budget, (Budget, NoNoise))  # else a share of the curator's
        whole = Fraction(1) if own else exact_share(self.budget, "budget")
        kept = Fraction(0) if self.final_share is None else exact_share(self.final_share, "final_share")
        if kept == 1:
            raise InputError("final_share", self.final_share, "below 1", "The rest pays for the search.")
        terms = {
            "strategy": self.strategy,
            "scoring": described_scoring(self.scoring),
            "estimator": described_estimator(self.estimator),
            "space": described_space(self.param_distributions),
            "seed": self._seed(),
            "initial": require_count("n_initial", self.n_initial),
            "one table, split by position": getattr(self.test_size, "item", lambda: self.test_size)() if split else False,
        }
        baseline = self.budget if isinstance(self.budget, NoNoise) else None
        of_search, rest = parts_of(curator.accounting, whole, 1 - kept)
        return strategies.Task(
            curator, space, trainer, scoring, require_count("n_iter", self.n_iter), self.n_initial, of_search, rest if kept else kept,
            baseline, self.divisor, self._seed(), self.name, terms, dict(self.strategy_options or {}),
        )  # fmt: skip

    def _opened(self, X: Any, y: Any, X_val: Any, y_val: Any, groups: Any) -> Curator:
        if y_val is None:
            raise InputError("y_val", None, "the labels of X_val")
        budget = Budget.gdp(1.0) if isinstance(self.budget, NoNoise) else self.budget
        if not isinstance(budget, Budget):
            raise InputError("budget", budget, "a Budget, when X_val is a table", "For example Budget(epsilon=1.0, delta=1e-6).")
        unit = PrivacyUnit(self.unit, groups=groups)
        curator = Curator(
            (X_val, y_val), unit=unit, adjacency=self._relation(), budget=budget, dataset=self.dataset, ledger=self.ledger,
            example=None if y is None else training.first_rows(X, y), allow_repeated=self.allow_repeated,
        )  # fmt: skip
        if not (self.allow_repeated or isinstance(self.budget, NoNoise)) and curator.repeats():
            raise InputError("ledger", None, "one file or URL for all searches over the same validation records", _REPEATED)
        return curator

    def _given(self, curator: Curator, groups: Any) -> Curator:
        """Unit, relation, data set and ledger are the curator's own."""
        if isinstance(self.budget, Budget):
            raise InputError("budget", str(self.budget), "a share in (0, 1] of the Curator's own budget")
        if groups is not None:
            raise InputError("groups", type(groups).__name__, "given to the Curator, in its PrivacyUnit")
        return curator

    def _refuse_what_is_not_private(self) -> None:
        if self.cv is not None:
            raise InputError("cv", self.cv, "None", f"{_FOLDS} Give X_val, y_val, or test_size to split once.")
        if self.refit:
            raise InputError("refit", self.refit, "False", _REFIT)
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 150:
            raise InputError("name", self.name, "a word of at most 150 letters")
        require_settings(self)
        if not hasattr(self.estimator, "fit") or not hasattr(self.estimator, "get_params"):
            raise InputError("estimator", type(self.estimator).__name__, "a scikit-learn estimator")
        if self.strategy not in _STRATEGIES:
            raise InputError("strategy", self.strategy, f"one of {tuple(_STRATEGIES)}", "dpbo.plan says which fits.")

    def _seed(self) -> int:
        return require_count("random_state", self.random_state, 0)

    def _relation(self) -> Adjacency:
        try:
            return Adjacency(self.adjacency)
        except ValueError:
            raise InputError("adjacency", self.adjacency, "'replace-one' or 'add-or-remove-one'") from None

    def statement(self) -> Statement:
        """What was guaranteed, to whom, when `fit` ended."""
        check_is_fitted(self)
        return self.statement_

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return self._without_password(super().__repr__(N_CHAR_MAX=N_CHAR_MAX))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What a notebook shows."""
        return {kind: self._without_password(text) for kind, text in super()._repr_mimebundle_(**kwargs).items()}

    def _without_password(self, text: str) -> str:
        """The ledger's URL as the ledger itself prints it."""
        password = urlsplit(self.ledger).password if isinstance(self.ledger, str) else None
        return text.replace(f":{password}@", ":***@") if password else text

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = own.estimator_type, own.classifier_tags, own.regressor_tags
        tags.input_tags = own.input_tags
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = False  # one label a record
        tags.non_deterministic = True  # the noise is fresh in every fit
        return tags


def _space(distributions: Any) -> Space:
    if not isinstance(distributions, Mapping):
        raise InputError("param_distributions", distributions, "a dict of distributions and lists", "Search several dicts one by one.")
    space = Space(**distributions)
    if bool((space.bounds[0] == space.bounds[1]).all()):
        raise InputError("param_distributions", list(space.names), "of two values or more, in one parameter at least")
    return space


def _explained(statement: Statement, split: bool, test_size: Any, seed: Any) -> Statement:
    """With what one table's split leaves unprotected."""
    if not split:
        return statement
    told = f"the training part of the one table given: it was split once by position (test_size {test_size}, seed {seed})"
    return dataclasses.replace(statement, not_protected=(f"{told}, and only its validation part is protected", *statement.not_protected))
