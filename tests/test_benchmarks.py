"""Every benchmark runs at a tiny size, and the examples do what they say."""

import json
import pathlib
import subprocess
import sys

import pytest

HELPERS = ("__init__", "harness", "paired", "peers", "gpu_device", "gpu_runs", "gpu_sums",
           "dpgibo_problems", "dpgibo_experiments", "kusner_problems", "kusner_tuning",
           "outsourced_problems", "outsourced_releases", "outsourced_search", "outsourced_pictures",
           "dpem_compositions", "dpem_paper", "dpem_peer", "dpem_pictures", "strategies_problems", "private_selection_tables")  # fmt: skip
NAMES = sorted(p.stem for p in (pathlib.Path(__file__).parents[1] / "benchmarks").glob("*.py") if p.stem not in HELPERS)


@pytest.mark.parametrize("name", NAMES)
def test_benchmark_smoke(name, tmp_path):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--smoke", "--json", str(tmp_path / "r.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=pathlib.Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert "| --- |" in done.stdout
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["smoke"] is True
    assert result["figures"]


def test_a_planted_leak_is_found_by_every_instrument_and_an_honest_score_by_none():
    from examples.check_your_objective import honest, leaking, verdicts

    assert [verdict.startswith("LEAK") for _, verdict in verdicts(honest)] == [False] * 3
    assert [verdict.startswith("LEAK") for _, verdict in verdicts(leaking)] == [True] * 3


@pytest.mark.usefixtures("seeded_noise")
def test_f1_over_a_gp_of_jointly_released_cells():
    from examples.f1_from_cells import tune

    tuned, usual, curator = tune(evaluations=14)
    assert tuned > usual, "the recommendation beats the usual threshold"
    charges = [record for record in curator.ledger.records() if record.kind == "charge"]
    assert charges[0].body["event"]["slots"] == 8
    assert sum(record.body["event"]["slots"] for record in charges) == 14
    assert "(3.000, 1e-06)-DP" in str(curator.statement())


@pytest.mark.usefixtures("seeded_noise")
def test_what_others_released_warms_up_the_next_search():
    from examples.warm_start import embedded_table, guided_by_teams

    plain, guided, statement = guided_by_teams(tasks=8)
    assert guided < 0.7 * plain
    assert "(1.000, 1e-05)-DP" in str(statement)
    wide, narrow, _ = embedded_table(runs=16)
    assert narrow < 0.8 * wide


@pytest.mark.usefixtures("seeded_noise")
def test_an_optuna_study_stops_by_itself_and_recommends_by_the_mean():
    import optuna

    from examples.optuna_study import tune

    study, accuracy, curator = tune(evaluations=12)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 12
    assert 0.6 < accuracy < 1.1
    assert isinstance(study.pruner, optuna.pruners.NopPruner)
    assert "(3.000, 1e-06)-DP" in str(curator.statement())
    assert curator.ledger.head().used == {"search": 12, "final": 1}


@pytest.mark.usefixtures("seeded_noise")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a stalled line search, which BoTorch tries again
def test_an_ax_experiment_generates_what_can_be_paid_for():
    import dpbo.integrations.ax  # noqa: F401  # it loads Ax without the warnings of Ax's own imports
    from examples.ax_client import tune

    loop, curator = tune(evaluations=8)
    assert loop.next() == loop.running == []
    assert len(loop.client.summarize()) == len(loop.objective.history()[0]) == 8
    assert loop.recommended().mean > 0.85
    assert "(8.000, 1e-06)-DP" in str(curator.statement())
