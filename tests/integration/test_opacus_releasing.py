"""What is released of a model that Opacus trained: its numbers, and no trace of a record in
anything that pickling reaches.
"""

import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpbo.dpsgd import DPSGDConfig, Session
from dpbo.errors import InputError
from tests.attacks.marks import attack
from tests.attacks.setups import fit

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    attack("A21"),
]
TERMS = DPSGDConfig(noise_multiplier=1.0, epochs=1, batches=3, batch_size=30)
X = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
RECORDS = TensorDataset(X, (X[:, 0] > 0).long())


class Reached(pickle.Pickler):
    """Notes every tensor that is pickled, those that hang on others included."""

    def __init__(self, thing):
        super().__init__(io.BytesIO())
        self.tensors: list[torch.Tensor] = []
        self.dump(thing)

    def reducer_override(self, thing):
        if isinstance(thing, torch.Tensor):
            self.tensors.append(thing)
        return NotImplemented


def own(module):
    return [*module.parameters(), *module.buffers()]


def places(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def require_bare(module, records=X):
    """Nothing is reached but parameters and buffers; they bear nothing, show all their memory, and
    there is no trace of Opacus.
    """
    tensors = Reached(module).tensors
    assert places(tensors) == places(own(module))
    assert len(places(tensors)) == len(own(module))
    for tensor in (*tensors, *own(module)):
        assert vars(tensor) == {}
        assert tensor.grad is None
        assert tensor.is_leaf
        assert not tensor._backward_hooks
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert not tensor.dim() or len(tensor) < 20, (
            "a sample has more records, and the networks are smaller"
        )
        rows = tensor.reshape(-1, 4) if tensor.numel() % 4 == 0 else torch.empty(0, 4)
        assert not (rows[:, None].double() == records[None].double()).all(2).any()
    for part in module.modules():
        assert not part._forward_hooks
        assert not part._backward_hooks
        assert not set(vars(part)) & {
            "max_batch_len",
            "ft_compute_sample_grad",
            "autograd_grad_sample_hooks",
        }
        assert "activations" not in vars(part) or isinstance(part, Tied)
    stream = io.BytesIO()
    torch.save(module, stream)
    assert b"opacus.grad_sample" not in stream.getvalue()


def trained(network, look=True, **settings):
    """A session after all its steps, one backward pass that no step followed, and perhaps a look at
    the records; and its live module.
    """
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.5)
    session = Session(RECORDS, TERMS)
    prepared, optimizer, loader = session.make_private(
        network, optimizer, max_grad_norm=1.0, **settings
    )
    module = prepared if isinstance(prepared, nn.Module) else network
    fit(module, optimizer, loader)
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(X), RECORDS.tensors[1]).backward()
    if look:
        module(X)
    return session, network


def layers():
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


class Tied(nn.Module):
    """One layer twice, one frozen, a buffer that is there twice, and a name that Opacus uses,
    too.
    """

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 2)
        self.activations = [torch.tanh, torch.relu]
        shift = torch.arange(8.0)[:4]
        self.register_buffer("shift", shift)
        self.register_buffer("again", shift)

    def forward(self, rows):
        first, second = self.activations
        return self.head(second(self.second(first(self.first(self.frozen(rows) + self.shift)))))


def test_nothing_but_numbers_leaves_and_they_are_those_that_training_made():
    session, live = trained(Tied())
    bare = session.released()
    require_bare(bare)
    assert all(torch.equal(*both) for both in zip(own(bare), own(live), strict=True))
    assert not any(type(part).__name__.startswith("GradSample") for part in bare.modules())
    assert not any(part.training for part in bare.modules())
    assert [p.requires_grad for p in bare.parameters()] == [
        p.requires_grad for p in live.parameters()
    ]
    assert not places(own(bare)) & places(own(live))
    assert torch.equal(pickle.loads(pickle.dumps(bare))(X), bare(X))
    require_bare(bare)
    # what is the user's own stays
    assert isinstance(bare, Tied)
    assert bare.second.weight is bare.first.weight
    assert bare.shift is bare.again
    assert bare.activations == [torch.tanh, torch.relu]
    assert torch.equal(bare(X), live(X))


@pytest.mark.parametrize("settings", [{}, {"wrap_model": False}], ids=["hooks", "not wrapped"])
def test_the_walk_sees_what_records_leave(settings):
    """Power: the trained modules themselves hold gradients by record, and records."""
    session, module = trained(layers(), **settings)
    require_bare(session.released())
    assert len(X) in {tensor.shape[0] for tensor in Reached(module).tensors if tensor.dim()}
    with pytest.raises(AssertionError):
        require_bare(module)


def test_a_module_is_released_again_and_trains_on_as_a_new_one():
    session, network = trained(layers())
    bare = session.released()
    require_bare(session.released())
    with pytest.raises(InputError, match="released"):
        trained(network)
    trained(bare.train())


def test_what_cannot_be_copied_is_refused_without_a_word_of_it():
    class Kept(nn.Linear):
        pass

    module = Kept(4, 2)
    vars(module)["last"] = module(X)
    with pytest.raises(InputError, match=r"^module='Kept'") as caught:
        trained(module)
    assert caught.value.__context__ is None
