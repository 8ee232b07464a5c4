"""DP-EM beside what came later, and where its general form and factor analysis say something.

(a) `DPEM` on a model of its own: two Poisson components of the ink of two pixels (scikit-learn's
    digits). Held-out log-likelihood below that of the same steps without noise, over 50 splits; by
    the general sensitivity 2 C / N and by sqrt 2 C / N, which is enough as no statistic is
    negative.
(b) Factor analysis of people with some hundred columns (Adult; DPBO_DATA): how many of ten factors
    stand out of the noise, and the share of held-out variance in their span, over ten splits.
    Without data, a stand-in.
(c) A mixture by one release after open EM, at epsilon 1, with the budget divided among weights,
    means and covariances by expected KL divergence (Liu, Scaglione & Peisert, arXiv 2506.03467),
    beside `DPGaussianMixture`, on the ten folds of Life Science (DPBO_DATA). Their formulas were
    not available, so the moments and sensitivities are ours, and hold only given the
    responsibilities. Open EM's depend on the records: NOT PRIVATE. How far one record moves what is
    released is measured, beside the sensitivity.

    python -m benchmarks.papers.dpem_models [--smoke] [--seed N] [--json FILE] [--runs N]
"""

import argparse
import math
import os
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture
from torch import Tensor

from benchmarks.harness import options, record, rows_of, table_of
from benchmarks.papers.dpem import DELTA, EXACT, RADIUS, J, K, folds, life_science
from dpbo import Budget, Curator
from dpbo.accounting import calibrate
from dpbo.mechanisms import GaussianMechanism
from dpbo.papers.em import DPEM, DPFactorAnalysis, DPGaussianMixture
from dpbo.papers.em.gaussians import Averaged, Gaussians, mixture_of
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.privacy import Adjacency
from dpbo.queries.ball import Ball

Floats = np.ndarray[Any, np.dtype[np.float64]]
Rows = list[dict[str, Any]]
Theta = tuple[Tensor, Tensor]
INK = 16.0
# of (c)
BUDGET = Budget(1.0, DELTA)
START: Theta = (torch.full((2,), 0.5).double(), torch.tensor([[4.0, 12.0], [12.0, 4.0]]).double())


def log_joint(theta: Theta, records: Any) -> Tensor:
    """log(weight_k Poisson(x; rates_k)), `n x 2`."""
    weights, rates = theta
    x = torch.as_tensor(records, dtype=torch.float64).clamp(0.0, INK)
    return weights.log() + x @ rates.log().T - rates.sum(1) - torch.lgamma(x + 1).sum(1)[:, None]


def statistics(theta: Theta, records: Any) -> Tensor:
    """gamma_k and gamma_k x, of length sqrt 2 at most."""
    gamma = torch.softmax(log_joint(theta, records), 1)
    x = torch.as_tensor(records, dtype=torch.float64).clamp(0.0, INK) / (INK * 2**0.5)
    return torch.cat([gamma, (gamma[:, :, None] * x[:, None]).flatten(1)], 1)


def rates_of(moments: Tensor, noise: Tensor) -> Theta:
    """The next parameters; counts are kept above their noise."""
    weights = torch.maximum(moments[:2], 3 * noise[:2]).clamp(min=1e-3)
    rates = INK * 2**0.5 * moments[2:].reshape(2, 2) / weights[:, None]
    return weights / weights.sum(), rates.clamp(0.1, INK)


def poissons(smoke: bool, runs: int, seed: int) -> Rows:
    """(a)."""
    X = load_digits().data[:, 20:22]
    rows: Rows = []
    found: dict[tuple[str, str], list[float]] = {}
    for run in range(runs):
        order = np.random.default_rng(1000 * seed + run).permutation(len(X))
        held, train = X[order[::5]], np.delete(X[order], np.s_[::5], 0)
        for epsilon in (1.0,) if smoke else (0.3, 1.0):
            scores = {}
            ways: dict[str, dict[str, Any]] = {
                "without noise": {"mechanism": EXACT},
                "2 C / N": {"budget": Budget(epsilon, DELTA)},
                "sqrt 2 C / N": {"budget": Budget(epsilon, DELTA), "nonnegative": True},
            }
            for name, spend in ways.items():
                em = DPEM(statistics, 2**0.5, rates_of, start=START, size=6, **spend).fit(train)
                scores[name] = float(torch.logsumexp(log_joint(em.parameters_, held), 1).mean())
            for name in ("2 C / N", "sqrt 2 C / N"):
                gap = scores["without noise"] - scores[name]
                found.setdefault((f"{epsilon:g}", name), []).append(gap)
    for (at, name), gaps in found.items():
        rows.append({"epsilon": at, "sensitivity": name, "below without noise": gaps})
    return rows


