"""The version of dpbo. It stands here alone: pyproject.toml reads this file when it builds."""

__version__ = "0.1.0"
