"""A model that was trained with DP-SGD is rebuilt before it leaves, never stripped.

What leaves. `PublicCopy` copies a module when it is made private, before any record is seen.
`rebuilt` copies that copy, puts the noised parameters' numbers into it, and sets it to evaluation
mode. So a model that leaves is made of public things and of noised parameters. Nothing else of the
trained module is read: no buffer, attribute, gradient, hook or mode, and no parameter that the
optimizer does not have. Opacus alone leaves records there, and the gradient of each.

What is checked. Opacus' ModuleValidator refuses layers that are known to mix records. Noised
parameters may change in the optimizer's step alone, and other parameters and buffers not at all:
before each step and before a rebuild each is compared by object, memory and version counter. So a
norm that keeps running statistics, or an embedding that shortens its rows, is refused. A module
that mixes the records of a sample is refused where a trial on made-up records shows it, and so is
one whose trial shows nothing: it fails, its outputs have no axis of records, or the loop does not
call the module itself.

What else a forward pass or the loop might keep of records, such as in an attribute or past the
version counters, is the assumption `dpsgd-attested`.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from dpbo.dpsgd._opacus import load_opacus
from dpbo.dpsgd.trained import mark_rebuilt, note_trained, was_trained
from dpbo.errors import InputError
from dpbo.isolation import isolate_generators, mute_warnings

_HOOKS = [name for name in vars(nn.Module()) if "_hooks" in name]
_NORMS = (
    "Use nn.GroupNorm or nn.LayerNorm, or keep public running statistics and set this layer to"
    " .eval() before and during training."
)
_KEPT = (
    "What a layer keeps of records is not noised: write to no buffer or parameter in a forward"
    f" pass, and leave max_norm of embeddings out. {_NORMS}"
)
_EXAMPLE = (
    "Give its inputs for three different public records, a tuple or a dict by keyword:"
    " make_private(..., example=(inputs,))."
)
_OUTPUTS = (
    "Return tensors, or lists, tuples or dicts of tensors, with one row a record; compute the loss"
    " outside `forward`."
)
# Numbers of records that a module is tried on before it is trained.
_TRIED = (11, 13)
_LARGE = 30.0
_PRECISE = {torch.float32, torch.float64, torch.complex64, torch.complex128}


class PublicCopy:
    """A module as it was before training.

    Args:
        module: not yet trained.
        noised: those of its parameters that the optimizer will change.

    Attributes:
        is_precise: whether all its tensors, and all that the trial computed, have float32 or
            float64. The trial runs where the first pass does, also under its autocast.

    Raises:
        InputError: the module was trained before, has a layer that keeps or mixes records, or
            cannot be copied.
    """

    def __init__(self, module: nn.Module, noised: Iterable[nn.Parameter]) -> None:
        _require_trainable(module)
        mark_rebuilt(module.modules(), rebuilt=False)
        self._module = module
        # A frozen parameter is not noised, though the optimizer may have it.
        self._noised = {id(parameter): parameter for parameter in noised if parameter.requires_grad}
        self._copies = _fresh_tensors(module)
        self._copy = _copied(module, self._copies)
        self._tried = True
        tensors = [*module.parameters(), *module.buffers()]
        self.is_precise = all(
            tensor.dtype in _PRECISE or not _is_float(tensor) for tensor in tensors
        )
        self.note_step()

    def begin(self, axis: int, example: Any = None) -> None:
        """Call when training may begin. From now on other trainings refuse the module and its
        layers.

        The first forward pass of the module is tried on made-up records beforehand (`_try`).

        Args:
            axis: of records, in the inputs.
            example: public inputs for the trial; omitted, they are made up.
        """
        note_trained(self._module.modules())
        self._tried = False

        def before_first_pass(_: nn.Module, args: Any, kwargs: Any) -> None:
            handle.remove()
            if example is None:
                self._try((args, kwargs), axis, _made_up)
            else:
                self._try(_inputs(example), axis, _repeated)

        handle = self._module.register_forward_pre_hook(before_first_pass, with_kwargs=True)

    def require_tried(self) -> None:
        """Raise InputError unless a forward pass of the module came, and its trial, after
        `begin`.
        """
        if not self._tried:
            remedy = (
                "Call it in the loop, not a method or a layer of it: put what they do into"
                " `forward`."
            )
            raise InputError(
                "module", type(self._module).__name__, "called before each step", remedy
            )

    def name_of(self, parameter: nn.Parameter) -> str:
        """The name of a parameter of the module."""
        return next(name for name, own in self._module.named_parameters() if own is parameter)

    def note_step(self) -> None:
        """Call after each step of the optimizer: all tensors are now as they should be."""
        self._stepped = _places(self._module)

    def require_unchanged(self) -> None:
        """Raise InputError, with the tensor's name, if one changed outside the optimizer's step."""
        _require_same(self._stepped, _places(self._module))

    def rebuilt(self) -> nn.Module:
        """A new copy of the public copy with the noised parameters' numbers, in evaluation mode.

        Raises:
            InputError: as `require_unchanged`.
        """
        self.require_unchanged()
        tensors = _fresh_tensors(self._copy)
        for noised in self._noised.values():
            public = self._copies[id(noised)]
            tensors[id(public)] = nn.Parameter(noised.detach().clone(), public.requires_grad)
        released = _copied(self._copy, tensors).eval()
        # Also modules in lists and dicts of its attributes.
        mark_rebuilt(tensors.values())
        return released

    def _try(self, inputs: Any, axis: int, records: Callable[..., Any]) -> None:
        """Call a public copy on records that have the first in common, with the same generators:
        on 11, on 13, and on 13 of which the others differ.

        An output's axis of records is the one that follows their number. What cannot be judged so
        is refused, as what differs. Made-up records follow from the shapes of the true ones alone,
        and so does what is refused.

        Args:
            inputs: (args, kwargs) of the module.
            axis: of records, in the inputs.
            records: `_repeated`, of inputs that are public records; else `_made_up`.

        Raises:
            InputError: the copy has changed or fails, the outputs are no tensors with an axis of
                records, or those for the first record differ.
        """
        tried = _copied(self._copy, _fresh_tensors(self._copy))
        before = _places(tried)
        returned = list[Any]()
        seen = _Dtypes()
        less, more = _TRIED
        for count, which in ((less, 1), (more, 1), (more, 2)):
            # The error is about numbers that nobody gave.
            with contextlib.suppress(Exception):
                args, kwargs = records(inputs, axis, count, which)
                with torch.no_grad(), isolate_generators(bytes), seen:
                    returned.append(tried(*args, **kwargs))
        _require_same(before, _places(tried))
        name = type(self._module).__name__
        if len(returned) < 3:
            raise InputError("module", name, "one that can be tried on made-up records", _EXAMPLE)
        fewer, one, other = map(_tensors, returned)
        axes: list[Any] = list(map(_axis_of_records, fewer, one))
        if (
            not axes
            or None in axes
            or not all(map(_has_tensors_alone, returned))
            or not len(fewer) == len(one) == len(other)
        ):
            raise InputError(
                "module",
                name,
                "one whose outputs are tensors with one axis that is the records'",
                _OUTPUTS,
            )
        for place, mine, others in zip(axes, one, other, strict=True):
            if mine.shape != others.shape or not _close(
                mine.select(place, 0), others.select(place, 0)
            ):
                allowed = (
                    "one whose output for a record does not depend on other records of the sample"
                )
                raise InputError("module", self._module, allowed, _NORMS)
        self.is_precise = self.is_precise and seen.found <= _PRECISE
        self._tried = True


def _require_trainable(module: nn.Module) -> None:
    """Raise InputError for layers of which it is known beforehand that they keep or mix records.

    Opacus' ModuleValidator looks at those with trainable parameters alone.
    """
    if was_trained(module) or isinstance(
        module, load_opacus("opacus.grad_sample").AbstractGradSampleModule
    ):
        remedy = (
            "Build it anew for each run. To train on, take what `released()` of its engine gives."
        )
        raise InputError("module", type(module).__name__, "one that was not trained before", remedy)
    for name, layer in module.named_modules():
        keeps = isinstance(layer, _NormBase) and layer.running_mean is not None and layer.training
        mixes = isinstance(layer, _BatchNorm) and layer.running_mean is None
        if keeps or mixes:
            allowed = "one that treats each record by itself and keeps nothing of it"
            raise InputError(_place(name), layer, allowed, _NORMS)


def _places(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of each parameter and buffer, by name, the object, its memory and its version counter, which
    moves when torch's operations write to it.
    """
    return {
        name: (id(tensor), tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def _require_same(before: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]]) -> None:
    """Raise InputError, with the name, for a tensor that is not as before."""
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            allowed = "unchanged by forward passes and by your loop"
            raise InputError(_place(name), "Tensor", allowed, _KEPT)


