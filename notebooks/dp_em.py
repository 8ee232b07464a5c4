# %% [markdown]
# # DP-EM: what the paper promises, what holds, and what to use
#
# Park, Foulds, Chaudhuri and Welling (*DP-EM: Differentially Private Expectation Maximization*,
# 2016) promise three things:
#
# 1. EM is private for every model of an exponential family if noise is added to the moments that
#    its M-step reads: one record of n moves a mean of statistics by at most 2 sup |s| / n.
# 2. Under zCDP or the moments accountant the noise of many iterations is small enough to be useful,
#    as it is not under linear or advanced composition.
# 3. Factor analysis of 400 faces reads their second moment alone, which is released once; at the
#    larger of two epsilons (1 in the authors' code) its faces are "nearly as recognizable" as
#    without privacy.
#
# The first two hold, once the noise for a covariance is made four times as large as in the authors'
# code. Of the third the single release holds, and the faces cannot. Below all three are run on real
# records, and beside each of them what to use instead: `DPGaussianMixture`, `DPEM` and
# `DPFactorAnalysis`.
#
# These records are public, which is why the notebook may draw likelihoods of them. The text of the
# paper that we have lacks its formulas; where constants matter they are those of the authors' code.

# %%
from __future__ import annotations

import math
import os
import pathlib

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits, load_sample_image
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import ShuffleSplit

import dpbo
from dpbo.accounting.gdp import mu_within
from dpbo.papers.em import DPFactorAnalysis, DPGaussianMixture

SMALL = bool(os.environ.get("DPBO_SMALL"))
# components and iterations are the paper's; its delta, 1e-4, is above one over the
# number of records, of which dpbo warns
K, J, DELTA, EACH = 3, 10, 1e-5, 1e-8
EPSILONS, SPLITS = ((1.0,), 1) if SMALL else ((0.1, 0.3, 1.0, 3.0, 10.0), 3)

# %% [markdown]
# ## Records
# The paper's Life Science data where the variable DPBO_DATA names a folder that has them: ten
# principal components of 26,733 compounds. Elsewhere the colours of as many pixels of a photograph
# that ships with scikit-learn. All of them lie within a public radius; `inward` maps it to 1, as
# the paper assumes.

# %%
file = pathlib.Path(os.environ.get("DPBO_DATA", "")) / "lifesci" / "lifesci.npz"
if file.is_file():
    records, center, radius = np.load(file)["X"].astype(float), np.zeros(10), 17.0
    what = "Life Science"
else:
    colours = load_sample_image("china.jpg").reshape(-1, 3) / 255.0
    records = np.random.default_rng(0).permutation(colours)[:26_733]
    center, radius = np.full(3, 0.5), math.sqrt(0.75)
    what = "colours of a photograph"
d = records.shape[1]
print(what, records.shape)


def inward(X: np.ndarray) -> np.ndarray:
    Z = (X - center) / radius
    return Z / np.maximum(1.0, np.linalg.norm(Z, axis=1, keepdims=True))


# %% [markdown]
# ## The second promise: composition
# Each of J iterations releases K + K + 1 numbers or tables: weights, means, covariances. What the
# noise of each must be, as a multiple of its sensitivity, by four ways to count; and what dpbo
# needs, which releases all of an iteration at once and counts J Gaussian releases exactly.


# %%
def multiplier(composition: str, epsilon: float) -> float:
    releases = J * (2 * K + 1)
    if composition == "linear":
        return math.sqrt(2 * math.log(1.25 * releases / DELTA)) * releases / epsilon
    if composition == "advanced":
        rest = math.log(1 / (DELTA - releases * EACH))
        each = brentq(
            lambda e: (
                releases * e * math.expm1(e)
                + math.sqrt(2 * releases * rest) * e
                - epsilon
            ),
            1e-9,
            10.0,
        )
        return math.sqrt(2 * math.log(1.25 / EACH)) / each
    if composition == "zCDP":
        rho = (math.sqrt(epsilon - math.log(DELTA)) - math.sqrt(-math.log(DELTA))) ** 2
        return math.sqrt(releases / (2 * rho))
    return math.sqrt(J) / mu_within(epsilon, DELTA)


COMPOSITIONS = ("linear", "advanced", "zCDP")
for name in (*COMPOSITIONS, "one joint release"):
    print(
        f"{name:>18}: {multiplier(name, 1.0):6.1f} times the sensitivity at epsilon 1"
    )

# %% [markdown]
# So zCDP needs a small part of the noise of the older compositions: the promise holds. (The moments
# accountant over real orders gives the same number.) A joint release needs less again, because the
# K components share one sensitivity: a record's responsibilities sum to 1.
#
# ## The first promise: sensitivity
# The bound 2 sup |s| / n is right for a mean over a public number of records. But a covariance is
# no such mean. Take 1,000 records at one end of an axis, and move one to the other end. What the
# authors' code releases for a single component moves this far, in units of what its noise is for:


