"""The same numbers where memory is awkward: very far from each other, or up to the last byte that may be read."""

import ctypes
import math
import mmap

import torch

_NOT_RESERVED = 0x4000  # Linux's MAP_NORESERVE
_NOBODY = 0  # PROT_NONE


def far_apart(X):
    """In columns 2^30 numbers from each other, in memory that is there where it is touched."""
    columns, rows = 1 << 30, len(X)
    memory = mmap.mmap(-1, 4 * columns * X.shape[1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NOT_RESERVED)
    far = torch.frombuffer(memory, dtype=X.dtype).as_strided((rows, X.shape[1]), (1, columns))
    return far.copy_(X)


def at_the_edge(X):
    """So that whoever reads beyond the last of them is stopped by the system."""
    needed = X.numel() * X.element_size()
    readable = mmap.PAGESIZE * math.ceil(needed / mmap.PAGESIZE)
    memory = mmap.mmap(-1, readable + mmap.PAGESIZE)
    edge = torch.frombuffer(memory, dtype=X.dtype, count=X.numel(), offset=readable - needed).view(X.shape).copy_(X)
    behind = ctypes.c_void_p(edge.data_ptr() + needed)
    assert ctypes.CDLL(None, use_errno=True).mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), _NOBODY) == 0
    return edge
