"""The models of the zoo, each with its space, as a user of scikit-learn would write them. They are
fitted once for the same parameters and records.
"""

import copy
from typing import Any

import numpy as np
from scipy.stats import loguniform, randint, uniform
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, SVR

_fits: dict[tuple[Any, ...], dict[str, Any]] = {}


class Remembers:
    """Fits once for the same parameters and records, until `forget_fits`."""

    def fit(self, X: Any, y: Any) -> Any:
        parameters = repr(sorted(self.get_params().items(), key=str))  # type: ignore[attr-defined]
        key = type(self).__name__, parameters, X.tobytes(), y.tobytes()
        if key not in _fits:
            super().fit(X, y)  # type: ignore[misc]
            _fits[key] = copy.deepcopy(self.__dict__)
        # A copy: set_params on the steps of a pipeline would change what is remembered.
        self.__dict__.update(copy.deepcopy(_fits[key]))
        return self


class Chain(Remembers, Pipeline):  # type: ignore[misc]
    """A pipeline."""


class ForestClassifier(Remembers, RandomForestClassifier):  # type: ignore[misc]
    """A forest for classes."""


class ForestRegressor(Remembers, RandomForestRegressor):  # type: ignore[misc]
    """A forest for numbers."""


class WeightedBoosting(HistGradientBoostingClassifier):  # type: ignore[misc]
    """With the positive class' weight and the leaves as continuous parameters, for fast
    proposals.
    """

    def __init__(
        self,
        learning_rate: float = 0.1,
        leaves: float = 31.0,
        leaf_size: float = 20.0,
        weight: float = 1.0,
        max_iter: int = 30,
    ) -> None:
        super().__init__(early_stopping=False, random_state=0, categorical_features=None)
        self.learning_rate = learning_rate
        self.leaves = leaves
        self.leaf_size = leaf_size
        self.weight = weight
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any) -> Any:
        self.max_leaf_nodes, self.min_samples_leaf = round(self.leaves), round(self.leaf_size)
        return super().fit(X, y, np.where(y == 1, self.weight, 1.0))


class BoostingClassifier(Remembers, WeightedBoosting):
    """Boosting for classes."""


class BoostingRegressor(Remembers, HistGradientBoostingRegressor):  # type: ignore[misc]
    """Boosting for numbers."""


def forget_fits() -> None:
    """Free what models remember."""
    _fits.clear()


WEIGHT = [None, "balanced"]
TREES = {"min_samples_leaf": randint(1, 60), "max_features": uniform(0.1, 0.9)}


def model_and_space(kind: str, *, classes: bool) -> tuple[Any, dict[str, Any]]:
    """The default model of a kind ("boosting", "linear", "forest", "svm") and the space it is tuned
    in.
    """
    filled = [("fill", SimpleImputer(strategy="median")), ("scale", StandardScaler())]
    model: Any
    match kind, classes:
        case "boosting", True:
            return BoostingClassifier(), {
                "learning_rate": loguniform(0.01, 0.3),
                "leaves": loguniform(3, 64),
                "leaf_size": loguniform(5, 100),
                "weight": loguniform(0.25, 8.0),
            }
        case "boosting", False:
            model = BoostingRegressor(max_iter=50, early_stopping=False, random_state=0)
            return model, {
                "learning_rate": loguniform(0.01, 0.3),
                "max_leaf_nodes": randint(3, 64),
                "min_samples_leaf": randint(5, 100),
                "loss": ["squared_error", "absolute_error"],
            }
        case "linear", True:
            model = Chain([*filled, ("model", LogisticRegression(max_iter=300))])
            return model, {"model__C": loguniform(1e-4, 10.0), "model__class_weight": WEIGHT}
        case "linear", False:
            products = PolynomialFeatures(1, interaction_only=True, include_bias=False)
            model = Chain([*filled, ("products", products), ("model", Ridge())])
            return model, {"model__alpha": loguniform(0.1, 1e4), "products__degree": [1, 2]}
        case "forest", True:
            model = ForestClassifier(n_estimators=40, random_state=0)
            return model, {**TREES, "class_weight": WEIGHT}
        case "forest", False:
            return ForestRegressor(n_estimators=40, random_state=0), TREES
        case "svm", True:
            machine = CalibratedClassifierCV(SVC(), ensemble=False, cv=3)
            return Chain([*filled, ("model", machine)]), {
                "model__estimator__C": loguniform(0.01, 100.0),
                "model__estimator__gamma": loguniform(1e-3, 1.0),
                "model__estimator__class_weight": WEIGHT,
            }
        case _:
            return Chain([*filled, ("model", SVR())]), {
                "model__C": loguniform(0.01, 100.0),
                "model__gamma": loguniform(1e-3, 1.0),
                "model__epsilon": loguniform(0.01, 0.3),
            }
