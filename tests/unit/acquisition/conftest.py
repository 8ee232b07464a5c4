"""As in tests/unit/models."""

from tests.unit.models.conftest import _seed  # noqa: F401