def people(smoke: bool, seed: int) -> tuple[Floats, str]:
    """Adult's columns but the weights and the target, numbers in [0, 1] and one column a category;
    or a stand-in of ten factors.
    """
    found = None if smoke else rows_of("adult/adult.csv.gz")
    if found is None:
        rng = np.random.default_rng(seed)
        n, d = (2_000, 20) if smoke else (40_000, 100)
        loadings = rng.normal(size=(10, d)) * np.linspace(1, 0.3, 10)[:, None]
        return rng.normal(size=(n, 10)) @ loadings + 0.5 * rng.normal(size=(n, d)), "stand-in"
    most = {"age": 90.0, "education_num": 16.0, "hours_per_week": 99.0}
    columns = [np.array([float(row[name]) for row in found]) / by for name, by in most.items()]
    for name in found[0]:
        if name not in {*most, "fnlwgt", "capital_gain", "capital_loss", "income", "split"}:
            cells = np.array([row[name] for row in found])
            columns += [(cells == value).astype(float) for value in np.unique(cells)]
    return np.stack(columns, 1), "Adult"


def factors(smoke: bool, runs: int, seed: int) -> Rows:
    """(b): each row's length is at most its public bound, the mean is released."""
    X, what = people(smoke, seed)
    d = X.shape[1]
    radius = float(np.ceil(np.linalg.norm(X, axis=1).max())) if what == "stand-in" else 3.4
    found: dict[str, dict[str, list[float]]] = {}
    for run in range(min(runs, 10)):
        order = np.random.default_rng(1000 * seed + run).permutation(len(X))
        held, train = X[order[::5]], np.delete(X[order], np.s_[::5], 0)
        centred = held - held.mean(0)
        moment = centred.T @ centred
        shared: dict[str, Any] = {"n_components": 10, "radius": radius, "random_state": run}
        exact = DPFactorAnalysis(mechanism=EXACT, **shared).fit(train)
        openly = spanned(exact.components_, moment)
        for epsilon in (1.0,) if smoke else (0.3, 1.0):
            fit = DPFactorAnalysis(budget=Budget(epsilon, DELTA), **shared).fit(train)
            own = found.setdefault(f"{epsilon:g}", {"show": [], "share": [], "below open": []})
            own["show"].append(float(min(fit.kept_, 10)))
            own["share"].append(spanned(fit.components_, moment))
            own["below open"].append(openly - own["share"][-1])
    return [
        {"data": f"{what}, {int(0.8 * len(X)):,} x {d}", "epsilon": at, **own}
        for at, own in found.items()
    ]


def spanned(components: Floats, moment: Floats) -> float:
    """The share of a second moment in the span of the factors."""
    U, S, _ = np.linalg.svd(components.T, full_matrices=False)
    U = U[:, S > 1e-9 * max(float(S[0]), 1e-300)]
    return float(np.trace(U.T @ moment @ U) / np.trace(moment))


def open_em(train: Floats, seed: int) -> tuple[Gaussians, Tensor]:
    """Open EM on the rows in the unit ball, and these rows."""
    clipped = train / np.maximum(RADIUS, np.linalg.norm(train, axis=1, keepdims=True))
    found = GaussianMixture(K, max_iter=100, random_state=seed).fit(clipped)
    return gaussians_of(found), torch.from_numpy(clipped)


def gaussians_of(found: Any) -> Gaussians:
    """scikit-learn's mixture as ours."""
    weights, means, covariances = (
        torch.from_numpy(part) for part in (found.weights_, found.means_, found.covariances_)
    )
    return Gaussians(weights, means, covariances, "full")


def shares_by_kl(mixture: Gaussians, Z: Tensor, seed: int) -> tuple[float, float, float]:
    """Noise weights (q, m, c) of unit largest that minimise the expected KL divergence to the
    mixture: noise s / a on a block costs w s^2 / a^2, so a^2 is as sqrt w. Each w is found by small
    noise on the block and its opposite, as the mean loss of log-likelihood of draws: below what the
    exact moments give, which may be above the mixture's.
    """
    n, d = Z.shape
    query = MixtureMoments(d, ball=Ball(1.0), natural=mixture.natural())
    exact = query.table(torch.tensor(exact_moments(query, Z)))
    generator = torch.Generator().manual_seed(seed)
    small = 1e-5 * n

    def made(noise: Tensor) -> float:
        parts = exact + noise, torch.zeros_like(exact), d, "full", 1e-9, None
        return log_density(mixture_of(*parts), Z)

    without = made(torch.zeros_like(exact))
    costs = []
    for block in (slice(0, 1), slice(1, 1 + d), slice(1 + d, None)):
        lost = []
        for _ in range(8):
            noise = torch.zeros_like(exact)
            noise[:, block] = small * torch.randn(
                exact[:, block].shape, generator=generator, dtype=torch.float64
            )
            lost += [without - made(noise), without - made(-noise)]
        costs.append(max(sum(lost), 1e-12))
    q, m, c = ((cost / max(costs)) ** 0.25 for cost in costs)
    return max(q, 1e-3), max(m, 1e-3), max(c, 1e-3)


