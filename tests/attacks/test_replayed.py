"""A6, A7 by enumeration: every export of the algorithms and wings is replayed by a named test, or
listed as public with a reason.

A new export fails here until it stands in one of both tables; what takes a Curator or an objective
may stand in the first alone. That the named tests exist and carry both classes is checked by
reading them.
"""

import importlib
import inspect
from typing import Any

from dpbo import objective as objective_module
from dpbo.algorithms import asynchronous, two_stage_search
from dpbo.dpsgd import hidden_runs, selection
from dpbo.gibo import algorithm as gibo
from dpbo.papers.em.estimator import PrivateEstimator
from dpbo.queries.query import Query
from tests.attacks.marks import attack, marks_of

HERE = "tests/attacks/test_replays.py::"
STEERS = f"{HERE}test_nothing_but_releases_steers_or_shows"
CONDITIONAL = f"{HERE}test_conditional_releases_too"
MIDDLE = f"{HERE}test_rows_outcomes_and_the_modeler_between_them"
HIDDEN = "tests/attacks/test_hidden_replays.py::"
SEARCH = "tests/integration/test_search.py::test_nothing_but_releases_steers_it"

REPLAYED = {
    "PrivateObjective": STEERS,
    "AsynchronousBO": STEERS,
    "AsynchronousResult": STEERS,
    "Chosen": STEERS,
    "search_then_choose": STEERS,
    "DPGIBO": STEERS,
    "GIBOResult": STEERS,
    "choose_start": STEERS,
    "DensityRatioProposals": f"{HIDDEN}test_hidden_runs_follow_from_noised_scores_alone",
    "NoisedScore": f"{HIDDEN}test_hidden_runs_follow_from_noised_scores_alone",
    "Selected": f"{HIDDEN}test_hidden_runs_follow_from_noised_scores_alone",
    "private_selection": f"{HIDDEN}test_hidden_runs_follow_from_noised_scores_alone",
    "selection_event": f"{HIDDEN}test_hidden_runs_follow_from_noised_scores_alone",
    "DPFactorAnalysis": STEERS,
    "DPKMeans": STEERS,
    "DPLloyd": STEERS,
    "DPGaussianMixture": STEERS,
    "DPEM": STEERS,
    "KusnerSearch": CONDITIONAL,
    "AdaptiveLipschitz": CONDITIONAL,
    "RegularisedBest": CONDITIONAL,
    "ClippedGradient": STEERS,
    "Outcomes": MIDDLE,
    "RowTable": MIDDLE,
    "release_rows": MIDDLE,
    "Modeler": MIDDLE,
    "plan_rows": MIDDLE,
    "search": MIDDLE,
    "DPSearch": SEARCH,
    "ClientObjective": "tests/integration/test_ax.py::test_replay_of_an_experiment",
    "TrialObjective": "tests/integration/test_optuna.py::test_replay_of_a_study",
    "NoiseAwareSampler": "tests/integration/test_optuna.py::test_replay_of_a_study",
    "recommended_trial": "tests/integration/test_optuna.py::test_replay_of_a_study",
    "recommended": "tests/integration/test_ax.py::test_replay_of_an_experiment",
    "PrivateEngine": (
        "tests/integration/test_opacus_noise.py::test_steps_follow_from_noised_sums_alone"
    ),
    "LedgerAccountant": (
        "tests/integration/test_opacus_noise.py::test_steps_follow_from_noised_sums_alone"
    ),
    "tune": f"{HIDDEN}test_tuning_follows_from_noised_scores_alone",
    "serve": f"{HERE}test_what_the_server_says_follows_from_releases_alone",
}
PUBLIC = {
    "GIBOSettings": "data",
    "embedding": "of a fitted, released analysis",
    "read_release": "released files",
    "write_release": "released files",
    "po_gp_ucb_transform": "not private, and refused unless that is said",
    "row_noises": "public numbers",
    "RemoteOutcomes": "a client of the server",
    "plan_tuning": "public numbers",
    "DPSGDConfig": "public numbers",
    "Session": "Opacus trains within it; attested",
    "StudyEnded": "an error",
    "grid_of_box": "public candidates",
    "rehearse": "public training records",
    "Recommendation": "data",
    "Rehearsal": "data",
    "SearchRelease": "data",
    "posterior_of_one_unit": "of a model of released values",
    "GradientPosterior": "a model of released values",
    "GradientGP": "a model of released values",
    "GradientInformation": "of a model of released values",
    "suggest_gradient_points": "of a model of released values",
    "Replicas": "data",
    "replicate": "records that are not private, and refused unless that is said",
    "SearchResult": "data",
    "Privacy": "data",
    **dict.fromkeys(
        ("Auto", "Choice", "NoisedSearch", "Strategy", "WeightedCV"), "settings of DPSearch"
    ),
}


def exported():
    """Every public name of the packages, by what tells two of one name apart."""
    results = (
        gibo.GIBOResult,
        asynchronous.AsynchronousResult,
        selection.Selected,
        two_stage_search.Chosen,
    )
    rarer = (
        objective_module.PrivateObjective,
        *results,
        selection.selection_event,
        hidden_runs.DensityRatioProposals,
    )
    found: dict[str, Any] = {thing.__name__: thing for thing in rarer}
    wings = (
        "algorithms",
        "dpsgd",
        "gibo",
        "search",
        "papers.em",
        "papers.kusner",
        "papers.po_gp_ucb",
    )
    beside = ("integrations", "integrations.ax", "integrations.optuna")
    for package in (importlib.import_module(f"dpbo.{name}") for name in (*wings, *beside)):
        for name in package.__all__:
            if not inspect.ismodule(thing := getattr(package, name)):
                found[name] = thing
    return found


def touches_records(thing):
    """It takes a curator or what is made of one, or it is a question to one."""
    if not callable(thing):
        return False
    if isinstance(thing, type) and (
        issubclass(thing, (PrivateEstimator, Query)) or hasattr(thing, "fit")
    ):
        return True
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return False
    names = {
        parameter.name for parameter in parameters if "Remote" not in str(parameter.annotation)
    }
    return bool(names & {"curator", "objective", "outcomes"})


@attack("A6", "A7")
def test_every_export_is_replayed_or_public():
    found = exported()
    assert not (set(found) - {*REPLAYED, *PUBLIC}), (
        "a new export: name its replay, or why it touches no records"
    )
    assert not ({*REPLAYED, *PUBLIC} - set(found)), "exported no more"
    assert not (set(REPLAYED) & set(PUBLIC))
    wrongly = [name for name in PUBLIC if touches_records(found[name])]
    assert not wrongly, f"{wrongly} take private records and have no replay"
    assert sum(map(touches_records, found.values())) >= 15


def test_the_named_replays_exist_and_try_both():
    for name, node in REPLAYED.items():
        assert {"A6", "A7"} <= marks_of(node), name
