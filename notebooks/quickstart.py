# %% [markdown]
# # Quickstart: tune a model on records that must not leak
#
# A bank has a model of incomes that was trained on a public survey. The survey covers people
# without a college degree, the bank's customers are graduates, and their records must not leak.
# Neither the chosen hyper-parameters nor any score may reveal a customer. Records of the Adult data
# set stand for both; they are public, so the result can be checked at the end.
#
# If the customers were like the people of the survey, cross-validating on the survey would do as
# well, and no privacy would be needed.

# %%
import os
import pathlib
import tempfile
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import loguniform
from sklearn.model_selection import cross_val_score

import dpbo
from dpbo.acquisition import suggest
from dpbo.demo import split

SMALL = bool(os.environ.get("DPBO_SMALL"))
EVALUATIONS = 12 if SMALL else 25

census = split(0, protected=2000)
published, customers = census.train, census.protected
who = np.arange(2000) // 2  # two applications each: 1,000 customers

# %% [markdown]
# ## 1. What does the budget buy?
# Public numbers are enough: how many customers, which budget, how many models we can afford to fit.
# No record is read.

# %%
budget = dpbo.Budget(epsilon=3.0, delta=1e-6)
plan = dpbo.plan(1000, budget, evaluations=EVALUATIONS, dimension=2)
print(plan)
assert plan.recommended == "bo", (
    "differences of 5 % and less are detectable, so noised scores are worth their noise"
)

# %% [markdown]
# ## 2. Hand the records over
# From here on only the curator has them. The ledger is a file: a killed process resumes from it,
# and all later uses of these records are added to it.

# %%
folder = pathlib.Path(tempfile.mkdtemp())


def opened() -> dpbo.Curator:
    return dpbo.Curator(
        customers,
        unit=dpbo.PrivacyUnit("customer", groups=who),
        adjacency=dpbo.Adjacency.REPLACE_ONE,
        budget=budget,
        dataset="applications, 2026",
        ledger=str(folder / "ledger.db"),
    )


curator = opened()

# %% [markdown]
# ## 3. What is searched, what is fitted, what is scored
# `train` reads public records only. `right` returns one number a record and scores each record by
# itself, which `check_per_record` tests on the survey.

# %%
space = dpbo.Space(learning_rate=loguniform(0.01, 0.3), weight=loguniform(0.25, 8.0))


def model_of(learning_rate: float, weight: float) -> Any:
    """`weight`: how much an income above 50,000 dollars counts in training."""
    return census.model().set_params(
        learning_rate=learning_rate, class_weight={0: 1.0, 1: weight}
    )


def train(x: torch.Tensor) -> Any:
    return model_of(**space.decode(x)).fit(*published)


def right(model: Any, records: Any) -> Any:
    return model.predict(records[0]) == records[1]


dpbo.testing.check_per_record(right, train(space.sample(1, seed=1)[0]), published)


def planned(
    curator: dpbo.Curator,
) -> tuple[dpbo.PrivateObjective, dpbo.PrivateObjective]:
    """The search with nine tenths of the budget, and one last release with the rest."""
    terms = {"score_range": (0.0, 1.0), "fit": train}
    search = dpbo.PrivateObjective(
        curator, right, evaluations=EVALUATIONS, name="search", budget=0.9, **terms
    )  # type: ignore[arg-type]
    return search, dpbo.PrivateObjective(
        curator, right, evaluations=1, name="final", budget=0.1, **terms
    )  # type: ignore[arg-type]


objective, final = planned(curator)
print(
    f"noise of one evaluation: {objective.noise_std.item():.4f}; of the last release:"
    f" {final.noise_std.item():.4f}"
)

# %% [markdown]
# ## 4. The loop
# Every released value is public, so the loop is ordinary Bayesian optimisation with known noise. It
# reads its history from the ledger each time, which is all that resuming takes.

# %%
objective(space.sample(8, seed=0))
while objective.remaining:
    objective(suggest(space, *objective.history(), seed=objective.remaining))

X, Y, Yvar = objective.history()
# not Y.argmax(), which is often high by chance
best = X[objective.model(space).posterior(X).mean.argmax()]
print(space.decode(best))

# %% [markdown]
# ## 5. One separate release says how good it is
# The best posterior mean is biased upward, because it is the best of many. The last tenth of the
# budget buys an estimate without that bias. It is for these 1,000 customers, and its interval
# counts the noise alone: for new customers it is a little too high, because the choice was made on
# these.

# %%
estimate, variance = final(best.unsqueeze(0))
margin = 1.96 * variance.sqrt().item()
print(f"accuracy on customers: {estimate.item():.3f} +- {margin:.3f}")
print(curator.statement())

# %% [markdown]
# ## 6. The budget is used up
# Started again, the script finds all released values in the ledger, and is refused any further
# evaluation.

# %%
again, _ = planned(opened())
assert torch.equal(again.history()[1], Y)
assert again.remaining == 0
try:
    again(space.sample(1, seed=5))
except dpbo.BudgetExceeded as refused:
    print(refused)
else:
    raise AssertionError("the plan was used up")

# %% [markdown]
# ## 7. The truth
# These stand-ins for customers are public, so the result can be checked: the estimate is right. On
# other graduates the chosen model is better than the default one and than the free choice, which is
# the best of as many configurations by cross-validation on the survey.

# %%
truth = float(right(train(best), customers).mean())
free = max(
    space.sample(EVALUATIONS, seed=0),
    key=lambda x: cross_val_score(model_of(**space.decode(x)), *published).mean(),
)
others = [
    float(right(model, census.test).mean())
    for model in (census.model().fit(*published), train(free), train(best))
]
print(f"true accuracy on customers {truth:.3f}")
print(
    "on other graduates: default {:.3f}, free choice {:.3f}, ours {:.3f}".format(
        *others
    )
)

figure, axis = plt.subplots(figsize=(7, 3.5))
axis.errorbar(
    range(1, EVALUATIONS + 1),
    Y.squeeze(1),
    1.96 * Yvar.squeeze(1).sqrt(),
    fmt="o",
    capsize=3,
    label="released scores",
)
axis.errorbar(
    [EVALUATIONS + 1],
    [estimate.item()],
    1.96 * variance.sqrt().item(),
    fmt="s",
    capsize=3,
    label="the last release",
)
axis.axhline(
    truth, color="0.4", linestyle="--", label="true accuracy of the chosen model"
)
axis.set(
    xlabel="evaluation",
    ylabel="accuracy on customers",
    title="Released scores, with the noise's 95 % intervals",
)
axis.legend(loc="lower right")
figure.tight_layout()

# %%
assert others[2] > max(others[:2]) + 0.01
assert abs(estimate.item() - truth) < 6 * variance.sqrt().item(), (
    "six standard deviations, with two applications a customer averaged"
)
assert str(curator.statement().guarantee).startswith("(3.000, 1e-06)-DP")
