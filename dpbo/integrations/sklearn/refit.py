"""A fitted search as the estimator that it recommends: predictions and features are that one's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpbo.curator.record_fingerprints import holds_protected
from dpbo.errors import InputError
from dpbo.integrations.sklearn.training import readable


def _has(name: str) -> Callable[[Any], bool]:
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), name)


class Recommended:
    """What a search passes on to its `best_estimator_`."""

    best_estimator_: Any

    @property
    def classes_(self) -> Any:
        """Of the recommended estimator."""
        check_is_fitted(self)
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self) -> int:
        """Of the recommended estimator."""
        return int(self._best().n_features_in_)

    @property
    def feature_names_in_(self) -> Any:
        """Of the recommended estimator."""
        return self._best().feature_names_in_

    def _best(self) -> Any:
        """What `hasattr` takes for an answer before `fit`, as scikit-learn's own searches do."""
        if not hasattr(self, "best_estimator_"):
            raise AttributeError("the search is not fitted yet")
        return self.best_estimator_

    @available_if(_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """By the recommended estimator."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """By the recommended estimator."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """By the recommended estimator."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X)

    @available_if(_has("score"))  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: Any = None) -> Any:
        """The recommended estimator's own score on records of the caller's: exact, in the open.

        Raises:
            InputError: some of them are records that a ledger of this process protects.
        """
        check_is_fitted(self)
        if holds_protected((readable(X), readable(y))):
            remedy = "A score on them is exact, and no budget covers it: use best_score_, or score records that nothing protects."
            raise InputError("X", type(X).__name__, "free of records that a ledger of this process protects", remedy)
        return self.best_estimator_.score(X, y)