def exact_moments(query: MixtureMoments, Z: Tensor) -> Any:
    """The query's answer without noise."""
    curator = curator_of(Z, BUDGET)
    return curator.release(query, EXACT).value.numpy()


def curator_of(Z: Tensor, budget: Budget) -> Curator:
    return Curator(
        Z, unit="row", adjacency=Adjacency.REPLACE_ONE, budget=budget, allow_repeated=True
    )


def log_density(mixture: Gaussians, Z: Tensor) -> float:
    return float(torch.logsumexp(mixture.log_joint(Z), 1).mean())


def one_release(
    mixture: Gaussians, Z: Tensor, mechanism: Any, shares: tuple[float, float, float]
) -> Gaussians:
    """(c): the moments under open EM's responsibilities, by a mechanism of the whole budget."""
    d = Z.shape[1]
    query = MixtureMoments(d, ball=Ball(1.0), natural=mixture.natural(), weights=shares)
    release = curator_of(Z, BUDGET).release(query, mechanism)
    value, std = query.table(release.value), query.table(release.variance.sqrt())
    return mixture_of(*Averaged(1, len(Z)).add(value, std), d, "full", 1e-3, None)


def moved(smoke: bool, seed: int) -> dict[str, float]:
    """How far the moments under open EM's own responsibilities move at most, when one of five rows
    is replaced by a far one and EM continues for as many steps from where it was; and the
    sensitivity.
    """
    X, _ = life_science(os.environ.get("DPBO_DATA"), smoke, seed)
    mixture, Z = open_em(X, seed)
    rng = np.random.default_rng(seed)
    d = Z.shape[1]

    def continued(rows: Tensor) -> Any:
        again = GaussianMixture(
            K,
            max_iter=20,
            tol=0.0,
            weights_init=mixture.weights.numpy(),
            means_init=mixture.means.numpy(),
            precisions_init=torch.linalg.inv(mixture.covariances).numpy(),
        ).fit(rows.numpy())
        natural = gaussians_of(again).natural()
        return exact_moments(MixtureMoments(d, ball=Ball(1.0), natural=natural), rows)

    before = continued(Z)
    furthest = 0.0
    for _ in range(5):
        other = Z.clone()
        place = rng.normal(size=d)
        other[int(rng.integers(len(Z)))] = torch.from_numpy(place / np.linalg.norm(place))
        furthest = max(furthest, float(np.linalg.norm(continued(other) - before)))
    query = MixtureMoments(d, ball=Ball(1.0), natural=mixture.natural())
    sensitivity = query.sensitivity(Adjacency.REPLACE_ONE).l2
    return {"moves by": furthest, "sensitivity as if fixed": sensitivity}


def mixtures(smoke: bool, runs: int, seed: int) -> Rows:
    """(c)."""
    X, what = life_science(os.environ.get("DPBO_DATA"), smoke, seed)
    found: dict[str, list[float]] = {}
    d = X.shape[1]
    shift = d * math.log(RADIUS)
    for run, (train, test) in enumerate(folds(X, min(10, runs), seed)):
        own = seed + run
        mixture, Z = open_em(train, own)
        held = torch.from_numpy(test / RADIUS)
        openly = log_density(mixture, held) - shift
        shares = shares_by_kl(mixture, Z, own)
        noised = GaussianMechanism(calibrate(BUDGET, releases=1))
        once, exact = (one_release(mixture, Z, by, shares) for by in (noised, EXACT))
        ours = DPGaussianMixture(K, budget=BUDGET, radius=RADIUS, max_iter=J, random_state=own).fit(
            train
        )
        scores = {
            "one release after open EM, NOT PRIVATE": log_density(once, held) - shift,
            "... without noise, NOT PRIVATE": log_density(exact, held) - shift,
            "DPGaussianMixture": float(ours.score_samples(test).mean()),
        }
        for name, score in scores.items():
            found.setdefault(name, []).append(openly - score)
    one = next(iter(found.values()))
    return [
        {
            "data": what,
            "method": name,
            "below open EM": gaps,
            "more than the first": np.subtract(gaps, one).tolist(),
        }
        for name, gaps in found.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, runs=50)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*did not converge.*")
    smoke, seed = chosen.smoke, chosen.seed
    runs = 2 if smoke else chosen.runs
    found = {
        "poissons": poissons(smoke, runs, seed),
        "factors": factors(smoke, runs, seed),
        "mixtures": mixtures(smoke, runs, seed),
    }
    told({**found, **moved(smoke, seed)}, chosen)


def told(figures: dict[str, Any], chosen: argparse.Namespace) -> None:
    """Print and record."""
    for name, rows in figures.items():
        print(f"\n{name}:", "\n" + table_of(rows) if isinstance(rows, list) else f"{rows:.4g}")
    record("dpem_models", figures, chosen)


if __name__ == "__main__":
    main()
