"""`DPSearch`: a hyper-parameter search like scikit-learn's RandomizedSearchCV, on validation records that must not leak.

    search = DPSearch(pipeline, {"svc__C": loguniform(1e-2, 1e3)}, budget=Budget(1.0, 1e-6), n_iter=40).fit(X_train, y_train, X_val, y_val)
    search.best_params_, search.predict(X_new), print(search.statement())

Training records are public, or protected by other means: models, errors of a fit and the set of classes reveal them. Validation records
are held by a curator and influence the search through releases only; `results_` and `best_score_` hold released values and their noise.
"""

import copy
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from sklearn.base import BaseEstimator, MetaEstimatorMixin, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from dpbo.accounting.calibration import exact_share, parts_of
from dpbo.accounting.filters import Accounting, GDPFilter, PureFilter
from dpbo.curator.curator import Curator
from dpbo.curator.pricing import require_left, share_of_cap
from dpbo.curator.public_form import Form
from dpbo.curator.record_fingerprints import require_other_rows, rows_of
from dpbo.errors import InputError
from dpbo.fingerprint import describe_estimator, describe_scoring, describe_space
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.notebook import FactsAfterFit
from dpbo.privacy import Adjacency, Budget, PrivacyUnit
from dpbo.search import training
from dpbo.search.refit import Recommended
from dpbo.search.scorings import Scoring, scoring_named
from dpbo.search.task import REHEARSED, SEARCHES, SHIFT, Task
from dpbo.search.training import Trainer
from dpbo.space import Space
from dpbo.statement import Statement
from dpbo.validation import Count, Seed, at_least, between, checked, require_settings, warn

if TYPE_CHECKING:
    from dpbo.search.rehearsal import Rehearsal

STRATEGIES = ("auto", "weighted_cv", "list", *SEARCHES, "grid", "gibo")
_WEIGHTS = (
    "A protected record's weight would scale what it adds to the score beyond what the noise covers. For training, let the estimator weigh "
    "records itself (class_weight=, or a fit that computes weights); for scores, give a scoring of your own that multiplies each record's "
    "score by a public function of that record, within score_range=."
)
_REFIT = (
    "A model trained on protected records reveals them: best_estimator_ is always trained on the training records, and predict uses it. A "
    "metric's name, which picks one of several in scikit-learn, goes to scoring=."
)
_NOT_REHEARSED = (
    "strategy='auto' cannot rehearse scoring={!r}, which is not a mean of one number per record: it searches on noised scores, as "
    "strategy='bo' does, and rehearsal_ and free_params_ are None. Pass strategy='bo', or a scoring such as 'neg_brier_score'."
)
_FEW_RELEASES = (*REHEARSED, "grid")
_REPEATED = (
    "This process has already queried some of them under another ledger, and two budgets in memory add up to more than either states. "
    "Nothing was charged. Give every search the same dataset= and ledger=, or one Curator and a share of its budget each; or set "
    "allow_repeated=True, and the statement will say so."
)
_IN_THE_OPEN = (
    "Models are fitted to training records in the open, and may reproduce them, whatever the budget: take protected records out of the "
    "training table."
)


