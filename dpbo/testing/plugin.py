"""The pytest plugin that dpbo installs: the marker `dpbo_audit` for slow statistical tests, and the
fixture `seeded_entropy`.
"""

import zlib

from dpbo.extras import needs
from dpbo.testing.entropy import SeededEntropy

with needs("testing"):
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, for --strict-markers."""
    config.addinivalue_line(
        "markers", "dpbo_audit: many runs of a mechanism; deselect with -m 'not dpbo_audit'"
    )


@pytest.fixture
def seeded_entropy(request: pytest.FixtureRequest) -> SeededEntropy:
    """A `SeededEntropy` whose seed follows from the test's name, so that a statistical test has the
    same outcome in every run.
    """
    return SeededEntropy(zlib.crc32(request.node.nodeid.encode()))
