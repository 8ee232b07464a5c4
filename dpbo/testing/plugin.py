"""A pytest plugin, loaded with dpbo: the marker `dpbo_audit` for slow statistical tests, and the fixture `seeded_entropy`."""

from __future__ import annotations

import zlib

import pytest

from dpbo.testing.entropy import SeededEntropy


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known under --strict-markers."""
    config.addinivalue_line("markers", "dpbo_audit: many runs of a mechanism; deselect with -m 'not dpbo_audit'")


@pytest.fixture
def seeded_entropy(request: pytest.FixtureRequest) -> SeededEntropy:
    """Noise fixed by the test's own name: the outcome of a statistical test is then the same every time."""
    return SeededEntropy(zlib.crc32(request.node.nodeid.encode()))
