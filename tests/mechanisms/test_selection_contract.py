"""The selection mechanisms under their contract, with laws written down independently of the code that draws."""

import itertools

import numpy as np

from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.testing import SelectionContract


class TestExponential(SelectionContract):
    covers = ExponentialMechanism

    def mechanism(self, epsilon):
        return ExponentialMechanism.of(epsilon)

    def probabilities(self, distances, rate):
        weights = np.exp(-rate * (distances - distances.min()))
        return weights / weights.sum()


class TestPermuteAndFlip(SelectionContract):
    covers = PermuteAndFlipMechanism

    def mechanism(self, epsilon):
        return PermuteAndFlipMechanism.of(epsilon)

    def probabilities(self, distances, rate):
        """By definition: over all subsets S of rivals, inclusion and exclusion of those that would be accepted before."""
        accept = np.exp(-rate * (distances - distances.min()))
        chances = np.zeros(len(accept))
        for j in range(len(accept)):
            rivals = [i for i in range(len(accept)) if i != j]
            for size in range(len(rivals) + 1):
                for subset in itertools.combinations(rivals, size):
                    chances[j] += accept[j] * (-1) ** size / (size + 1) * np.prod(accept[list(subset)])
        return chances