class DPSearch(Recommended, FactsAfterFit, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn carries no annotations that mypy follows here
    """Search hyper-parameters on private validation records.

    Args:
        estimator: any scikit-learn estimator or pipeline. Give it a random_state, because it is fitted again at the end.
        param_distributions: name -> frozen scipy.stats distribution or list, as in RandomizedSearchCV.
        budget: a `Budget`, or with a Curator a share in (0, 1] of its budget. Left out only with `mechanism`.
        mechanism: `NoNoise(allow_not_private=True)` runs every strategy but "grid" without privacy, as a baseline.
        n_iter: number of configurations to fit.
        scoring: "accuracy", "true_class_probability", "neg_brier_score", "neg_log_loss" (clipped at -3 unless `score_range` says
            otherwise), "neg_mean_squared_error", or `scoring(model, X, y)` that returns one number a record, each record scored by
            itself; with the strategies "bo", "turbo" and "saas" also "balanced_accuracy", "f1" and "roc_auc" (by `predict_proba`, or
            else by `decision_function`).
        score_range: public (lower, upper) of one record's score; scores outside are clipped.
        strategy: "auto" cross-validates `n_iter` candidates on the training records, rehearses the next three on them (see `rehearsal_`),
            and takes what is expected to win under its assumption of a shift, or the free choice, the best cross-validated candidate.
            "weighted_cv": one release of how the protected records differ, by which the cross-validated scores are weighted. "list": one
            private choice among the best cross-validated candidates. "bo": a search on noised scores; "turbo": the same within a trust
            region; "saas": the same for many parameters of which few matter. "grid": one private choice among all candidates, without
            cross-validation. "gibo": private gradients. F1, balanced accuracy, ROC AUC, `mechanism` and unlabelled records need "bo",
            "turbo" or "saas".
        strategy_options: for "auto", "weighted_cv" and "list": shift, the largest simulated difference of the protected population from
            the public one, in standard deviations (default 1); for "weighted_cv" also cells; for "list" also candidates and
            largest_difference (None: plain scores). For "gibo": clip, iterations and other arguments of DPGIBO.
        final_share: share of the budget kept back to release the recommended configuration's score; None releases no such score.
        n_initial: number of Sobol points before the model proposes.
        test_size: for one table in `fit`, the size of its protected validation part, as in train_test_split: a fraction in (0, 1), or a
            number of rows. The table is split once, by position.
        unit: what is protected, in a word; with `groups` in `fit`, all records with one label together.
        adjacency: "replace-one", or "add-or-remove-one" with a public `divisor`.
        divisor: public number of units that sums are divided by.
        error_score: "raise" an exception from a fit before anything is charged for it, or count that configuration as "worst" (and pay).
        dataset, ledger: as in `Curator`: the name of what is protected, and where its ledger is kept (a path or a URL). The same `name`,
            terms, records, estimator and scoring resume a search.
        accounting: how releases add up, where no Curator is given. Omitted: `PureFilter` for "auto", "weighted_cv", "list" and "grid",
            which release once or twice, if the budget has an epsilon; else `GDPFilter`. Searches that share a ledger need the same.
        allow_repeated: allow validation records that this process has queried under another ledger in memory, as cross_val_score and
            GridSearchCV do; the statement then says that the other budgets add to this one.
        random_state: a whole number; seeds the public split, Sobol points and proposals, never noise.
        n_jobs: number of joblib's workers for fits to public training records that are known ahead: cross-validation, the candidates of a
            list or a grid, Sobol points, the fits of a gradient. None: as joblib's context says, else 1; -1: all processors. Results are
            the same for any number, given a random_state. Protected records are scored in this process alone.
        verbose: 0 shows nothing; 1 bars on a terminal, without times; 2 also a line for each release, with its value and its noise.
        callbacks: functions that are called with a `SearchRelease` after each release: its parameters, and the score and its noise where
            one is released. If one returns True, the search ends there and the recommended score is released. What was planned stays
            reserved: a later `fit` on the same ledger is charged for the rest, and keeps the recommendation.
        cv: must stay None: one private row takes part in several fits, and no bound is known on how far it moves a cross-validated score.
            Use test_size.
        refit: must stay False: a model trained on validation records reveals them. `best_estimator_` is trained on the training records.
            So is `sample_weight` in `fit` refused.

    Attributes:
        best_params_, best_estimator_: the recommended configuration, and the estimator fitted with it on the training records.
        best_score_, best_score_std_: its separately released score, the mean over units of each one's mean, and the standard deviation of
            that noise alone (an estimate for F1 and the like, see scorings.py); None without `final_share`, or where the release was lost.
        results_: the configurations, as a dict of columns like `cv_results_` (`pandas.DataFrame(search.results_)` is a table). `params`;
            `param_NAME`, masked arrays; `mean_test_score`, the released score, with noise; `std_test_score`, the standard deviation of
            that noise (not a spread over folds); `rank_test_score`, by the released scores. The last three are NaN, or masked, where a
            strategy releases no score of each configuration: all but "bo", "turbo" and "saas". Further columns: `posterior_mean`, by which
            these recommend, so that the recommended one need not have rank 1; `cv_score` and `weighted_cv_score`, cross-validated on
            public records; `chosen`; `released_gradient` and `gradient_noise_std`. No times: those of scores may tell of records.
        cv_results_: the same dict, where scikit-learn's users look; nothing in it was cross-validated on protected records.
        best_index_: the recommended configuration's place in `results_`; None if it is none of these ("gibo").
        free_params_, rehearsal_: with "auto", "weighted_cv" and "list": the best cross-validated configuration, which costs no privacy, and
            the `Rehearsal`; else None.
        statement_: the guarantee when `fit` ended.
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Mapping[str, Any],
        *,
        budget: Any = None,
        mechanism: NoNoise | None = None,
        n_iter: Count = 40,
        scoring: Any = "accuracy",
        score_range: Any = None,
        strategy: str = "auto",
        strategy_options: Mapping[str, Any] | None = None,
        final_share: float | None = 0.1,
        n_initial: Count = 8,
        test_size: Any = None,
        unit: str = "record",
        adjacency: Any = "replace-one",
        divisor: float | None = None,
        error_score: str = "raise",
        dataset: str | None = None,
        ledger: str | pathlib.Path | None = None,
        accounting: Any = None,
        allow_repeated: bool = False,
        name: str = "search",
        random_state: Seed = 0,
        n_jobs: int | None = None,
        verbose: Annotated[int, at_least(0, 2)] = 1,
        callbacks: Any = None,
        cv: Any = None,
        refit: Any = False,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.budget = budget
        self.mechanism = mechanism
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
        self.accounting = accounting
        self.allow_repeated = allow_repeated
        self.name = name
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.callbacks = callbacks
        self.cv = cv
        self.refit = refit

    def fit(
        self,
        X_train: Any,
        y_train: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        *,
        groups: Any = None,
        groups_train: Any = None,
        **fit_params: Any,
    ) -> Self:
        """Search, recommend a configuration, and release its score.

        Args:
            X_train, y_train: the training records, which are public or protected by other means. With `test_size` and without X_val, they
                are one table that is split once, and only its validation part is protected.
            X_val, y_val: the private validation records; X_val may be a Curator over (X, y), without y_val.
            groups: one label a validation record; all records with one label are protected together. Private.
            groups_train: labels of the training records, where they are known: none may be among `groups`.
            fit_params: refused, `sample_weight` with the reason: every record, or unit, counts alike.

        Raises:
            InputError: an argument outside its range, records that another ledger in memory protects, or
            protected records among the training records. BudgetExceeded: the budget is not
            left. LedgerMismatch: the name belongs to another search.
        """
        self._require_arguments()
        for name, value in fit_params.items():
            remedy = _WEIGHTS if name == "sample_weight" else "Give the estimator its parameters when you make it."
            raise InputError(name, type(value).__name__, "left out of fit", remedy)
        X_train, X_val = map(training.sliced, (X_train, X_val))
        split = X_val is None
        if split and groups is not None:
            remedy = "A split by position would separate records of one unit. Split by group, and give X_val and y_val."
            raise InputError("groups", type(groups).__name__, "left out with one table", remedy)
        adjacency = Adjacency.of(self.adjacency)
        if split:
            X_train, y_train, X_val, y_val = training.split_once(X_train, y_train, self.test_size, int(self.random_state), adjacency)
        training.require_disjoint_tables(X_train, X_val, groups, groups_train)
        training.require_same_form(X_train, y_train, X_val, y_val)
        space = _space(self.param_distributions)
        trainer = Trainer(self.estimator, space, X_train, y_train, self.error_score)
        trainer.configured(space.sample(1, seed=0)[0])  # a parameter that the estimator lacks is found before anything is reserved
        scoring = scoring_named(self.scoring, self.score_range, y_train)
        strategy, curator = self.strategy, X_val
        if strategy == "auto" and (scoring.cells is not None or self.mechanism is not None or y_train is None):
            strategy = "bo"  # no scores of single records to rehearse with, or nothing to protect
            if scoring.cells is not None:
                warn(_NOT_REHEARSED.format(self.scoring), UserWarning)
        if not isinstance(X_val, Curator):
            example = None if y_train is None else training.first_rows(X_train, y_train)
            form = training.public_form(X_train, y_train, classifier=is_classifier(self.estimator))
            if not split and self.mechanism is None:  # rows of one table have places of their own, equal or not
                own = rows_of(_in_form(form, X_val, y_val))
                require_other_rows("X_train", trainer.table(), own, "validation", _IN_THE_OPEN)
            curator = self._curator(X_val, y_val, groups, adjacency, example, form, strategy)
        elif groups is not None:
            raise InputError("groups", type(groups).__name__, "given to the Curator, in its PrivacyUnit")
        else:
            curator.require_other_records("X_train", trainer.table(), _IN_THE_OPEN)
        self._search(self._task(curator, space, trainer, scoring, strategy, split, groups_train, own=curator is not X_val), trainer)
        self.statement_ = curator.statement()
        if split:
            first = (
                f"the training part of the one table given: it was split once by position (test_size {self.test_size}, "
                f"seed {self.random_state}), and only its validation part is protected"
            )
            self.statement_ = dataclasses.replace(self.statement_, not_protected=(first, *self.statement_.not_protected))
        if self.best_estimator_ is None:  # the search is paid for: results and statement stay
            raise InputError("error_score", self.error_score, "'raise' to see why", "The recommended configuration cannot be fitted.")
        return self

    def _search(self, task: Task, trainer: Trainer) -> None:
        from dpbo.search import strategies  # with BoTorch's optimizers and scikit-learn's models, which only a fit needs

        strategies.require_strategy_fits(task)
        self.rehearsal_: Any = None
        self.free_params_: Any = None
        begun = task.begun()
        if not begun:
            if task.baseline is None:
                require_left(task.curator, task.share + task.final_share, f"the search {self.name!r}")
            strategies.try_out(task)
        public = None
        if task.strategy in REHEARSED:
            public = strategies.rehearse_methods(task)
            task = strategies.decided(task, public)
            self.rehearsal_ = public.rehearsal
            self.free_params_ = trainer.parameters(public.candidates[public.matrix.order[0]])
            public = None if task.strategy in SEARCHES else public
        things = {"estimator": self.estimator, "scoring": self.scoring}
        task.curator.bind(f"{self.name}: whole", things, tables={"training records": trainer.table()}, begun=begun)
        final = task.final()  # reserved first, so that the search cannot spend its share
        by_strategy = strategies.BY_NAME[task.strategy]
        found = by_strategy(task) if public is None else by_strategy(task, public)
        fresh = final is not None and final.remaining > 0
        if final is not None and fresh:
            final(found.x.unsqueeze(0))
        x, self.best_score_, self.best_score_std_ = found.x, None, None
        if final is not None and len(released := final.history()[0]):
            x = released[0]
            score, variance = task.scoring.observed(*final.history()[1:])
            lower, upper = task.scoring.bounds
            self.best_score_, self.best_score_std_ = min(max(score.item(), lower), upper), variance.sqrt().item()
            if fresh:
                task.report("final", 1, 1, x, self.best_score_, self.best_score_std_)
        self.results_, self.best_params_ = found.results, trainer.parameters(x)
        self.best_index_ = next((row for row, point in enumerate(found.X) if torch.equal(point, x)), None)
        self.best_estimator_ = trainer.unscored(x)

    def _task(
        self,
        curator: Curator,
        space: Space,
        trainer: Trainer,
        scoring: Scoring,
        strategy: str,
        split: bool,
        groups_train: Any,
        *,
        own: bool,
    ) -> Task:
        kept = Fraction(0) if self.final_share is None else exact_share(self.final_share, "final_share")
        if kept == 1:
            raise InputError("final_share", self.final_share, "below 1", "The rest pays for the search.")
        whole = Fraction(1) if own or self.mechanism is not None else share_of_cap(curator, self.budget)
        seed, initial = int(self.random_state), int(self.n_initial)
        terms = {
            "strategy": strategy,
            "scoring": describe_scoring(self.scoring),
            "estimator": describe_estimator(self.estimator),
            "parameters": list(space.names),
            "space": describe_space(self.param_distributions),
            "seed": seed,
            "initial": initial,
            "one table, split by position": getattr(self.test_size, "item", lambda: self.test_size)() if split else False,
        }
        of_search, rest = parts_of(curator.accounting, whole, 1 - kept)
        return Task(
            curator, space, trainer, scoring, int(self.n_iter), initial, of_search, rest if kept else kept, self.mechanism,
            self.divisor, seed, self.name, terms, dict(self.strategy_options or {}), groups_train, split, self.n_jobs, int(self.verbose),
            self._callbacks(),
        )  # fmt: skip

    def _curator(self, X: Any, y: Any, groups: Any, adjacency: Adjacency, example: Any, form: Form, strategy: str) -> Curator:
        if y is None:
            raise InputError("y_val", None, "the labels of X_val")
        budget = Budget.gdp(1.0) if self.mechanism is not None else self.budget
        if not isinstance(budget, Budget):
            allowed = (
                "a Budget such as Budget(epsilon=1.0, delta=1e-6) where X_val is a table, because a share needs a whole: for a share "
                "give X_val=Curator((X_val, y_val), unit=..., adjacency=..., budget=Budget(...))"
            )
            raise InputError("budget", budget, allowed)
        accounting = _accounting(strategy, budget) if self.accounting is None else self.accounting
        curator = Curator(
            (X, y), unit=PrivacyUnit(self.unit, groups=groups), adjacency=adjacency, budget=budget, dataset=self.dataset,
            ledger=self.ledger, example=example, schema=form, allow_repeated=self.allow_repeated, accounting=accounting,
        )  # fmt: skip
        if not self.allow_repeated and self.mechanism is None and curator.repeats_records():
            raise InputError("ledger", None, "one file or URL for all searches over the same validation records", _REPEATED)
        return curator

    def _require_arguments(self) -> None:
        require_settings(self)
        if self.cv is not None:
            remedy = (
                "Remove it. DPSearch cross-validates the public training records by itself. A private row would take part in several fits "
                "and folds, and no bound is known on how far it moves the score: give private rows as X_val and y_val, or test_size."
            )
            raise InputError("cv", self.cv, "None", remedy)
        if self.refit is not False:
            raise InputError("refit", self.refit, "False", _REFIT)
        if self.n_jobs == 0:
            raise InputError("n_jobs", 0, "None, a number of workers, or -1 for all processors")
        self._callbacks()
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 150 or not self.name.isprintable():
            raise InputError("name", self.name, "a word of at most 150 printable letters")
        if not hasattr(self.estimator, "fit") or not hasattr(self.estimator, "get_params"):
            raise InputError("estimator", type(self.estimator).__name__, "a scikit-learn estimator")
        if self.strategy not in STRATEGIES:
            raise InputError("strategy", self.strategy, f"one of {STRATEGIES}")

    def _callbacks(self) -> tuple[Callable[..., Any], ...]:
        given = self.callbacks if isinstance(self.callbacks, (list, tuple)) else () if self.callbacks is None else (self.callbacks,)
        if not all(map(callable, given)):
            raise InputError("callbacks", type(self.callbacks).__name__, "a function of one SearchRelease, or a list of them")
        return tuple(given)

    @property
    def cv_results_(self) -> dict[str, Any]:
        """`results_`, under the name in which scikit-learn's tools look. Raises AttributeError before `fit`."""
        if "results_" not in vars(self):
            raise AttributeError("the search is not fitted yet")
        return self.results_

    def statement(self) -> Statement:
        """The guarantee when `fit` ended: for whom, and under which assumptions."""
        check_is_fitted(self)
        return self.statement_

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return super(DPSearch, self._without_password()).__repr__(N_CHAR_MAX=N_CHAR_MAX)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What a notebook shows."""
        return super(DPSearch, self._without_password())._repr_mimebundle_(**kwargs)

    def _facts(self) -> dict[str, Any]:
        if not hasattr(self, "statement_"):
            return {}
        score, std = self.best_score_, self.best_score_std_
        found = {name: str(value) for name, value in self.best_params_.items()}
        return {
            "Recommended": "\n".join(f"{name} = {value}" for name, value in found.items()),
            "Its released score": None if score is None else f"{score:.4g}, standard deviation of the noise {std:.2g}",
            **self.statement_.facts(),
        }

    def _without_password(self) -> Self:
        """The same search, to show: a URL may hold a password, also in its query."""
        shown = copy.copy(self)
        if isinstance(self.ledger, str) and "://" in self.ledger:
            from dpbo.curator.storage import public_place  # with SQLAlchemy

            shown.ledger = public_place(self.ledger)
        return shown

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.classifier_tags, tags.regressor_tags = own.estimator_type, own.classifier_tags, own.regressor_tags
        tags.input_tags = own.input_tags
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = False  # one label a record
        tags.non_deterministic = True  # the noise is fresh in every fit
        return tags


@checked
def rehearse(
    estimator: Any,
    param_distributions: Mapping[str, Any],
    X: Any,
    y: Any,
    *,
    units: Count,
    budget: Budget,
    shift: Annotated[float, between(0.0, 10.0)] = SHIFT,
    groups: Any = None,
    accounting: Any = None,
    **settings: Any,
) -> "Rehearsal":
    """Simulate the methods of `DPSearch` on public records: which one is expected to win at this size and budget, or the free choice.

    Args:
        estimator, param_distributions, budget: as in `DPSearch`.
        X, y: public training records.
        units: public number of protected units.
        shift: largest simulated difference of the protected population from the public one, in standard deviations; 0: drawn alike.
        groups: one label a training record, where records of one label belong together.
        accounting: as in `DPSearch`.
        settings: `n_iter`, `scoring`, `score_range`, `final_share`, `adjacency`, `error_score`, `random_state`, `n_jobs` and `verbose` of
            `DPSearch`.

    Returns:
        The methods in the order of their simulated gain; `print` shows a table.

    Raises:
        InputError: an argument outside its range.
    """
    search = DPSearch(estimator, param_distributions, budget=budget, strategy_options={"shift": shift}, accounting=accounting, **settings)
    search._require_arguments()
    X = training.sliced(X)
    training.require_labels("y", y, X)
    if groups is not None and len(training.require_labels("groups", groups, X)) < 2:
        raise InputError("groups", 1, "two or more different labels")
    space = _space(param_distributions)
    trainer = Trainer(estimator, space, X, y, search.error_score)
    scoring = scoring_named(search.scoring, search.score_range, y)
    curator = Curator.rehearsal(
        torch.zeros(units), unit=PrivacyUnit("record"), adjacency=Adjacency.of(search.adjacency), budget=budget,
        accounting=_accounting("auto", budget) if accounting is None else accounting,
    )  # fmt: skip
    if not curator.adjacency.replaces:
        search.divisor = float(units)
    task = search._task(curator, space, trainer, scoring, "auto", False, groups, own=True)
    from dpbo.search import strategies

    strategies.require_strategy_fits(task)
    return strategies.rehearse_methods(task).rehearsal


def _accounting(strategy: str, budget: Budget) -> Accounting:
    """The filter under which the strategy's releases need the least noise."""
    return PureFilter() if strategy in _FEW_RELEASES and budget.epsilon is not None else GDPFilter()


def _in_form(form: Form, X: Any, y: Any) -> Any:
    """The protected records as the curator will hold them: text and another order of columns hide no equal row."""
    try:
        return form.cast((X, y))[0]
    except InputError:
        # the curator will say why
        return X, y


def _space(distributions: Any) -> Space:
    if not isinstance(distributions, Mapping):
        raise InputError("param_distributions", distributions, "a dict of distributions and lists", "Search several dicts one by one.")
    space = Space(**distributions)
    if bool((space.bounds[0] == space.bounds[1]).all()):
        raise InputError("param_distributions", list(space.names), "of two values or more, in one parameter at least")
    return space