def _place(name: str) -> str:
    """Where a layer of this name stands, in an error."""
    if name:
        return f"module.{name}"
    return "module"


def _fresh_tensors(module: nn.Module) -> dict[int, Any]:
    """New parameters and buffers, by the id of the old ones: their numbers without gradients or
    attributes.
    """
    tensors = dict[int, Any]()
    for buffer in module.buffers():
        tensors[id(buffer)] = buffer.detach().clone()
    for parameter in module.parameters():
        numbers = parameter.detach().clone()
        tensors[id(parameter)] = nn.Parameter(numbers, parameter.requires_grad)
    return tensors


def _copied(module: nn.Module, tensors: dict[int, Any]) -> nn.Module:
    """A copy with these tensors. Afterwards `tensors` has a copy of each thing inside, by the id of
    the original.
    """
    twin = None
    # The error may hold what the module keeps. From Python 3.12 on counts and other iterators warn
    # where they are copied.
    with contextlib.suppress(Exception), mute_warnings(DeprecationWarning):
        twin = copy.deepcopy(module, tensors)
    if twin is None:
        raise InputError(
            "module",
            type(module).__name__,
            "one that can be copied",
            "Keep no outputs in its attributes.",
        )
    for layer in twin.modules():
        # Hooks are numbered by how many the process had before.
        tables = [vars(layer)[name] for name in _HOOKS]
        places = {number: place for place, number in enumerate(sorted({*itertools.chain(*tables)}))}
        for table in tables:
            hooks = {places[number]: hook for number, hook in table.items()}
            table.clear()
            table.update(hooks)
    return twin


