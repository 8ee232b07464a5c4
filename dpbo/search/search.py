"""`DPSearch`: a hyper-parameter search like scikit-learn's RandomizedSearchCV, on validation
records that must not leak.

    search = DPSearch(pipeline, {"svc__C": loguniform(1e-2, 1e3)}, budget=Budget(1.0, 1e-6))
    search.fit(X_train, y_train, X_val, y_val)
    search.best_params_, search.predict(X_new), print(search.statement())

Training records are public, or protected by other means: models, errors of a fit and the set of
classes reveal them. Validation records are held by a curator and influence the search through
releases only; `results_` and `recommendation_` hold released values and their noise.
"""

import inspect
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import torch
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from dpbo.accounting.filters import Accounting, GDPFilter, PureFilter
from dpbo.curator.curator import Curator
from dpbo.curator.pricing import require_left, share_of_cap
from dpbo.curator.statements import SPLIT
from dpbo.errors import InputError, UsageError
from dpbo.fingerprint import describe_estimator, describe_scoring
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.notebook import FactsAfterFit
from dpbo.privacy import Adjacency, Budget, PrivacyUnit, exact_share
from dpbo.records.containers import require_converted
from dpbo.records.form import Form
from dpbo.records.labels import require_one_index
from dpbo.records.protected_records import require_other_rows, require_unnamed
from dpbo.search import training
from dpbo.search.problem import Problem
from dpbo.search.recommendation import Recommendation
from dpbo.search.recommended import Recommended
from dpbo.search.results import SearchRelease, fitting_result, results_table
from dpbo.search.scorings import Scoring, scoring_named
from dpbo.search.task import Task
from dpbo.search.training import Tables, Trainer, split_once
from dpbo.statement import Statement
from dpbo.validation import (
    Count,
    Positive,
    Seed,
    Within,
    at_least,
    between,
    checked,
    named_settings,
    one_of,
    require_settings,
    warn,
)

if TYPE_CHECKING:
    from dpbo.search.rehearsal import Rehearsal
    from dpbo.search.strategies import Strategy

NAMES = ("auto", "weighted_cv", "choice", "bo")
_NAME = Within(
    "a word of at most 150 printable letters",
    lambda name: 0 < len(name) <= 150 and name.isprintable(),
)
_WORKERS = Within("a number of workers, or -1 for all processors", lambda value: value != 0)


