"""A fitted search used as the estimator that it recommends: predictions and attributes are that
estimator's."""

from collections.abc import Callable
from typing import Any

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpbo.records.protected_records import require_unprotected


def _has(name: str) -> Callable[[Any], bool]:
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), name)


class Recommended:
    """Passes scikit-learn's calls on to `best_estimator_`."""

    best_estimator_: Any

    @property
    def classes_(self) -> Any:
        """The recommended estimator's classes."""
        return self._best().classes_

    @property
    def n_features_in_(self) -> int:
        """The recommended estimator's number of features."""
        return int(self._best().n_features_in_)

    @property
    def feature_names_in_(self) -> Any:
        """The recommended estimator's names of features."""
        return self._best().feature_names_in_

    def _best(self) -> Any:
        """Raises NotFittedError before `fit`: an AttributeError, too, so that `hasattr` answers as
        for scikit-learn's own searches."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    @available_if(_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """The recommended estimator's predictions."""
        return self._best().predict(X)

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """The recommended estimator's probabilities."""
        return self._best().predict_proba(X)

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """The recommended estimator's decision function."""
        return self._best().decision_function(X)

    @available_if(_has("score"))  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: Any = None) -> Any:
        """The recommended estimator's own score on other records: exact, not private.

        Raises:
            InputError: some of them are records that a ledger of this process protects.
        """
        best = self._best()
        require_unprotected("X", X, y)
        return best.score(X, y)
