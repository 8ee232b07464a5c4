"""A device that is not there, for tests of code that runs on a GPU: its tensors are on `shadow:0`
and keep their numbers on the CPU.

    with Shadow() as device:
        X = device.put(torch.rand(5, 3, dtype=torch.float64))
        ...
        assert len(device.syncs) <= 2, device.syncs

torch knows it as a backend written in Python, so true values pass through everything that follows
the device of its inputs: autograd, vmap and GPyTorch's fits, too. Tensors of two devices in one
operation are refused as on CUDA, which takes a CPU tensor of no dimension and CPU indices beside
its own. Three lists of lines "operation at file:line" tell what happened:

    launches   operations that start a kernel; views start none, and an operation counts once,
               whatever its kernels,
    syncs      where the host waits: copies to the CPU, item(), bool(), and shapes that depend on
               values,
    uploads    copies from the CPU, and CPU indices.

It has no times, no Triton kernels, no generator of its own and one thread, `is_cuda` is False for
its tensors, and inference mode is no_grad.
"""

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

try:
    from torch.utils.backend_registration import (
        _DummyBackendModule,
        _setup_privateuseone_for_python_backend,
    )
except ImportError:
    pytest.skip("this torch takes no backend written in Python", allow_module_level=True)

ROOT = f"{Path(__file__).parents[1]}/"
COPIES = {"_to_copy", "copy_"}
WAIT = {
    "_local_scalar_dense",
    "_unique2",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
INDEX = {"index", "index_put", "index_put_", "_index_put_impl_"}
FREE = {"_local_scalar_dense", "_unsafe_view", "detach", "lift_fresh"} | {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


class MixedDevices(RuntimeError):
    """One operation was given tensors of two devices."""


class OnShadow(torch.Tensor):
    """A tensor on the device; `numbers` holds its values."""

    numbers: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers):
        layout = {
            "strides": numbers.stride(),
            "storage_offset": numbers.storage_offset(),
            "dtype": numbers.dtype,
        }
        self = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, device=torch.device("shadow", 0), **layout
        )
        self.numbers = numbers
        return self

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):  # type: ignore[override]
        return Shadow.current.run(operation, args, kwargs or {})

    def tolist(self):
        return self.cpu().tolist()

    def untyped_storage(self):
        return self.numbers.untyped_storage()

    def __repr__(self):  # type: ignore[override]
        return f"OnShadow({self.numbers!r})"


class Shadow(TorchDispatchMode):
    """The device, within a `with` statement."""

    name = "shadow:0"
    current: Any = None

    def __enter__(self):
        _register()
        self.forget()
        # autograd has no thread for the device
        self.one_thread = torch.autograd.set_multithreading_enabled(False)
        self.one_thread.__enter__()
        self.lifted, self.patch = torch._C._only_lift_cpu_tensors(), pytest.MonkeyPatch()
        # whose tensors have no version, which their views set
        self.patch.setattr(torch, "inference_mode", torch.no_grad)
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=) copies from the CPU
        Shadow.current = self
        return super().__enter__()

    def __exit__(self, *error):
        self.patch.undo()
        torch._C._set_only_lift_cpu_tensors(self.lifted)
        self.one_thread.__exit__(*error)
        Shadow.current = None
        return super().__exit__(*error)

    def forget(self):
        """Begin all lists anew."""
        self.launches, self.syncs, self.uploads = [], [], []

    def put(self, part):
        """A copy of a tensor on the device, or the module itself with its parameters and buffers
        there; not in the lists.
        """
        if isinstance(part, torch.Tensor):
            return OnShadow(part.detach().clone())
        before = len(self.uploads)
        part.to(self.name)
        del self.uploads[before:]
        return part

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return self.run(operation, args, kwargs or {})

    def run(self, operation, args, kwargs):
        """The operation on the numbers, and lines in the lists."""
        leaves, name = tree_leaves((args, kwargs)), operation._schema.name.removeprefix("aten::")
        inputs = [x for x in leaves if isinstance(x, torch.Tensor)]
        wrappers = {id(x.numbers): x for x in inputs if isinstance(x, OnShadow)}
        target = next((x.type for x in leaves if isinstance(x, torch.device)), None)
        if not wrappers and target != "shadow":
            return operation(*args, **kwargs)
        into_cpu = target == "cpu" if name != "copy_" else not isinstance(args[0], OnShadow)
        self._record(operation, name, args, inputs, into_cpu)

        def on_the_cpu(x):
            return (
                x.numbers
                if isinstance(x, OnShadow)
                else torch.device("cpu")
                if isinstance(x, torch.device)
                else x
            )

        found = operation(
            *tree_map(on_the_cpu, args),
            **tree_map(on_the_cpu, {k: v for k, v in kwargs.items() if k != "pin_memory"}),
        )
        if into_cpu:
            return found

        def on_the_device(x):
            return (
                OnShadow(x)
                if isinstance(x, torch.Tensor) and id(x) not in wrappers
                else wrappers.get(id(x), x)
            )

        return tree_map(on_the_device, found)

    def _record(self, operation, name, args, inputs, into_cpu):
        here = [x for x in inputs if not isinstance(x, OnShadow)]
        foreign = [tuple(x.shape) for x in here if x.dim() > 0]
        if name in COPIES:
            if into_cpu or here:
                (self.syncs if into_cpu else self.uploads).append(line(name))
            return
        if foreign and name not in INDEX:
            raise MixedDevices(f"{line(name)}: {foreign} on the CPU")
        if foreign:
            self.uploads.append(line("CPU tensor in " + name))
        masked = name in INDEX and any(x is not None and x.dtype is torch.bool for x in args[1])
        # CUDA fills by a mask without waiting
        if name in WAIT or (masked and (name == "index" or args[2].numel() > 1)):
            self.syncs.append(line(name))
        is_view = any(
            part.alias_info is not None and not part.alias_info.is_write
            for part in operation._schema.returns
        )
        if not is_view and name not in FREE:
            self.launches.append(line(name))


class _Backend(_DummyBackendModule):
    """What torch asks of a backend; outside the `with` statement there is none."""

    def is_available(self):
        return Shadow.current is not None

    def device_count(self):
        return int(self.is_available())


@functools.cache
def _register():
    # autograd starts without the device: else no child that was forked could use it
    torch.zeros(1, requires_grad=True).sum().backward()
    _setup_privateuseone_for_python_backend("shadow", backend_module=_Backend())
    # torch.tensor of a list of tensors calls it past the tensors' own dispatch
    item = torch.ops.aten._local_scalar_dense.default
    torch.library.impl("aten::_local_scalar_dense", "PrivateUse1")(
        lambda tensor: Shadow.current.run(item, (tensor,), {})
    )


def line(operation):
    """The operation and the innermost line of the project, else of the test, that led to it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not frame.f_code.co_filename.startswith(
        (f"{ROOT}dpbo/", f"{ROOT}tests/unit/")
    ):
        frame = frame.f_back
    return f"{operation} at {frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno}"
