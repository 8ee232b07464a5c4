"""Records that lie in the host's memory and are scored on a device, block by block, so that they
may be larger than the device.

    curator = Curator(records.pin_memory(), unit=..., adjacency=..., budget=..., device="cuda")

A block is a shard of the records (curator/ranks.py): a query is answered on each, and the exact
int64 sums are added. Quanta and bounds follow from the number of all units, and dpbo's own
arithmetic gives a unit the same whole numbers at every row and in every block. So the answer has
the bits of one on records that lie on the device, where the score gives each record the same number
in a block as among all. But a score that fails on nearly all records of one block fails the
question (assumption `score-total`), where it might not among all. Losses that a query keeps for
later ones go back to pinned memory of the host, where torch rounds sizes up to powers of two, and
come again with their block.

Blocks of records that lie on the device already, as they do for device="cpu", are views: only the
scores of one block are in memory at once. So it is without `device=` for large tables of tensors on
the CPU, where a query says how many records it asks at once (`Query.rows_at_once`).

Other blocks pass through two buffers on the device. A stream of its own copies the next block while
the present one is worked on; it waits until the work on the block before, which lay in that buffer,
is done. Without pinned memory copy and work take turns.

Cost of a question on n records of r bytes, with N float32 losses a unit kept from earlier ones: n
(r + 4 N) bytes over the link once, however many points it asks about, and two blocks of memory:
each of at most 2^28 bytes of records (or 2^8 records), and 4 N bytes a record. A million users with
losses kept at 256 points are 1.02 GB: 19 ms at 55 GB/s (PCI Express 5), while the gradient kernel
reads them in 0.25 ms. Work on a block hides behind the next one's copy. If the work itself copies
to the device and that waits in the same copy engine, they take turns: then a block takes its copy's
time and about a millisecond more. Either way the whole should stay below 1.2 times the copies
alone, where blocks are large; `benchmarks.gpu` prints both.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dpbo.records.containers import leaves, map_leaves
from dpbo.records.view import PrivateView

# Of a block's records, at most.
_BYTES = 1 << 28
_ROWS = 1 << 22
# or a score that fails on all of a block's records would count as worst (score_evaluation.py)
_LEAST_ROWS = 1 << 8


def blocks(view: PrivateView, most: int | None = None) -> Iterator[PrivateView]:
    """Views of the blocks, one after the other; there is one even without records. Their size is
    public.

    Args:
        most: records in a block; omitted, what fits a device.
    """
    records = view.records
    row = sum(part.element_size() * part.shape[1:].numel() for part in leaves(records))  # bytes
    size = min(
        most or _ROWS, max(_LEAST_ROWS, 1 << max(0, (_BYTES // max(row, 1)).bit_length() - 1))
    )
    starts = range(0, max(view.count, 1), size)

    def container(number: int, start: int) -> tuple[Any, tuple[Any, ...]]:
        return map_leaves(records, lambda part: part[start : start + size]), tuple(
            answer[number] for answer in view.earlier
        )

    containers = list(itertools.starmap(container, enumerate(starts)))
    shard = view.shard or len(starts) > 1
    lie_there = view.streamed_to is None or all(
        part.device == view.streamed_to for part in leaves(records)
    )
    there = containers if lie_there else on_device(containers, view.device)
    for start, (block, earlier) in zip(starts, there, strict=True):
        count = min(size, view.count - start)
        unfit = None if view.unfit is None else view.unfit[start : start + size]
        yield dataclasses.replace(
            view,
            container=block,
            count=count,
            earlier=earlier,
            shard=shard,
            streamed_to=None,
            unfit=unfit,
            _kept={},
        )


def on_device(containers: Sequence[Any], device: torch.device) -> Iterator[Any]:
    """The containers one after the other with their tensors on the device, each until the next one
    is taken.

    The first container must be the largest. To the CPU the walk is the same, without streams.
    """
    buffers: list[list[Tensor]] = [[] for _ in containers[:2]]
    for part in leaves(containers[0]):
        if isinstance(part, Tensor):
            for buffer in buffers:
                # each block is copied into it before it is read
                buffer.append(torch.empty(part.numel(), dtype=part.dtype, device=device))
    on_cpu = device.type == "cpu"
    working: Any = None if on_cpu else torch.cuda.current_stream(device)
    copying: Any = None if on_cpu else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def fetch(number: int) -> Any:
        room = iter(buffers[number % 2])

        def copied(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            return (
                next(room)[: part.numel()].view(part.shape).copy_(part.detach(), non_blocking=True)
            )

        if copying is not None:
            copying.wait_stream(working)  # what was last in this buffer is worked on there
        with torch.cuda.stream(copying):
            return map_leaves(containers[number], copied)

    try:
        following = fetch(0)
        for number in range(len(containers)):
            present = following
            if working is not None:
                working.wait_stream(copying)
            if number + 1 < len(containers):
                following = fetch(number + 1)
            yield present
    finally:
        if working is not None:
            # the buffers' memory may be used again by what comes after it there
            working.wait_stream(copying)


def to_host(part: Any) -> Any:
    """A copy of a tensor that stays when the block's buffer is used again."""
    if not isinstance(part, Tensor):
        return part
    return torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=part.is_cuda).copy_(
        part
    )
