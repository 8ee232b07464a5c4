"""The exponential mechanism beside a known constant: its law, its price and its risk, computed
independently of the code that draws.
"""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
from scipy.special import logsumexp
from scipy.stats import binomtest, chisquare

from dpbo.accounting import event_costs, renyi
from dpbo.mechanisms import ThresholdedExponentialMechanism
from dpbo.mechanisms.choice import LEVELS, draw_below
from dpbo.mechanisms.thresholded_exponential import total_weight
from dpbo.privacy import Sensitivity
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.contracts.choice_contract import ChoiceContract
from tests.contracts.mechanism_contract import LEVEL
from tests.unit.mechanisms.words import Words

QUANTUM = 2.0**-20
ORDERS = (1.0001, 1.5, 2.0, 4.0, 16.0, 64.0)


def outcomes(levels, rate, risk=0.1):
    """The probability of each candidate, and of none, last."""
    logs = rate * np.asarray(levels) + math.log(total_weight(len(levels), risk) / len(levels))
    total = logsumexp(logs)
    none = 1 - math.exp(2 * total) / 2 if total <= 0 else math.exp(-2 * total) / 2
    return np.append((1 - none) * np.exp(logs - total), none)


@attack("A10", "A14")
class TestThresholdedExponential:
    covers = ThresholdedExponentialMechanism

    def mechanism(self, epsilon):
        return ThresholdedExponentialMechanism.of(epsilon)

    def law(self, epsilon):
        return self.mechanism(epsilon).distribution(Sensitivity.of_linf(1.0, 3), [QUANTUM] * 3)

    def drawn(self, epsilon, levels, draws, seed, risk=0.1):
        """How often each candidate is chosen, and none, last."""
        law = self.law(epsilon)
        mechanism = ThresholdedExponentialMechanism(self.mechanism(epsilon).noise_multiplier, risk)
        best = max(levels)
        distances = best - np.array(levels)
        counts = np.bincount(distances)
        members = {d: np.flatnonzero(distances == d) for d in set(distances.tolist())}

        def one(entropy):
            """Counted once for all draws, which is nearly all of a draw's time."""
            if not mechanism.chooses(counts, best, law.rate, entropy):
                return -1
            held = members[mechanism.choose(counts, law.rate, entropy)]
            return int(held[draw_below(len(held), entropy)])

        entropy, again = SeededEntropy(seed), SeededEntropy(seed)
        found = [one(entropy) for _ in range(draws)]
        utilities = np.array(levels) * law.width
        own = [mechanism._sample(utilities, [QUANTUM], law, again)[0] for _ in range(100)]
        assert found[:100] == own
        return np.array([found.count(j) for j in (*range(len(levels)), -1)])

    test_neighbours_move_levels_by_no_more_than_the_law_says = (
        ChoiceContract.test_neighbours_move_levels_by_no_more_than_the_law_says
    )

    def test_it_draws_its_law(self):
        for levels in ([150, 149, 149, 100, 40, 150, -300], [300, 200, 250], [-80], [200]):
            rate = float(self.law(1.5).rate)
            seen = self.drawn(1.5, levels, 6_000, seed=1)
            assert chisquare(seen, 6_000 * outcomes(levels, rate)).pvalue > LEVEL
            wrong = outcomes(levels, 0.6 * rate)
            assert chisquare(seen, 6_000 * wrong).pvalue <= LEVEL, "the test has no power"

    def test_what_is_simulated_follows_the_same_law(self):
        levels, rate = [150, 149, 100, -300], float(self.law(1.5).rate)
        utilities = np.tile(rate * np.array(levels), (20_000, 1))
        found = self.mechanism(1.5).simulated(utilities, np.random.default_rng(0)).tolist()
        seen = [found.count(j) for j in (0, 1, 2, 3, -1)]
        assert chisquare(seen, 20_000 * outcomes(levels, rate)).pvalue > LEVEL

    def neighbours(self, epsilon):
        """Laws before and after every utility moves by none or all of the sensitivity."""
        law = self.law(epsilon)
        s, rate = law.moves, float(law.rate)
        # where s is about 1 for one, two and three candidates
        near = round(math.log(1 / total_weight(3, 0.1)) / rate)
        bases = range(near - 3 * s, near + 3 * s, max(1, s // 2))
        for base, start in itertools.product(bases, ([0], [0, 0], [0, -9 * s], [0, -s, -s])):
            levels = base + np.array(start)
            before = outcomes(levels, rate)
            for moved in itertools.product((-s, 0, s), repeat=len(start)):
                yield before, outcomes(levels + np.array(moved), rate)

    def test_it_is_as_private_as_is_charged_in_every_order(self):
        for epsilon in (0.1, 1.0, 3.0):
            event = self.mechanism(epsilon).event()
            promised = float(event_costs.pure(event) or 0.0)
            largest = 0.0
            for p, q in self.neighbours(epsilon):
                largest = max(largest, float(np.abs(np.log(p / q)).max()))
                for order in ORDERS:
                    loss = float(logsumexp(order * np.log(p) + (1 - order) * np.log(q)))
                    charged = float(renyi.cost(event, order) or 0.0)
                    assert loss / (order - 1) <= charged * (1 + 1e-6)
            assert 0.99 * promised <= largest <= promised * (1 + 1e-9)

    def test_the_risk_is_attained_and_never_exceeded(self):
        """By its law, over utilities of which some are 0 or less; then as it is drawn, at the
        worst: the least epsilon, whose noise is a fifth larger than its multiplier says.
        """
        for count, risk in itertools.product((1, 2, 3, 17), (0.01, 0.1, 0.5)):
            worst = 0.0
            for good in range(count):
                for utility in np.linspace(0.0, 8.0, 100):
                    levels = [utility] * good + [0.0] * (count - good)
                    worst = max(worst, float(outcomes(levels, 1.0, risk)[good:-1].sum()))
            assert 0.95 * risk <= worst <= risk * (1 + 1e-9), (count, risk)
        for epsilon, levels, bad in ((0.01, [0], [0]), (0.01, [0] * 4, [0, 1, 2, 3])):
            seen = self.drawn(epsilon, levels, 8_000, seed=3)
            expected = outcomes(levels, float(self.law(epsilon).rate))[:-1].sum()
            assert binomtest(int(seen[bad].sum()), 8_000, expected).pvalue > LEVEL
        rate = float(self.law(0.01).rate)
        # the other three at 0, and s^2 = 3/2
        own = math.sqrt(1.5) - 0.75 * total_weight(4, 0.1)
        best = round(math.log(own * 4 / total_weight(4, 0.1)) / rate)
        seen = self.drawn(0.01, [best, 0, 0, 0], 8_000, seed=4)
        assert binomtest(int(seen[1:-1].sum()), 8_000, 0.1).pvalue > LEVEL

    def test_where_64_bits_do_not_decide_more_of_them_do(self):
        """A word next to the chance itself, and the ends of what words can say."""
        counts = np.zeros(LEVELS, dtype=np.int64)
        counts[[0, 3]] = 1, 2
        mechanism, rate = self.mechanism(1.0), Fraction(1, 9)
        with mpmath.workdps(60):
            weight = mpmath.mpf(total_weight(3, 0.1) / 3)
            total = weight * (mpmath.exp(mpmath.mpf(5) / 9) + 2 * mpmath.exp(mpmath.mpf(2) / 9))
            exact = int(mpmath.floor(total**2 / 2 * 2**128))
        first, second = divmod(exact, 2**64)
        for more, chosen in ((-3, True), (3, False)):
            words = Words(first, second + more)
            assert mechanism.chooses(counts, 5, rate, words) is chosen
            assert words.asked == 2
        for best, answers, chosen in (
            (-(10**6), (0, 0, 5), False),
            (10**6, (2**64 - 1, 2**64 - 1, 5), True),
        ):
            words = Words(*answers)
            assert mechanism.chooses(counts, best, rate, words) is chosen
            assert words.asked > 1
