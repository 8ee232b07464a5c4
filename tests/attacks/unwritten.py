"""What is saved, in a process whose allocator fills memory that nobody wrote with a mark.

    GLIBC_TUNABLES=... python -m tests.attacks.unwritten [NAME ...]

Every public name is called with its good arguments (`good_calls.py`), whose tensors are views of
larger ones that hold the mark elsewhere; two runs end as a user would end them. Each result is
pickled, saved by `torch.save`, and saved by its `state_dict`. Prints a JSON object: the ways in
which each was saved, and whether the mark is among the bytes.
"""

import contextlib
import io
import json
import sys
import warnings

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import torch

from dpbo import Budget, Curator
from dpbo.accounting import RDPFilter
from dpbo.acquisition.ucb import suggest_ucb
from dpbo.dpsgd import DPSGDConfig, PrivateEngine
from dpbo.models import FiniteGP
from tests.attacks.good_calls import KERNEL, MADE, NAMES, SCHEDULE, good_call, grid
from tests.attacks.setups import fit

MARK = 0xD3
# in a row: by chance at one of 10^19 places
LEAST = 8
# each `malloc` fills what it gives with the first's complement, and keeps no list of small pieces
TUNABLES = f"glibc.malloc.perturb={MARK ^ 0xFF}:glibc.malloc.tcache_count=0"


def searched():
    """A search over candidates, and a modeler after some answers."""
    model = FiniteGP(among_marks(grid(200)), KERNEL, 1e-2, capacity=3)
    for _ in range(5):
        model.observe(suggest_ucb(model, SCHEDULE), 0.5)
    modeler = MADE["modeler"]()
    for _ in range(3):
        modeler.tell(modeler.ask(), 0.5)
    return model, modeler


def trained():
    """What leaves a training by DP-SGD: the module, its optimizer's and the accountant's state."""
    records = torch.rand(64, 4)
    labels = (records.sum(1) > 2).long()
    curator = Curator(
        (records, labels),
        unit="record",
        adjacency="add-or-remove-one",
        budget=Budget(20.0, 1e-5),
        accounting=RDPFilter(6.0),
        role="training",
    )
    engine = PrivateEngine(
        curator, DPSGDConfig(noise_multiplier=2.0, epochs=1, batches=4, batch_size=16)
    )
    module = torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.ReLU(), torch.nn.Linear(300, 2))
    trained, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9),
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(records, labels)),
        max_grad_norm=1.0,
    )
    fit(trained, optimizer, loader)
    return engine.released(), optimizer.state_dict(), engine.accountant.state_dict()


RUNS = {"searched": searched, "trained": trained}


def result_of(name):
    if name in RUNS:
        return RUNS[name]()
    call, good = good_call(name)
    return call(**{word: among_marks(part) for word, part in good.items()})


def among_marks(part):
    """The same tensor as a view of one three times as large, whose other bytes are the mark."""
    if type(part) in (list, tuple):
        return type(part)(map(among_marks, part))
    if not isinstance(part, torch.Tensor) or part.layout is not torch.strided:
        return part
    size = part.numel() * part.element_size()
    storage = torch.full((3 * size,), MARK, dtype=torch.uint8).view(part.dtype)
    return storage[part.numel() : 2 * part.numel()].view(part.shape).copy_(part.detach())


def saved(thing):
    """Name and bytes of each way in which a user would save it; none where it refuses."""
    for way in (pickled, by_torch, by_state):
        # whatever cannot be pickled says so, by errors of many kinds
        with contextlib.suppress(Exception):
            yield way.__name__, way(thing)


def pickled(thing):
    # as joblib's workers get it: also with the caller's own functions
    return cloudpickle.dumps(thing)


def by_torch(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def by_state(thing):
    return by_torch(thing.state_dict())


def main(names):
    found = {}
    for name in names or [*RUNS, *NAMES]:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            thing = result_of(name)
            found[name] = {way: bytes([MARK]) * LEAST in b for way, b in saved(thing)}
    unwritten = [np.empty(800, np.uint8).tobytes(), torch.empty(100).numpy().tobytes()]
    marked = all(set(memory) == {MARK} for memory in unwritten)
    print(json.dumps({"marked": marked, "saved": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
