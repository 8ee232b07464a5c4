"""The only source of noise: the operating system's entropy. Neither torch's nor numpy's generators are ever consulted."""

from __future__ import annotations

import os


def system_entropy(size: int) -> bytes:
    """`size` bytes that nobody can predict."""
    return os.urandom(size)
