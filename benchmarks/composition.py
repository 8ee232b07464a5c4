"""Composing a plan: 1,000 releases of three mechanisms, of 20 kinds or of 1,000, beside
dp_accounting's PLD in the same run.

Work: a transform of about 800 sqrt(1,000) = 26,000 points for each kind of event. The limits: 0.2 s
for 20 kinds, within 2 % of dp_accounting's PLD at grid 1e-4; 2 s for 1,000 kinds (which
dp_accounting is not asked to compose: about 30 s).

    python -m benchmarks.composition [--smoke] [--json FILE]
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as peer

from benchmarks.harness import options, record, table
from dpbo.accounting import compose, composition
from dpbo.events import Event, ExponentialEvent, GaussianEvent, LaplaceEvent, PermuteAndFlipEvent

KINDS = (GaussianEvent, LaplaceEvent, ExponentialEvent)
DELTA = 1e-5
GRID = 1e-4


def plan(kinds: int, releases: int, seed: int) -> list[Event]:
    """So many releases of three mechanisms at so many distinct parameters."""
    rng = np.random.default_rng(seed)
    return [
        KINDS[i % 3](float(1 / rng.uniform(0.01, 0.05)), releases // kinds) for i in range(kinds)
    ]


def seconds(events: Sequence[Event], repetitions: int) -> tuple[float, Any]:
    """Median time of composing anew, and what came out."""
    times = []
    for _ in range(repetitions):
        composition._composed.cache_clear()
        start = time.perf_counter()
        bound = compose(events, delta=DELTA)
        times.append(time.perf_counter() - start)
    return float(np.median(times)), bound


def by_peer(events: Sequence[Event]) -> tuple[float, float]:
    """dp_accounting's time and epsilon; it composes every exponential as randomised response."""
    start = time.perf_counter()
    total = None
    for event in events:
        noise = event.noise_multiplier
        match event:
            case GaussianEvent():
                part = peer.from_gaussian_mechanism(noise, value_discretization_interval=GRID)
            case LaplaceEvent():
                part = peer.from_laplace_mechanism(noise, value_discretization_interval=GRID)
            case _:
                part = peer.from_randomized_response(
                    2 / (1 + np.exp(2 / noise)), 2, value_discretization_interval=GRID
                )
        part = part.self_compose(event.count)
        total = part if total is None else total.compose(part)
    assert total is not None
    return time.perf_counter() - start, float(total.get_epsilon_for_delta(DELTA))


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    releases, many = (100, 20) if chosen.smoke else (1000, 1000)
    few_events = plan(20, releases, chosen.seed)
    many_events = plan(many, many, chosen.seed)
    few, bound = seconds(few_events, 5)
    peers, reference = by_peer(few_events)
    as_peers = [
        PermuteAndFlipEvent(e.noise_multiplier, e.count) if isinstance(e, ExponentialEvent) else e
        for e in few_events
    ]
    # Every exponential choice as randomised response, which dp_accounting takes it for.
    alike, same = seconds(as_peers, 5)
    distinct, other = seconds(many_events, 3)
    only_choices = compose([ExponentialEvent(20.0, 150)], delta=DELTA)
    rows = [
        [f"{releases:,} releases of 20 kinds", few, bound.pld, bound.epsilon],
        ["the same by dp_accounting, grid 1e-4", peers, reference, reference],
        ["the same pairs by dpbo", alike, same.pld, same.epsilon],
        [f"{many:,} releases of {many:,} kinds", distinct, other.pld, other.epsilon],
        ["150 exponential choices of 0.1", float("nan"), only_choices.pld, only_choices.epsilon],
    ]
    print(table(["plan", "seconds", "epsilon by PLD", "epsilon, least bound"], rows))
    print(
        f"\ndp_accounting over dpbo: {peers / few:.1f}x the time; PLD over its, same pairs:"
        f" {same.pld / reference:.4f} (limit 1.02)"
    )
    figures = {
        "few_s": few,
        "peer_s": peers,
        "distinct_s": distinct,
        "pld_relative_to_peer": same.pld / reference,
        "exponentials_150": only_choices.epsilon,
    }
    record("composition", figures, chosen)


if __name__ == "__main__":
    main()
