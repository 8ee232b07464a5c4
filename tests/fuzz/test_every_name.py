"""Every public constructor and call, with one or two hostile arguments: it works, or a typed error says which argument and why."""

import logging

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dpbo.testing import LedgerContract, MechanismContract, QueryContract, RowContract, SelectionContract, VectorContract
from tests.fuzz import cases_algorithms, cases_integrations, cases_learning, cases_search, cases_values, hostile, names
from tests.fuzz.watched import watched

CASES = {**cases_values.CASES, **cases_search.CASES, **cases_algorithms.CASES, **cases_learning.CASES, **cases_integrations.CASES}
CONTRACTS = (LedgerContract, MechanismContract, QueryContract, RowContract, SelectionContract, VectorContract)
RESULTS = {  # made by dpbo and read by its users
    "AsynchronousResult",
    "Audit",
    "Chosen",
    "Answer",
    "GIBOResult",
    "LawChoice",
    "NotPrivateRows",
    "Plan",
    "Recommendation",
    "Release",
    "ReleasedRows",
    "RowNoise",
    "Selected",
    "Statement",
    "StrategyPlan",
    "TunedModel",
    "TuningPlan",
    "TuningPlans",
}
NOT_CALLED = {
    "dpbo.Adjacency": "an Enum of Python's own",
    "dpbo.BudgetExceeded": "an error, raised by dpbo",
    "dpbo.PrivacyError": "an error, raised by dpbo",
    "dpbo.integrations.optuna.BudgetSpent": "an error, raised by dpbo",
    "dpbo.objective.NoiseWarning": "a warning, given by dpbo",
    "dpbo.integrations.RemoteRefusal": "an error, raised by dpbo",
    "dpbo.Ranks": "needs several processes: tests/ranks",
    "dpbo.acquisition.Proposes": "a protocol",
    "dpbo.integrations.opacus.Fit": "a protocol",
    "dpbo.models.ModelBuilder": "a protocol",
    "dpbo.models.Derivatives": "abstract",
    "dpbo.queries.Query": "abstract",
    "dpbo.queries.ClippedScores": "abstract",
    "dpbo.mechanisms.Mechanism": "abstract",
    "dpbo.mechanisms.AdditiveMechanism": "abstract",
    "dpbo.mechanisms.SelectionMechanism": "abstract",
    "dpbo.laws.RunLaw": "abstract",
    "dpbo.laws.CountLaw": "abstract",
    "dpbo.events.Event": "abstract",
    "dpbo.events.ExactEvent": "abstract",
    "dpbo.algorithms.PAPER": "a value",
    "dpbo.algorithms.RECOMMENDED": "a value",
    "dpbo.integrations.serve": "runs until interrupted: its application is called",
    "dpbo.privacy.require_positive": "a check",
    "dpbo.privacy.require_count": "a check",
    "dpbo.privacy.require_probability": "a check",
    "dpbo.privacy.require_range": "a check",
}


HOOKS = {  # beside those that the classes name: dpbo calls them, with what it has checked
    "dpbo.algorithms.NoisedScore": "query",
    "dpbo.algorithms.Adaptive": "__call__ interest",
    "dpbo.algorithms.kusner.KusnerSearch": "run",
    "dpbo.models.GradientPosterior": "factor noisy points whitened_cross",
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """A word is a good file name for a ledger: let it lie where nobody looks."""
    monkeypatch.chdir(tmp_path)


def _without_a_case():
    for name, thing in names.public().items():
        own = name.rpartition(".")[2]
        if (
            name not in CASES
            and name not in NOT_CALLED
            and own not in RESULTS
            and not (isinstance(thing, type) and issubclass(thing, CONTRACTS))
        ):
            yield name


def test_every_public_name_has_a_good_call():
    assert not list(_without_a_case()), "add it to tests/fuzz/cases_*.py, or say in NOT_CALLED why nobody calls it"


def _qualified(base):
    """The public name of a class, or where it stands."""
    return next((name for name, thing in names.public().items() if thing is base), f"{base.__module__}.{base.__qualname__}")


def _hooks(thing):
    """What `checked` leaves alone."""
    return [vars(base).get("_hooks", ()) for base in thing.__mro__]


def _methods_without_a_case():
    for name, thing in names.public().items():
        if name in CASES and isinstance(thing, type):
            bases = [_qualified(base) for base in thing.__mro__]
            hooks = {hook for base in bases for hook in HOOKS.get(base, "").split()}.union(*_hooks(thing))
            yield from (
                f"{name}.{own}" for own in names.methods(thing) if own not in hooks and not any(f"{b}.{own}" in CASES for b in bases)
            )


def test_every_public_method_has_a_good_call():
    assert not list(_methods_without_a_case()), "add it to tests/fuzz/cases_*.py, or to HOOKS where dpbo alone calls it"


def test_no_entry_outlives_its_name():
    known = names.public()
    assert not [name for name in NOT_CALLED if name not in known]
    assert not [name for name in CASES if not any(name == own or name.startswith(f"{own}.") for own in known)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_good_call_is_good(name):
    case = CASES[name]
    logging.getLogger("ax").setLevel(logging.ERROR)
    outcome = watched(case, lambda good: good)
    assert outcome.error is None, repr(outcome.error)
    assert not outcome.faults


def _tried(name, examples):
    case = CASES[name]
    case.build()
    good = case.good()
    if not good:
        return

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(picks=st.one_of(hostile.arguments(good), hostile.arguments(good), hostile.arguments(good, 2)))
    def holds(picks):
        outcome = watched(case, lambda fresh: hostile.replaced(fresh, picks))
        assert not outcome.faults, (name, picks, outcome.faults)

    holds()


def _examples(name, most):
    return max(int(most / (1 + 30 * CASES[name].dear)), 2)


@pytest.mark.attack("A5")
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_hostile_argument_is_refused_by_name_or_works(name):
    _tried(name, _examples(name, 12))


@pytest.mark.deep
@pytest.mark.attack("A5")
@pytest.mark.parametrize("name", sorted(CASES))
def test_many_hostile_arguments(name):
    _tried(name, _examples(name, 240))
