"""The main job, private against open: does tuning at (3, 1e-5) keep the gain over the default SVM?

Ten paired seeds: the same split, the same initial points, the same loop; one sees noisy releases, the other the true accuracies. Beside
them the default SVC() and the same private budget on Sobol points alone.
The claim: the recommended test accuracy is within 0.5 points of non-private BO in the mean, and at least half of its gain is kept.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.harness import mean_and_error, options, record, table
from dpbo.demo import Digits, accuracy, default_model, fit, split, tune_openly, tune_privately
from dpbo.privacy import Budget

BUDGET = Budget(epsilon=3.0, delta=1e-5)


def few(digits: Digits, records: int = 60) -> Digits:
    """So many records of each part, to see that a benchmark runs."""
    return Digits(*((features[:records], labels[:records]) for features, labels in digits))


def one_seed(digits: Digits, evaluations: int, seed: int) -> dict[str, float]:
    """Test accuracies in percent, and how far the private estimate is from the truth in standard errors."""
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


def main(arguments: list[str] | None = None) -> None:
    """Print each seed, the paired differences, and the claim."""
    chosen = options(__doc__, arguments)
    seeds, evaluations = (1, 9) if chosen.smoke else (10, 30)
    runs = []
    for seed in range(chosen.seed, chosen.seed + seeds):
        runs.append(one_seed(few(split(seed)) if chosen.smoke else split(seed), evaluations, seed))
        print(json.dumps({"seed": seed, **{name: round(value, 3) for name, value in runs[-1].items()}}), flush=True)
    loss = mean_and_error([run["open"] - run["private"] for run in runs])
    gain = mean_and_error([run["open"] - run["default"] for run in runs])
    kept = mean_and_error([run["private"] - run["default"] for run in runs])
    rows: list[tuple[Any, ...]] = [
        *((name, *mean_and_error([run[name] for run in runs]), "") for name in ("default", "open", "private", "private Sobol")),
        ("open - private", *loss, "<= 0.5"), ("gain of open BO over default", *gain, "> 0"),
        ("gain of private BO over default", *kept, ">= half of it"), ("share of the gain kept", kept[0] / gain[0], "", ">= 0.5"),
    ]  # fmt: skip
    print(table(("test accuracy, percentage points", "mean", "paired standard error", "claim"), rows))
    record("main_job", {"runs": runs, "loss": loss, "gain": gain, "kept": kept, "share": kept[0] / gain[0]}, chosen)


if __name__ == "__main__":
    main()