def _takes_a_release(function: Any) -> bool:
    """Whether it can be called with one argument, as far as it says: its error would come after the
    first release was paid for."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        # It says nothing, as some functions written in C.
        pass
    return True


_CALLBACKS = Within(
    "a function of one SearchRelease, or a list of them",
    lambda given: (
        given is None
        or (isinstance(given, (list, tuple)) and all(map(_takes_a_release, given)))
        or _takes_a_release(given)
    ),
)
_WEIGHTS = (
    "A protected record's weight would scale what it adds to the score beyond what the noise "
    "covers. For training, let the estimator weigh records itself (class_weight=, or a fit that "
    "computes weights); for scores, give a scoring of your own that multiplies each record's "
    "score by a public function of that record, within score_range=."
)
_OF_FIT = (
    "Give the estimator its parameters when you make it. What a fit needs each time, such as"
    " eval_set of early stopping, must be public: a subclass whose fit splits its own training rows"
    ' gives it (docs/how-to/search.md, "Early stopping").'
)
_NOT_REHEARSED = (
    "strategy='auto' cannot rehearse scoring={!r}, which is not a mean of one number per record: "
    "it can only search on noised scores, as strategy='bo' does, and refuses where their noise "
    "would hide any difference. Pass strategy='bo', or a scoring such as 'neg_brier_score'."
)
_REPEATED = (
    "this process has already queried some of these protected records under another ledger, and "
    "two budgets add up to more than either statement says. Nothing was charged. Give every search "
    "the same privacy=Privacy(dataset=...), or one Curator and a share of its budget "
    "each; a ledger that is new then takes allow_repeated=True the first time. "
    "Privacy(allow_repeated=True) alone accepts the larger loss, and the statement will say so."
)
# Settings of `Privacy` that may be given beside a Curator.
_BESIDE_A_CURATOR = ("divisor", "mechanism")
_IN_THE_OPEN = (
    "Models are fitted to training records in the open, and may reproduce them, whatever the "
    "budget: take protected records out of the training table."
)


@checked
@dataclass(frozen=True)
class Privacy:
    """How a search protects validation records. Beside a `Curator` only `divisor` and `mechanism`
    count, and what would say otherwise than the Curator is refused.

    Args:
        unit: what is protected, in a word; with `groups` in `fit`, all records with one label
            together.
        adjacency: "replace-one", or "add-or-remove-one" with a public `divisor`.
        divisor: public number of units that sums are divided by.
        dataset, ledger: as in `Curator`: the name of what is protected, under which all searches on
            this machine share a budget, and another place for its ledger. The same name of the
            search, terms, records, estimator and scoring resume it.
        accounting: how releases add up. Omitted: `PureFilter` for strategies that release once or
            twice, if the budget has an epsilon; else `GDPFilter`. Searches that share a ledger need
            the same.
        allow_repeated: allow validation records that this process has queried under another ledger
            in memory, as cross_val_score and GridSearchCV do; the statement then says that the
            other budgets add to this one.
        share: of the search's `budget`, what this search may spend. The rest is left on the ledger
            for later searches over the same records, with the same `budget`.
        mechanism: `NoNoise(allow_not_private=True)` runs "bo" without privacy, as a baseline.
    """

    unit: str = "record"
    adjacency: Adjacency | str = "replace-one"
    divisor: Positive | None = None
    dataset: str | None = None
    # A URL may hold a password.
    ledger: str | pathlib.Path | None = field(default=None, repr=False)
    accounting: Accounting | None = None
    allow_repeated: bool = False
    share: Annotated[float, between(1e-6, 1.0)] = 1.0
    mechanism: NoNoise | None = None


@named_settings
class DPSearch(Recommended, FactsAfterFit, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Search hyper-parameters on private validation records.

    Models are fitted to public training records. The protected ones are only asked with
    noise: how they differ from the public ones, which candidate is best, by how much.

    ============================  ====================================================
    `fit(X, y, X_val, y_val)`     search; with `groups=` a person's records are one unit
    `predict`, `best_estimator_`  the recommended model, trained on public records
    `recommendation_`             what is recommended, and by how much it is better
    `free_params_`, `rehearsal_`  what costs no privacy, and what to expect
    `results_`, `statement()`     every candidate, and what is guaranteed
    ============================  ====================================================

    >>> import dpbo
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> tree, depths = DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3]}
    >>> search = dpbo.DPSearch(tree, depths, budget=dpbo.Budget(1.0, 1e-6), n_iter=3)
    >>> search = search.fit(X[::2], y[::2], X[1::2], y[1::2])  # public, then protected
    >>> print(search.statement().guarantee, "for", sorted(search.best_params_))
    (1.000, 0.0)-DP for ['max_depth']

    Args:
        estimator: any scikit-learn estimator or pipeline, with every step of preprocessing: a
            pipeline around the search would fit its steps to protected rows. Give it a
            random_state, because it is fitted again at the end.
        param_distributions: name -> frozen scipy.stats distribution or list, as in
            RandomizedSearchCV. A list of such dicts, or objects that only have `rvs`, give `n_iter`
            configurations that are drawn once, which "bo" cannot search.
        budget: a `Budget`, or with a Curator a share in (0, 1] of its budget. Left out only for a
            baseline without privacy.
        n_iter: number of configurations to fit, beside the default model; those that are
            cross-validated are fitted five times.
        scoring: "accuracy", "true_class_probability", "neg_brier_score", "neg_log_loss" (clipped at
            -3 unless `score_range` says otherwise), "neg_mean_squared_error",
            "neg_mean_absolute_error", or `scoring(model, X, y)` that returns one number a record,
            each record scored by itself. With "bo" also "balanced_accuracy", "precision", "recall",
            "f1", "f1_macro", "roc_auc" and "average_precision" (the last two by `predict_proba`,
            or else by `decision_function`). Of labels other than 0 and 1, -1 and 1, or bools say
            which class a score is about: `make_scorer(f1_score, pos_label="good")`.
        score_range: public (lower, upper) of one record's score; scores outside are clipped.

    Method args:
        strategy: an object, or a name for it with its defaults. "auto", `Auto`, cross-validates
            `n_iter` candidates on the training records, finds one of them for the protected
            records, and tests it against the default model; see `rehearsal_`. "weighted_cv",
            `WeightedCV`: the best for how the protected records are spread, without a test.
            "choice", `Choice`: one private choice between the default model and the best
            cross-validated candidates, or all. "bo", `NoisedSearch`: a search on noised scores,
            then a test; F1, balanced accuracy, ROC AUC, a baseline without privacy and unlabelled
            records need it.
        test_size: for one table in `fit`, the size of its protected validation part, as in
            train_test_split: a fraction in (0, 1), or a number of rows. The table is split once, by
            position.

    Privacy args:
        privacy: a `Privacy`: who is protected, where the ledger is kept, how releases add up;
            omitted, `Privacy()`: each record, in memory.

    Run args:
        error_score: "raise" an exception from a fit before anything is charged for it, or count
            that configuration as "worst" (and pay).
        name: name of the search in the ledger.
        random_state: a whole number; seeds the public split, Sobol points and proposals, never
            noise.
        n_jobs: number of joblib's workers for fits to public training records that are known ahead:
            cross-validation, the candidates of a choice, Sobol points. None: as joblib's context
            says, else 1; -1: all processors. Results are the same for any number, given a
            random_state. Protected records are scored in this process alone.
        verbose: 0 shows nothing; 1 bars on a terminal, without times; 2 also a line at each step,
            with counts, what is read from the ledger, and each release with its noise.
        callbacks: functions that are called with a `SearchRelease` after each release: its
            parameters, and the score and its noise where one is released. If one returns True, a
            search by "bo" ends there and its recommendation is tested. What was planned stays
            reserved: a later `fit` on the same ledger is charged for the rest, and keeps the
            recommendation.

    There is no `cv`: one private row takes part in several fits, and no bound is known on how far
    it moves a cross-validated score. There is no `refit`: a model trained on validation records
    reveals them. `best_estimator_` is trained on the training records.

    Attributes:
        best_params_, best_estimator_: the recommended configuration, and the estimator fitted with
            it on the training records.
        recommendation_: the `Recommendation`: what was shown of it, in numbers and as a sentence.
        best_gain_: its gain over the default model on the protected records is larger than this,
            but for a risk of .1 (`Auto(risk=)`), by the means over units of clipped score
            differences; 0.0 where the default model was kept; NaN where no number was released.
        best_score_: its released score, where scores cannot be paired (F1 and the like); else NaN.
        results_: the configurations, as a dict of columns like `cv_results_`
            (`pandas.DataFrame(search.results_)` is a table); where they were cross-validated, row 0
            is the default model. `params`; `param_NAME`, masked arrays;
            `mean_test_score`, the released score, with noise; `std_test_score`, the standard
            deviation of that noise (not a spread over folds); `rank_test_score`, by the released
            scores. The last three are NaN, or masked, where a strategy releases no score of each
            configuration: all but "bo". Further columns: `posterior_mean`, by which "bo"
            recommends, so that the recommended one need not have rank 1; `cv_score` and
            `weighted_cv_score`, cross-validated on public records; `chosen`. No times: those of
            scores may tell of records.
        cv_results_: the same dict, where scikit-learn's users look; nothing in it was
            cross-validated on protected records.
        releases_: each `SearchRelease` that this `fit` made, in order. They stay where a callback's
            error or Ctrl-C ends it: they are paid for, and a ledger in memory keeps them nowhere
            else.
        best_index_: the recommended configuration's place in `results_`.
        free_params_: the best cross-validated configuration, which costs no privacy; None where
            nothing was cross-validated.
        rehearsal_: with "auto" the `Rehearsal`; else None.
        statement_: the guarantee when `fit` ended.
    """

    _not_taken: ClassVar[dict[str, str]] = {
        "cv": "one private row takes part in several fits, and no bound is known on how far it"
        " moves a cross-validated score. The public records are cross-validated in five folds.",
        "refit": "a model trained on validation records reveals them. best_estimator_ is trained on"
        " the training records.",
        "n_trials": "n_iter= is the number of configurations.",
        "timeout": "times of scores may tell of records. n_iter= is the number of configurations.",
        "epsilon": "budget=Budget(epsilon=..., delta=...) holds it.",
        "delta": "budget=Budget(epsilon=..., delta=...) holds it.",
    }

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        budget: Any = None,
        n_iter: Count = 40,
        scoring: Any = "accuracy",
        score_range: Any = None,
        strategy: Any = "auto",
        test_size: Any = None,
        privacy: Privacy | None = None,
        error_score: Annotated[str, one_of("raise", "worst")] = "raise",
        name: Annotated[str, _NAME] = "search",
        random_state: Seed = 0,
        n_jobs: Annotated[int, _WORKERS] | None = None,
        verbose: Annotated[int, at_least(0, 2)] = 1,
        callbacks: Annotated[Any, _CALLBACKS] = None,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.budget = budget
        self.n_iter = n_iter
        self.scoring = scoring
        self.score_range = score_range
        self.strategy = strategy
        self.test_size = test_size
        self.privacy = privacy
        self.error_score = error_score
        self.name = name
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.callbacks = callbacks

    def set_params(self, **params: Any) -> Self:
        """Set arguments by name, as in scikit-learn: `strategy__cells=4` also where the strategy
        was given as a name.

        Raises:
            InputError: a part of `budget` or `privacy`, which are given whole.
        """
        for name in params:
            whole, _, part = name.partition("__")
            if part and whole in ("budget", "privacy"):
                given = f"{whole}=, whole"
                remedy = f"dataclasses.replace(old, {part}=...) makes a new one of an old one."
                raise InputError(name, params[name], f"given as {given}", remedy)
            if whole == "strategy" and part:
                strategy = params.get("strategy", self.strategy)
                params = {**params, "strategy": _strategy_of(strategy)}
        super().set_params(**params)
        return self

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
            X_train, y_train: the training records, which are public or protected by other means.
                With `test_size` and without X_val, they are one table that is split once, and only
                its validation part is protected. Else take protected rows out yourself, by merging
                the tables: they are refused only where clearly more rows are equal, label and all,
                than the rows that repeat within either table explain, or where a whole column of
                many values is the same. Where no row repeats, one equal row gives a warning. A row
                that differs in one cell is another row.
            X_val, y_val: the private validation records; X_val may be a Curator over (X, y),
                without y_val. Labels may be one column of a table, or several of numbers where
                `scoring` is a function.
            groups: one label a validation record; all records with one label are protected
                together. Private.
            groups_train: labels of the training records, where they are known: records of one
                label are in one fold of the public cross-validation, and none of the labels may be
                among `groups`, where these are given. With a Curator the two are not compared.
            fit_params: refused, `sample_weight` with the reason: every record, or unit, counts
                alike.

        Raises:
            InputError: an argument outside its range, records that another ledger in memory
                protects, or protected records among the training records.
            BudgetExceeded: the budget is not left.
            LedgerMismatch: the name belongs to another search.
        """
        require_settings(self)
        given = Tables(X_train, y_train, X_val, y_val)
        tables = self._validated(given, groups, groups_train, fit_params)
        split = X_val is None
        X_train, y_train = map(training.own_form, (tables.X_train, tables.y_train))
        trainer = Trainer.of(self, X_train, y_train)
        scoring = scoring_named(self.scoring, self.score_range, y_train, self.estimator)
        strategy = self._strategy(scoring, y_train)
        task = self._task(trainer, scoring, groups_train, split=split)
        # Before there is a ledger.
        strategy.require_suitable(task)
        curator = self._curator(tables, groups, trainer, strategy, split=split)
        share = exact_share(self._protection.share, "share")
        # Another one's curator: the search has a share of its budget.
        if curator is X_val and task.mechanism is None:
            share = share_of_cap(curator.ledger, self.budget)
        problem = Problem.of(task, curator, share)
        if problem.begun is None:
            if problem.mechanism is None:
                require_left(curator.ledger, problem.share, f"the search {self.name!r}")
            strategy.try_out(problem)
        self.free_params_: Any = None
        if strategy.cross_validates:
            problem = problem.cross_validated()
            self.free_params_ = trainer.parameters(problem.public.best)
        problem = strategy.decided(problem)
        self.rehearsal_ = problem.rehearsal
        bound = {"estimator": self.estimator, "scoring": self.scoring}
        kept = {"training records": trainer.table()}
        curator.bind(f"{self.name}: whole", bound, tables=kept, begun=problem.charged)
        found = fitting_result(problem.strategy.run(problem))
        best = None if found.best is None else found.configurations[found.best]
        self.best_index_ = found.best
        self.best_params_ = trainer.parameters(best)
        self.recommendation_ = found.recommendation or Recommendation(
            self.best_params_,
            False,
            untested=f"strategy {problem.strategy.name!r} makes no test",
        )
        self.best_gain_ = self.recommendation_.gain
        self.best_score_ = self.recommendation_.score
        parameters = [trainer.parameters(x) for x in found.configurations]
        self.results_ = results_table(parameters, **found.columns)
        self.statement_ = replace(curator.statement(), recommended=str(self.recommendation_))
        # The search is paid for: results and statement stay, whether or not this fit fails.
        self.best_estimator_ = trainer.public_model(best)
        if self.best_estimator_ is None:
            remedy = "The recommended configuration cannot be fitted."
            raise InputError("error_score", self.error_score, "'raise' to see why", remedy)
        return self

    def _validated(
        self, given: Tables, groups: Any, groups_train: Any, fit_params: Mapping[str, Any]
    ) -> Tables:
        """The training and the validation records, in forms whose rows can be taken; one table is
        split.

        Raises:
            InputError: names the argument of `fit` that is not allowed.
        """
        for name, value in fit_params.items():
            remedy = _WEIGHTS if name == "sample_weight" else _OF_FIT
            raise InputError(name, type(value).__name__, "left out of fit", remedy)
        for name, table in given._asdict().items():
            require_converted(name, table)
        X_train, y_train, X_val, y_val = given
        # A scorer of scikit-learn's compares one label a record.
        several = callable(self.scoring) and not hasattr(self.scoring, "_score_func")
        y_train = training.label_columns("y_train", y_train, several=several)
        y_val = training.label_columns("y_val", y_val, several=several, public=False)
        require_one_index("y_train", y_train, "X_train", X_train)
        require_one_index("groups_train", groups_train, "X_train", X_train)
        require_one_index("y_val", y_val, "X_val", X_val)
        require_one_index("groups", groups, "X_val", X_val)
        tables = Tables(training.sliced(X_train), y_train, training.sliced(X_val), y_val)
        if X_val is None:
            adjacency = Adjacency.of(self._protection.adjacency)
            seed = int(self.random_state)
            tables = split_once(tables, groups, groups_train, self.test_size, seed, adjacency)
        tables.require_apart(groups, groups_train)
        return tables

    @property
    def _protection(self) -> Privacy:
        if self.privacy is None:
            return Privacy()
        return self.privacy

    def _strategy(self, scoring: Scoring, y_train: Any) -> "Strategy":
        from dpbo.search import strategies

        strategy = _strategy_of(self.strategy)
        if not isinstance(strategy, strategies.Auto):
            return strategy
        if scoring.cells is not None:
            warn(_NOT_REHEARSED.format(self.scoring), UserWarning)
        elif self._protection.mechanism is None and y_train is not None:
            return strategy
        # There are no scores of single records to rehearse with, or nothing to protect.
        return strategies.NoisedSearch()

    def _curator(
        self, tables: Tables, groups: Any, trainer: Trainer, strategy: "Strategy", *, split: bool
    ) -> Curator:
        privacy = self._protection
        X_val, y_val = tables.X_val, tables.y_val
        if isinstance(X_val, Curator):
            if groups is not None:
                raise InputError(
                    "groups", type(groups).__name__, "given to the Curator, in its PrivacyUnit"
                )
            for each in fields(privacy):
                value = getattr(privacy, each.name)
                said = each.name == "allow_repeated" and value == X_val._allow_repeated
                if not said and each.name not in _BESIDE_A_CURATOR and value != each.default:
                    remedy = "The Curator that is X_val has its own; its share is `budget`."
                    raise InputError(each.name, value, "left out with a Curator", remedy)
            for name, value in self._code(trainer).items():
                X_val.protected.require_unnamed(name, value)
            X_val.protected.require_apart("X_train", trainer.table(), _IN_THE_OPEN)
            X_val.protected.warn_if_scaled(trainer.table())
            return X_val
        form = trainer.form()
        # Rows of one table have places of their own, equal or not.
        if not split and privacy.mechanism is None:
            own = _in_form(form, X_val, y_val)
            require_other_rows("X_train", trainer.table(), own, "validation", _IN_THE_OPEN)
        if y_val is None:
            raise InputError("y_val", None, "the labels of X_val")
        if privacy.mechanism is None:
            for name, value in self._code(trainer).items():
                require_unnamed(name, value, (X_val, y_val), "validation")
        budget = self.budget if privacy.mechanism is None else Budget.gdp(1.0)
        if not isinstance(budget, Budget):
            allowed = (
                "a Budget such as Budget(epsilon=1.0, delta=1e-6) where X_val is a table, because "
                "a share needs a whole: for a share give X_val=Curator((X_val, y_val), unit=..., "
                "adjacency=..., budget=Budget(...))"
            )
            raise InputError("budget", budget, allowed)
        curator = Curator(
            (X_val, y_val),
            unit=PrivacyUnit(privacy.unit, groups=groups),
            adjacency=privacy.adjacency,
            budget=budget,
            dataset=privacy.dataset,
            ledger=privacy.ledger,
            accounting=_accounting(privacy, strategy, budget),
            example=trainer.example(),
            schema=form,
            allow_repeated=privacy.allow_repeated,
        )
        compared = not privacy.allow_repeated and privacy.mechanism is None
        if compared and curator.protected.are_repeated():
            raise UsageError(_REPEATED)
        if privacy.mechanism is None:
            curator.protected.warn_if_scaled(trainer.table())
        return curator

    def _code(self, trainer: Trainer) -> dict[str, Any]:
        """The arguments whose functions see training or protected records."""
        return {
            # A copy that is not fitted: what a fit left in the caller's is not used.
            "estimator": trainer.configured(None),
            "param_distributions": self.param_distributions,
            "scoring": self.scoring,
        }

    def _task(self, trainer: Trainer, scoring: Scoring, groups_train: Any, *, split: bool) -> Task:
        """What the search is to do."""
        privacy = self._protection
        seed = int(self.random_state)
        self.releases_: list[SearchRelease] = []
        callbacks = (self.callbacks,) if callable(self.callbacks) else tuple(self.callbacks or ())
        test_size = self.test_size
        # A number of numpy's is no JSON value.
        if hasattr(test_size, "item"):
            test_size = test_size.item()
        terms = {
            "scoring": describe_scoring(self.scoring),
            "estimator": describe_estimator(self.estimator),
            "parameters": list(trainer.space.parameters),
            "space": trainer.space.to_json(),
            "seed": seed,
            SPLIT: split and test_size,
        }
        if scoring.positive is not None:
            terms["positive class"] = str(scoring.positive)
        return Task(
            space=trainer.space,
            trainer=trainer,
            scoring=scoring,
            n_iter=int(self.n_iter),
            mechanism=privacy.mechanism,
            divisor=privacy.divisor,
            seed=seed,
            name=self.name,
            terms=terms,
            groups_train=groups_train,
            by_name=getattr(self.strategy, "name", self.strategy) != "auto",
            split=split,
            n_jobs=self.n_jobs,
            verbose=int(self.verbose),
            callbacks=(self.releases_.append, *callbacks),
        )

    @property
    def cv_results_(self) -> dict[str, Any]:
        """`results_`, under the name in which scikit-learn's tools look. Raises AttributeError
        before `fit`."""
        check_is_fitted(self, "results_")
        return self.results_

    def statement(self) -> Statement:
        """The guarantee when `fit` ended: for whom, and under which assumptions."""
        check_is_fitted(self)
        return self.statement_

    def __str__(self) -> str:
        """As scikit-learn shows it, and after `fit` what is recommended."""
        return f"{self!r}\n{getattr(self, 'recommendation_', '')}".rstrip()

    def _facts(self) -> dict[str, Any]:
        if not hasattr(self, "statement_"):
            return {}
        best = self.best_params_.items()
        return {
            "Recommended": "\n".join(f"{name} = {value!s}" for name, value in best),
            "What was shown": str(self.recommendation_),
            **self.statement_.facts(),
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        own = get_tags(self.estimator)
        tags.estimator_type = own.estimator_type
        tags.classifier_tags = own.classifier_tags
        tags.regressor_tags = own.regressor_tags
        tags.input_tags = own.input_tags
        if tags.classifier_tags is not None:
            # One label a record.
            tags.classifier_tags.multi_label = False
        # The noise is fresh in every fit.
        tags.non_deterministic = True
        return tags


@checked
def rehearse(
    estimator: Any,
    param_distributions: Any,
    X: Any,
    y: Any,
    *,
    units: Count,
    budget: Budget,
    shift: Annotated[float, between(0.0, 10.0)] = 1.0,
    groups: Any = None,
    **settings: Any,
) -> "Rehearsal":
    """Simulate the methods of `DPSearch` on public records: which one is expected to win at this
    size and budget, or the free choice.

    Args:
        estimator, param_distributions, budget: as in `DPSearch`.
        X, y: public training records.
        units: public number of protected units.
        shift: as in `Auto`; 0: protected and public records are drawn alike.
        groups: one label a training record, where records of one label belong together.
        settings: `n_iter`, `scoring`, `score_range`, `privacy`, `error_score`, `random_state`,
            `n_jobs` and `verbose` of `DPSearch`.

    Returns:
        The methods in the order of their simulated gain; `print` shows a table.

    Raises:
        InputError: an argument outside its range.
    """
    from dpbo.search.strategies import Auto

    search = DPSearch(estimator, param_distributions, budget=budget, **settings)
    require_settings(search)
    X = training.sliced(X)
    training.require_labels("y", y, X)
    if groups is not None and len(training.require_labels("groups", groups, X)) < 2:
        raise InputError("groups", 1, "two or more different labels")
    strategy = Auto(shift=shift)
    privacy = search._protection
    curator = Curator.rehearsal(
        torch.zeros(units, device="cpu"),
        unit="record",
        adjacency=privacy.adjacency,
        budget=budget,
        accounting=_accounting(privacy, strategy, budget),
    )
    if not curator.adjacency.replaces:
        search.privacy = replace(privacy, divisor=float(units))
    trainer = Trainer.of(search, X, y)
    scoring = scoring_named(search.scoring, search.score_range, y, estimator)
    task = search._task(trainer, scoring, groups, split=False)
    strategy.require_suitable(task)
    share = exact_share(privacy.share, "share")
    return strategy.rehearsal(Problem.of(task, curator, share).cross_validated())


def _strategy_of(given: Any) -> "Strategy":
    """The strategy that is given as an object or as a name for it with its defaults."""
    # With BoTorch's optimizers and scikit-learn's models, which only a fit needs.
    from dpbo.search import strategies

    if isinstance(given, str) and given in NAMES:
        return strategies.BY_NAME[given]()
    if not isinstance(given, strategies.Strategy):
        shown = f"the class {given.__name__}" if isinstance(given, type) else given
        allowed = f"one of {NAMES}, or a Strategy such as WeightedCV(cells=4)"
        raise InputError("strategy", shown, allowed)
    if not hasattr(given, "name"):
        allowed = "of a class with a `name`, by which the ledger knows it"
        raise InputError("strategy", type(given).__name__, allowed)
    return given


def _accounting(privacy: Privacy, strategy: "Strategy", budget: Budget) -> Accounting:
    """The filter that is given, or the one under which the strategy's releases need the least
    noise.
    """
    if privacy.accounting is not None:
        return privacy.accounting
    if strategy.few_releases and budget.epsilon is not None:
        return PureFilter()
    return GDPFilter()


def _in_form(form: Form, X: Any, y: Any) -> Any:
    """The protected records as the curator will hold them: text and another order of columns hide
    no equal row."""
    try:
        return form.cast((X, y))[0]
    except InputError:
        # The curator will say why.
        return X, y