# %%
def code_covariance(X: np.ndarray) -> np.ndarray:
    """pmkt3/condGaussCpdCreate.m of github.com/mijungi/dpem_code, times the
    denominator of its sensitivity.
    """
    mean = X.mean(0)
    scatter = (X - mean).T @ (X - mean)
    return (
        0.1 * np.eye(2)
        + scatter
        + 1.01 * len(X) / (1.01 + len(X)) * np.outer(mean, mean)
    )


one_side = np.tile([1.0, 0.0], (1000, 1))
neighbour = one_side.copy()
neighbour[0] = [-1.0, 0.0]
moved = np.linalg.norm(code_covariance(one_side) - code_covariance(neighbour))
print(f"the covariance moves by {moved:.2f} times what its noise is for")

# %% [markdown]
# So a release that claims to be mu-GDP is nearly 4 mu-GDP for this pair. (And the code divides
# means by the exact number of a component's records, which is as private as they are.) Either the
# noise is four times as large, or the moments are released as they are, uncentred: then all moments
# of all components together, (g_k, g_k x, g_k x x') for k = 1 to K, move by at most sqrt 6 when a
# record is replaced, and parameters follow from them. That is `DPGaussianMixture`, and it needs no
# assumption.
#
# ## Figure 3
# The paper's Figure 3 on these records: test log-likelihood a record against epsilon, with the
# constants of the code (not private) on the left and with sound ones on the right, beside
# `DPGaussianMixture` in both. This is Algorithm 1, all noise Gaussian ("GGG"); numpy draws it,
# because here laws are compared and nothing is released.


# %%
def algorithm_1(Z: np.ndarray, noise: float, constant: float, seed: int) -> tuple:
    rng = np.random.default_rng(seed)
    n = len(Z)
    weights, covariances = np.full(K, 1 / K), np.tile(0.1 * np.eye(d), (K, 1, 1))
    means = rng.normal(size=(K, d))
    means *= rng.random((K, 1)) ** (1 / d) / np.linalg.norm(
        means, axis=1, keepdims=True
    )
    for _ in range(J):
        gamma = softmax(log_joint(Z, weights, means, covariances), axis=1)
        weights = (gamma.mean(0) + noise * 2 / n * rng.normal(size=K)).clip(1 / n, 1)
        weights /= weights.sum()
        for k, count in enumerate((n * weights).clip(1)):
            mean = gamma[:, k] @ Z / count + noise * 2 / count * rng.normal(size=d)
            means[k] = mean / max(1.0, np.linalg.norm(mean))
            centred = Z - means[k]
            upper = np.triu(noise * constant / count * rng.normal(size=(d, d)))
            covariance = (centred.T * gamma[:, k]) @ centred / count
            values, vectors = np.linalg.eigh(covariance + upper + np.triu(upper, 1).T)
            covariances[k] = (vectors * values.clip(1e-3)) @ vectors.T
    return weights, means, covariances


def log_joint(
    Z: np.ndarray, weights: np.ndarray, means: np.ndarray, covariances: np.ndarray
) -> np.ndarray:
    parts = zip(weights, means, covariances, strict=True)
    columns = [math.log(w) + multivariate_normal(m, C).logpdf(Z) for w, m, C in parts]
    return np.stack(columns, axis=1)


def of_algorithm_1(
    train: np.ndarray, test: np.ndarray, noise: float, constant: float
) -> float:
    fitted = algorithm_1(inward(train), noise, constant, seed=0)
    inside = log_joint((test - center) / radius, *fitted)
    return float(logsumexp(inside, axis=1).mean() - d * math.log(radius))


def joint(train: np.ndarray, epsilon: float) -> DPGaussianMixture:
    curator = dpbo.Curator(
        train,
        unit=dpbo.PrivacyUnit("record"),
        adjacency=dpbo.Adjacency.REPLACE_ONE,
        budget=dpbo.Budget(epsilon, DELTA),
        role="training",
        # public records are asked under many budgets here, to compare; the
        # statements say so
        allow_repeated=True,
    )
    return DPGaussianMixture(
        K,
        budget=1.0,
        radius=radius,
        center=center,
        dimension=d,
        max_iter=J,
        random_state=0,
    ).fit(curator)


