# %% [markdown]
# # A private density of what worked before, and how it warms up the next tuning run
#
# Some 5,000 clinics each tuned the same kind of model on their own patients. Their best settings
# would help the next clinic, but a setting can tell about the patients it was tuned on, and about
# the clinic. Below, a mixture of Gaussians is released on those settings, each clinic protected at
# (1, 1e-5), and then used: as a density to look at, to sample from, and to guide Bayesian
# optimisation. The mixture is fitted by DP-EM (Park, Foulds, Chaudhuri and Welling 2016), with a
# sound joint release in the place of the paper's separate ones: the notebook DP-EM says why. There
# is no free choice: no clinic's setting is public. All records are made up here, which is why the
# notebook may look at them.

# %%
from __future__ import annotations

import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from sklearn.mixture import GaussianMixture

import dpbo
from dpbo.acquisition import prior_guided
from dpbo.papers.em import DPGaussianMixture

SMALL = bool(os.environ.get("DPBO_SMALL"))
CLINICS, TASKS, EVALUATIONS = 5000, (10 if SMALL else 40), 9

# %% [markdown]
# ## The records
# One row a clinic: log10 of its best learning rate and of its best weight decay, scaled to the unit
# square. Two habits of data lead to two groups of good settings. A handful of clinics sent
# nonsense; they count as nothing, and nobody can tell that they are there.

# %%
rng = np.random.default_rng(5)
group = rng.random(CLINICS) < 0.6
settings = np.where(
    group[:, None],
    rng.normal([0.30, 0.65], [0.05, 0.10], size=(CLINICS, 2)),
    rng.normal([0.75, 0.25], [0.08, 0.04], size=(CLINICS, 2)),
)
settings[:5] = np.nan

# %% [markdown]
# ## The release
# The curator owns the rows. The estimator reserves all of its releases at once, each a Gaussian of
# the same multiplier, and what comes out is public: a density, samples, responsibilities. `radius`
# and `center` are public: they describe the square, not the clinics.

# %%
curator = dpbo.Curator(
    torch.from_numpy(settings),
    unit=dpbo.PrivacyUnit("clinic"),
    adjacency=dpbo.Adjacency.REPLACE_ONE,
    budget=dpbo.Budget(epsilon=1.0, delta=1e-5),
    role="candidate",
)
private = DPGaussianMixture(
    2, budget=1.0, radius=0.7, center=[0.5, 0.5], dimension=2, random_state=0
).fit(curator)
print(private.statement())
fresh = np.where(
    (rng.random(1000) < 0.6)[:, None],
    rng.normal([0.30, 0.65], [0.05, 0.10], (1000, 2)),
    rng.normal([0.75, 0.25], [0.08, 0.04], (1000, 2)),
)
unprotected = GaussianMixture(2, random_state=0).fit(settings[5:])
print(
    f"log-density of 1,000 new clinics: {private.score(fresh):.3f} private,"
    f" {unprotected.score(fresh):.3f} without protection"
)

# %% [markdown]
# ## The next tuning run
# A new clinic's loss has its optimum somewhere; here it is drawn as the others were. From three
# random settings on, expected improvement chooses; guided, its logarithm gets beta/t times the
# private log-density at the t-th choice, which fades as the clinic's own evaluations come in. A
# tenth of the density is spread over the whole square, so a clinic that is unlike all others is
# slowed, not stopped.

# %%
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()


def tune(optimum: torch.Tensor, guided: bool, seed: int) -> list[float]:
    """Regret after each evaluation."""
    grid = torch.rand(
        2000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )

    def loss(X: torch.Tensor) -> torch.Tensor:
        return (
            ((X - optimum) / torch.tensor([0.2, 0.3]).double())
            .square()
            .sum(1, keepdim=True)
            .sqrt()
        )

    X = grid[:3]
    for t in range(1, EVALUATIONS - 2):
        values = -loss(X)
        kernel = ScaleKernel(RBFKernel()).double()
        kernel.base_kernel.lengthscale, kernel.outputscale = 0.3, 1.0
        standard = (values - values.mean()) / values.std()
        model = SingleTaskGP(
            X,
            standard,
            train_Yvar=torch.full_like(values, 1e-4),
            covar_module=kernel,
            outcome_transform=None,
        )
        acquisition = LogExpectedImprovement(model, standard.max())
        if guided:
            acquisition = prior_guided(
                acquisition, private.log_density, t=t, beta=4.0, bounds=BOUNDS
            )
        with torch.no_grad():
            X = torch.cat(
                [X, grid[acquisition(grid.unsqueeze(1)).argmax()].unsqueeze(0)]
            )
    return loss(X).flatten().cummin(0).values.tolist()


optima = torch.from_numpy(fresh[:TASKS])
paths = {
    guided: np.array(
        [tune(optimum, guided, seed) for seed, optimum in enumerate(optima)]
    )
    for guided in (False, True)
}
stranger = torch.tensor([0.9, 0.9]).double()
unlike = {
    guided: np.array([tune(stranger, guided, seed) for seed in range(TASKS)])
    for guided in (False, True)
}
for name, found in (
    ("clinics like the others", paths),
    ("a clinic unlike all others", unlike),
):
    plain, helped = (float(np.median(found[guided][:, -1])) for guided in (False, True))
    print(
        f"{name}: median regret after {EVALUATIONS} evaluations {plain:.3f}, "
        f"guided {helped:.3f}"
    )

# %%
figure, (density, regret) = plt.subplots(1, 2, figsize=(10, 4))
x = np.linspace(0, 1, 80)
square = torch.from_numpy(np.stack(np.meshgrid(x, x), -1))
density.contourf(
    x, x, private.log_density(square).exp().numpy(), levels=12, cmap="Blues"
)
density.plot(*settings[5:200].T, "k.", ms=2, alpha=0.4)
density.set(
    xlabel="log learning rate, scaled",
    ylabel="log weight decay, scaled",
    title="released density (dots: for demonstration)",
)
for guided, path in paths.items():
    regret.plot(
        range(1, EVALUATIONS + 1),
        np.median(path, 0),
        label="guided" if guided else "plain",
    )
for guided, path in unlike.items():
    regret.plot(
        range(1, EVALUATIONS + 1),
        np.median(path, 0),
        ":",
        label=f"{'guided' if guided else 'plain'}, unlike all others",
    )
regret.set(xlabel="evaluation", ylabel="median regret", yscale="log")
regret.legend(fontsize=8)
figure.tight_layout()

# %%
assert str(private.statement().guarantee).startswith("(1.000, 1e-05)-DP")
assert private.score(fresh) > GaussianMixture(1).fit(settings[5:]).score(fresh), (
    "it found that there are two groups"
)
guided_regret, plain_regret = (
    float(paths[guided][:, 3:].mean()) for guided in (True, False)
)
print(
    f"mean regret over all chosen evaluations: plain {plain_regret:.3f}, "
    f"guided {guided_regret:.3f}"
)
assert guided_regret < 0.85 * plain_regret, "what others found helps"
assert np.median(unlike[True][:, -1]) < unlike[True][:, 2].mean(), (
    "and does not stop who is unlike them"
)