def copied_module(module: nn.Module) -> nn.Module:
    """A copy of a released module, with the numbers of its tensors alone."""
    return _copied(module, _fresh_tensors(module))


def map_parts(container: Any, change: Callable[[Any], Any]) -> Any:
    """A mapping, tuple or list with each of its parts changed; anything else as it is."""
    if isinstance(container, Mapping):
        return {name: change(part) for name, part in container.items()}
    if isinstance(container, (list, tuple)):
        parts = map(change, container)
        if hasattr(container, "_fields"):
            return type(container)(*parts)
        return type(container)(parts)
    return container


def _map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The nested containers with every tensor changed, in order."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return map_parts(value, lambda part: _map_tensors(part, change))


class _Dtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the dtypes of all floating point numbers that are computed in it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = set[torch.dtype]()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.found.update(tensor.dtype for tensor in _tensors(result) if _is_float(tensor))
        return result


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    found = list[torch.Tensor]()
    _map_tensors(value, found.append)
    return found


def _has_tensors_alone(value: Any) -> bool:
    """Whether nested containers have no more than tensors and None."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return all(map(_has_tensors_alone, value))
    return value is None or isinstance(value, torch.Tensor)


def _inputs(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of the module, from a tuple of its inputs, or a dict by keyword."""
    if isinstance(example, Mapping):
        return ((), dict(example))
    return (tuple(example), {})


def _made_up(inputs: Any, axis: int, count: int, which: int) -> Any:
    """Inputs for a few records of these ones' shapes, of which only the first is the same for each
    `which`.
    """

    def records(like: torch.Tensor) -> torch.Tensor:
        made = _numbers(like, axis, count, which)
        if made.dim() > axis:
            made.select(axis, 0).copy_(_numbers(like, axis, count, 0).select(axis, 0))
        return made

    return _map_tensors(inputs, records)


def _numbers(like: torch.Tensor, axis: int, count: int, which: int) -> torch.Tensor:
    """Made-up numbers for so many records; whole numbers are 0 and 1, which any table of words
    has.

    The second records are large, so that a layer that mixes a little of them into the first shows.
    """
    shape = list(like.shape)
    if axis < len(shape):
        shape[axis] = count
    numbers = torch.sin(
        1.0
        + 0.7 * which
        + torch.arange(math.prod(shape), dtype=torch.float64, device="cpu") * (2.3 + which)
    ).reshape(shape)
    if which == 2:
        numbers *= _LARGE
    kept = numbers if _is_float(like) else numbers > 0
    return kept.to(like.device, like.dtype)


def _repeated(inputs: Any, axis: int, count: int, which: int) -> Any:
    """Inputs for the first of these records, and for another one, repeated."""
    given = next(tensor.shape[axis] for tensor in _tensors(inputs) if tensor.dim() > axis)
    places = torch.tensor([0] + [which] * (count - 1), device="cpu")

    def records(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() > axis and tensor.shape[axis] == given:
            return tensor.index_select(axis, places.to(tensor.device))
        return tensor

    return _map_tensors(inputs, records)


def _axis_of_records(shorter: torch.Tensor, longer: torch.Tensor) -> int | None:
    """The axis that follows the number of records; None unless it is the only one that differs."""
    if shorter.dim() != longer.dim():
        return None
    lengths = list(zip(shorter.shape, longer.shape, strict=True))
    if [pair for pair in lengths if pair[0] != pair[1]] == [_TRIED]:
        return lengths.index(_TRIED)
    return None


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    scale = max(float(a.abs().max()), 1e-6) if a.numel() else 1.0
    return torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-3 * scale, equal_nan=True)