splits = list(ShuffleSplit(SPLITS, test_size=0.1, random_state=0).split(records))
parts = [(records[train], records[test]) for train, test in splits]
open_fit = np.mean(
    [GaussianMixture(K, random_state=0).fit(a).score(b) for a, b in parts]
)
ours = [
    np.mean([joint(a, epsilon).score_samples(b).mean() for a, b in parts])
    for epsilon in EPSILONS
]
curves = {
    (constant, name): [
        np.mean(
            [
                of_algorithm_1(*part, multiplier(name, epsilon), constant)
                for part in parts
            ]
        )
        for epsilon in EPSILONS
    ]
    for constant in (1.0, 4.0)
    for name in COMPOSITIONS
}

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
for axes, constant in zip(panels, (1.0, 4.0), strict=True):
    for name in COMPOSITIONS:
        axes.plot(EPSILONS, curves[constant, name], ".-", label=f"the paper's, {name}")
    axes.plot(EPSILONS, ours, "r.-", lw=3, label="DPGaussianMixture")
    axes.axhline(open_fit, color="k", ls="--", label="without privacy")
    axes.set(xscale="log", xlabel="epsilon")
panels[0].set(
    title="the code's constants: NOT private", ylabel="test log-likelihood a record"
)
panels[0].set_ylim(open_fit - 30.0, open_fit + 2.0)
panels[1].set(title="sound constants")
panels[1].legend(fontsize=8)
figure.tight_layout()

# %% [markdown]
# zCDP is far ahead of the other two, as in the paper's figure. The sound joint release is ahead of
# all of them, also of those that are not private. What it guarantees, and the paper's own use of a
# private density, which is to draw records that may be given away:

# %%
mixture = joint(parts[0][0], 1.0)
print(mixture.statement())
drawn, _ = mixture.sample(2000)
print("log-likelihood of drawn records", round(mixture.score(drawn), 2))

# %% [markdown]
# The paper's other way, Laplace noise on weights and means ("LLG"), is `noise="LLG"`. The paper
# found it worse than GGG, and so it is. For another model of an exponential family `DPEM` takes its
# statistics, their bound and its M-step: see the how-to page on other releases.
#
# ## The third promise: faces
# Factor analysis reads the records through their second moment alone, so that it is released once,
# and EM is free: that holds. But the noise of a d x d table has the spectral norm 2 s sqrt(d), for
# entries of standard deviation s, while all variances of records in the unit ball sum to at most 1.
# For 400 faces of 64 x 64 pixels at epsilon 1:

# %%
s = math.sqrt(2.0) * 1.0 / mu_within(1.0, DELTA) / 400 / math.sqrt(2.0)
edge = 2 * s * math.sqrt(64 * 64)
print(
    f"spectral norm of the noise {edge:.2f}; a factor shows from {edge / 2:.2f} of a"
    " total of 1"
)

# %% [markdown]
# So at most one factor could be seen, of ten in the paper's Figure 5. (The authors' code hands
# numpy a variance where it takes a standard deviation, 46 times too little noise, and leaves rows
# 3.4 long: with both, the pictures look as the paper describes them.) What helps is more people and
# fewer pixels. `DPFactorAnalysis` keeps a factor only if its eigenvalue stands out of the noise,
# and `kept_` says how many do; here on 1,797 digits of 8 x 8 pixels, grey level 0 to 16:

# %%
digits = load_digits().data
shown = {}
for epsilon in (0.1, 1.0, 10.0):
    curator = dpbo.Curator(
        digits,
        unit=dpbo.PrivacyUnit("writer's digit"),
        adjacency=dpbo.Adjacency.REPLACE_ONE,
        budget=dpbo.Budget(epsilon, DELTA),
        role="training",
        allow_repeated=True,
    )
    analysis = DPFactorAnalysis(
        5, budget=1.0, radius=50.0, center=[5.0] * 64, dimension=64, random_state=0
    ).fit(curator)
    shown[epsilon] = analysis.kept_
    print(f"epsilon {epsilon:g}: above the noise are {analysis.kept_} eigenvalues")

# %%
at_one = EPSILONS.index(1.0)
unsound, sound, linear = (
    curves[key][at_one] for key in ((1.0, "zCDP"), (4.0, "zCDP"), (4.0, "linear"))
)
print(
    f"at epsilon 1: {ours[at_one]:.2f} by DPGaussianMixture; by the paper's releases"
    f" under zCDP {sound:.2f} with sound constants, {unsound:.2f} with the code's;"
    f" under linear composition {linear:.2f}; {open_fit:.2f} without privacy"
)
assert str(mixture.statement().guarantee).startswith("(1.000, 1e-05)-DP")
assert sound > linear, "the second promise"
assert ours[at_one] > max(sound, unsound)
assert 3.9 < moved < 4.0, "the first promise, for what the code releases"
assert multiplier("zCDP", 1.0) < 0.3 * multiplier("linear", 1.0)
assert multiplier("one joint release", 1.0) < 0.5 * multiplier("zCDP", 1.0)
assert edge > 1.0, "the third promise"
assert shown[0.1] < shown[1.0] <= shown[10.0]
