"""scikit-learn's own checks, on instances with a budget and a public radius; what cannot apply is listed with its reason."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from dpbo import Budget
from dpbo.algorithms.em import DPFactorAnalysis, DPGaussianMixture, DPKMeans, DPLloyd

BUDGET = Budget.gdp(20.0)  # scikit-learn's data sets have 20 to 100 rows
NOT_APPLICABLE = {
    "check_estimators_nan_inf": "fit counts rows that are not finite as nothing: refusing them would tell that they are there",
    "check_dtype_object": "fit counts a cell that is no number as a broken record: refusing it would tell that it is there",
    "check_fit_idempotent": "every fit draws fresh noise, whatever random_state is",
}


def instances():
    return [
        DPGaussianMixture(2, budget=BUDGET, radius=10.0, random_state=0),
        DPGaussianMixture(1, budget=BUDGET, radius=10.0, covariance_type="diag", method="map", frame_iter=0, random_state=0),
        DPKMeans(2, budget=BUDGET, radius=10.0, random_state=0),
        DPLloyd(2, budget=BUDGET, radius=10.0, random_state=0),
        DPFactorAnalysis(1, budget=BUDGET, radius=10.0, random_state=0),
    ]


@parametrize_with_checks(instances(), expected_failed_checks=lambda _: NOT_APPLICABLE)
def test_check_estimator(estimator, check):
    check(estimator)
