"""The main job, private against open: does tuning at (3, 1e-5) keep the gain over the default SVM?

Ten paired seeds: the same split, the same initial points, the same loop; one sees noisy releases, the other the true accuracies. Beside
them the default SVC() and the same private budget on Sobol points alone.
The claim: the recommended test accuracy is within 0.5 points of non-private BO in the mean, and at least half of its gain is kept.
"""

from __future__ import annotations

import json
import statistics

from benchmarks.harness import options, record, table
from dpbo.demo import Digits, accuracy, default_model, fit, split, tune_openly, tune_privately
from dpbo.privacy import Budget

BUDGET = Budget(epsilon=3.0, delta=1e-5)


def one_seed(seed: int, evaluations: int) -> dict[str, float]:
    """Test accuracies in percent, and how far the private estimate is from the truth in standard errors."""
    digits: Digits = split(seed)
    private = tune_privately(digits, BUDGET, evaluations=evaluations, seed=seed)
    sobol = tune_privately(digits, BUDGET, evaluations=evaluations, initial=evaluations, seed=seed)
    tuned = fit(digits.train, private.x)
    error = (private.estimate or 0.0) - accuracy(tuned, digits.validation)
    return {
        "default": 100 * accuracy(default_model(digits.train), digits.test),
        "open": 100 * accuracy(fit(digits.train, tune_openly(digits, evaluations=evaluations, seed=seed)), digits.test),
        "private": 100 * accuracy(tuned, digits.test),
        "private Sobol": 100 * accuracy(fit(digits.train, sobol.x), digits.test),
        "estimate error / se": error / private.standard_error,
    }


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def main() -> None:
    """Print each seed, the paired differences, and the claim."""
    chosen = options(__doc__)
    seeds, evaluations = (range(2), 10) if chosen.smoke else (range(10), 30)
    runs = []
    for seed in seeds:
        runs.append(one_seed(chosen.seed + seed, evaluations))
        print(json.dumps({"seed": chosen.seed + seed, **{name: round(value, 3) for name, value in runs[-1].items()}}), flush=True)
    loss = mean_and_error([run["open"] - run["private"] for run in runs])
    gain = mean_and_error([run["open"] - run["default"] for run in runs])
    kept = mean_and_error([run["private"] - run["default"] for run in runs])
    rows: list[tuple[str, float, float | str, str]] = [
        (name, *mean_and_error([run[name] for run in runs]), "") for name in ("default", "open", "private", "private Sobol")
    ]
    rows += [
        ("open - private", *loss, "<= 0.5"),
        ("gain of open BO over default", *gain, "> 0"),
        ("gain of private BO over default", *kept, ">= half of it"),
        ("share of the gain kept", kept[0] / gain[0], "", ">= 0.5"),
    ]
    print(table(("test accuracy, percentage points", "mean", "paired standard error", "claim"), rows))
    record("main_job", {"runs": runs, "loss": loss, "gain": gain, "kept": kept, "share": kept[0] / gain[0]}, chosen)


if __name__ == "__main__":
    main()
