"""A model that was trained with DP-SGD is rebuilt before it leaves, never stripped.

What leaves. `PublicCopy` copies a module when it is made private, before any record is seen.
`rebuilt` copies that copy, puts the noised parameters' numbers into it, and sets it to evaluation
mode. So a model that leaves is made of public things and of noised parameters. Nothing else of the
trained module is read: no buffer, attribute, gradient, hook or mode, and no parameter that the
optimizer does not have. Opacus alone leaves records there, and the gradient of each.

What may change. A noised parameter may change in the optimizer's step, and nothing else of the
module may change at all. This protects the parameters as well: where a forward pass keeps
something of its records, the next sample's gradients depend on those records, and clipping does
not bound how much. So the module is compared with what it was, before each step and before it is
rebuilt:
- of each noised parameter, the object, its memory, its version counter and its numbers, with
  those that the last step left: `parameter.data.copy_` and NumPy move no counter
- of each other parameter and buffer the same, with those before training
- other attributes, and the hooks of all layers, by identity; numbers and text by value
- before the steps 1, 2, 4, 8, ... and before a rebuild, also what hangs on attributes (`reached`),
  what the caller's classes hold and the global variables that their code names, and the numbers in
  the module's tensors and arrays, bit by bit: NumPy, and torch's kernel of batch norm, write
  without moving a counter

A layer that mixes the records of a sample is refused where a trial on made-up records shows it, and
so is a module whose trial shows nothing: it fails, its outputs have no axis of records, or the loop
does not call the module itself.

What a copy would share with the trained module, such as a function that closes over a list, is
refused unless it cannot change.

Not seen: the state inside objects of extensions, such as generators, and numbers of tensors and
arrays outside the module that are written without moving a counter.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import logging
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from dpbo.dpsgd._opacus import load_opacus
from dpbo.dpsgd.reached import PLAIN, is_opaque, named, parts
from dpbo.dpsgd.trained import mark_rebuilt, note_trained, was_trained
from dpbo.errors import InputError
from dpbo.isolation import isolate_generators, mute_warnings

_STATE = ("_parameters", "_buffers", "_modules")
# Hooks, the mode, and what Opacus writes on the whole module. None of it is copied after training.
_OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "autograd_grad_sample_hooks"}) - {*_STATE}
# Opacus writes these on layers that have parameters.
_OF_OPACUS = frozenset({"activations", "max_batch_len", "ft_compute_sample_grad"})
# Deep copies share these. Cells are looked into with their function.
_CONSTANT = (
    *PLAIN,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CellType,
    types.ModuleType,
    types.EllipsisType,
    type,
    tuple,
    range,
    enum.Enum,
    logging.Logger,
    np.dtype,
    np.generic,
    np.ufunc,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_RUN_IN_PASSES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_STATE_DICTS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_NORMS = (
    "Use nn.GroupNorm or nn.LayerNorm, or keep public running statistics and set this layer to"
    " .eval() before and during training."
)
_KEPT = (
    "What a layer keeps of records is not noised: write to no buffer or attribute in a forward"
    f" pass. {_NORMS}"
)
_HOOKS = "A hook may keep records. Put what it does into `forward`."
_SHARES = "Make a function that closes over other things a method of the layer, or a module."
_TOKENS = (
    "Leave max_norm out: it shortens the rows of the sample's tokens in each forward pass, without"
    " noise."
)
_EXAMPLE = (
    "Give its inputs for three different public records, a tuple or a dict by keyword:"
    " make_private(..., example=(inputs,))."
)
_OUTPUTS = (
    "Return tensors, or lists, tuples or dicts of tensors, with one row a record; compute the loss"
    " outside `forward`."
)
_CLASS = "Tensors of another class run code of their own in the optimizer's step."
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
        # A frozen parameter is not noised, though the optimizer may have it.
        self._module = module
        self._noised = {id(parameter): parameter for parameter in noised if parameter.requires_grad}
        for parameter in self._noised.values():
            if type(parameter) is not nn.Parameter:
                raise InputError(
                    "module",
                    type(parameter).__name__,
                    "one whose trainable parameters are nn.Parameter itself",
                    _CLASS,
                )
        self._copies = _fresh_tensors(module)
        self._copy = _copied(module, self._copies)
        self._layers = [*module.named_modules()]
        # What `_traces` has traces of: the last one's is of all layers.
        self._traced = [*self._layers, ("", module)]
        self._before = {whole: self._traces(whole) for whole in (False, True)}
        self._require_apart()
        self._hooked: list[tuple[str, nn.Module]] = self._layers
        self._own_hook: Any = None
        self._hooks = self._hooks_now()
        self._tried = True
        tensors = [*module.parameters(), *module.buffers()]
        self.is_precise = all(
            tensor.dtype in _PRECISE or not _is_float(tensor) for tensor in tensors
        )
        self._comparisons = 0
        self.note_step()

    def begin(self, axis: int, wrapper: object, example: Any = None) -> None:
        """Call when training may begin. From now on other trainings refuse the module and its
        layers.

        The first forward pass of the module is tried on made-up records beforehand (`_try`).
        The hooks that are there now are Opacus' own: there were none before.

        Args:
            axis: of records, in the inputs.
            wrapper: Opacus' module around this one, if it is a module.
            example: public inputs for the trial; omitted, they are made up.
        """
        note_trained(layer for _, layer in self._layers)
        self._hooked = list(self._layers)
        if isinstance(wrapper, nn.Module):
            self._hooked.append(("", wrapper))
        self._hooks = self._hooks_now()
        self._tried = False

        def before_first_pass(_: nn.Module, args: Any, kwargs: Any) -> None:
            handle.remove()
            if example is None:
                self._try((args, kwargs), axis, _made_up)
            else:
                self._try(_inputs(example), axis, _repeated)

        handle = self._module.register_forward_pre_hook(before_first_pass, with_kwargs=True)
        self._own_hook = before_first_pass

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

    def _hooks_now(self) -> list[list[Any]]:
        """The hooks that run in passes, but for `begin`'s own: each layer's, the wrapper's, and
        those of all modules.
        """
        tables = [vars(layer) for _, layer in self._hooked]
        tables.append(
            {name: vars(torch.nn.modules.module)[f"_global{name}"] for name in _RUN_IN_PASSES}
        )
        found = []
        for table in tables:
            hooks: list[Any] = []
            for name in _RUN_IN_PASSES:
                for hook in table[name].values():
                    if hook is not self._own_hook:
                        hooks.append(hook)
            found.append(hooks)
        return found

    def note_step(self) -> None:
        """Call after each step of the optimizer: noised parameters are now as they should be."""
        self._stepped = self._positions()
        self._numbers = Numbers(self._noised.values())

    def require_unchanged(self, *, whole: bool = False) -> None:
        """Raise InputError, with the layer's name, if anything changed outside the optimizer's
        step.

        Args:
            whole: compare what hangs on attributes, and all numbers, whichever call this is.
        """
        self._comparisons += 1
        whole = whole or self._comparisons & (self._comparisons - 1) == 0
        moved = self._moved()
        for (name, layer), hooks, hooks_now in zip(
            [*self._hooked, ("", self._module)], self._hooks, self._hooks_now(), strict=True
        ):
            if not equal_things(hooks, hooks_now):
                raise InputError(
                    _place(name), layer, "without hooks that make_private did not find", _HOOKS
                )
        for (name, layer), before, now in zip(
            self._traced, self._before[whole], self._traces(whole), strict=True
        ):
            own = map(id, layer._parameters.values())
            same = equal_things(before, now) and moved.isdisjoint(own)
            if not same or (whole and not all(map(self._has_its_numbers, now))):
                raise InputError(
                    _place(name), layer, "unchanged by forward passes and by your loop", _KEPT
                )

    def _moved(self) -> set[int]:
        """Which noised parameters are not as the last step left them."""
        moved = {place for place, now in self._positions().items() if now != self._stepped[place]}
        places = list(self._noised)
        return moved.union(places[i] for i in self._numbers.changed())

    def _positions(self) -> dict[int, tuple[int, int]]:
        return {place: _position(parameter) for place, parameter in self._noised.items()}

    def rebuilt(self) -> nn.Module:
        """A new copy of the public copy with the noised parameters' numbers, in evaluation mode.

        Raises:
            InputError: as `require_unchanged`.
        """
        self.require_unchanged(whole=True)
        tensors = _fresh_tensors(self._copy)
        for noised in self._noised.values():
            public = self._copies[id(noised)]
            tensors[id(public)] = nn.Parameter(noised.detach().clone(), public.requires_grad)
        released = _copied(self._copy, tensors).eval()
        # Also modules in lists and dicts of its attributes.
        mark_rebuilt(tensors.values())
        return released

    def _require_apart(self) -> None:
        """Raise InputError for what the copy would share with the trained module, unless it cannot
        change.
        """
        for (name, layer), trace in zip(self._traced, self._before[True], strict=True):
            for value in trace:
                if is_opaque(value):
                    allowed = (
                        "without iterators that hide where they stand, such as a"
                        f" {type(value).__name__}"
                    )
                    raise InputError(_place(name), layer, allowed, _KEPT)
                # What classes and modules hold is shared, and is compared alone.
                if trace is self._before[True][-1] or id(value) in self._copies:
                    continue
                function = isinstance(value, (types.FunctionType, types.BuiltinFunctionType))
                if (function and not _is_constant(value)) or not isinstance(value, _CONSTANT):
                    allowed = (
                        "a module that can be copied with all it holds, also its"
                        f" {type(value).__name__}"
                    )
                    raise InputError(_place(name), layer, allowed, _SHARES)

    def _try(self, inputs: Any, axis: int, records: Callable[..., Any]) -> None:
        """Call two public copies on records that have the first in common, with the same
        generators.

        Once with 11 records and once with 13, so that an output shows which of its axes is the
        records': the one that follows. What cannot be judged so is refused, as what differs.
        Made-up records follow from the shapes of the true ones alone, and so does what is refused.

        Args:
            inputs: (args, kwargs) of the module.
            axis: of records, in the inputs.
            records: `_repeated`, of inputs that are public records; else `_made_up`.

        Raises:
            InputError: a copy has changed or fails, the outputs are no tensors with an axis of
                records, or those for the first record differ.
        """
        first = _copied(self._copy, _fresh_tensors(self._copy))
        trial = PublicCopy(first, ())
        returned = list[Any]()
        seen = _Dtypes()
        for count in _TRIED:
            for which, module in enumerate((first, trial._copy), start=1):
                # The error is about numbers that nobody gave.
                with contextlib.suppress(Exception):
                    args, kwargs = records(inputs, axis, count, which)
                    with torch.no_grad(), isolate_generators(bytes), seen:
                        returned.append(module(*args, **kwargs))
        trial.require_unchanged(whole=True)
        name = type(self._module).__name__
        if len(returned) < 2 * len(_TRIED):
            raise InputError("module", name, "one that can be tried on made-up records", _EXAMPLE)
        outputs = [_tensors(each) for each in returned]
        # As many as the shorter one has: that they have as many is asked below.
        axes: list[Any] = list(map(_axis_of_records, outputs[0], outputs[2]))
        if (
            not axes
            or None in axes
            or not all(map(_has_tensors_alone, returned))
            or len({*map(len, outputs)}) > 1
        ):
            raise InputError(
                "module",
                name,
                "one whose outputs are tensors with one axis that is the records'",
                _OUTPUTS,
            )
        for one, other in (outputs[:2], outputs[2:]):
            for place, mine, others in zip(axes, one, other, strict=True):
                if mine.shape != others.shape or not _close(
                    mine.select(place, 0), others.select(place, 0)
                ):
                    allowed = (
                        "one whose output for a record does not depend on other records of the"
                        " sample"
                    )
                    raise InputError("module", self._module, allowed, _NORMS)
        self.is_precise = self.is_precise and seen.found <= _PRECISE
        self._tried = True

    def _traces(self, whole: bool) -> list[list[Any]]:
        """For each layer, what is compared of it; last, with `whole`, what their code refers to."""
        seen = {id(layer) for _, layer in self._layers}
        traces = list[list[Any]]()
        code = list[Any]()
        for _, layer in self._layers:
            # Batch norm mixes records in one mode and not in the other.
            trace: list[Any] = [layer.training] if isinstance(layer, _BatchNorm) else []
            for name, value in vars(layer).items():
                if name not in _OF_EVERY_MODULE and not (layer._parameters and name in _OF_OPACUS):
                    trace.append(name)
                    self._follow(value, trace, seen, code, whole or name in _STATE, whole)
            traces.append(trace)
            code.append(type(layer))
        traces.append([])
        if whole:
            # It grows meanwhile.
            for thing in code:
                self._follow(thing, traces[-1], seen, code, True, True)
        return traces

    def _follow(
        self,
        value: Any,
        trace: list[Any],
        seen: set[int],
        code: list[Any],
        inside: bool,
        whole: bool,
    ) -> None:
        """Add a value to a trace; with `inside` also its parts, with `whole` also theirs. Of
        functions, `code` gets what they name.
        """
        trace.append(value)
        if type(value) in PLAIN or id(value) in seen:
            return
        if isinstance(value, torch.Tensor) and id(value) not in self._noised:
            trace.extend(_position(value))
        if inside:
            seen.add(id(value))
            code.extend(named(value) if isinstance(value, types.FunctionType) else [type(value)])
            for part in parts(value):
                self._follow(part, trace, seen, code, whole, whole)

    def _has_its_numbers(self, value: Any) -> bool:
        """False for a tensor or an array, not noised, whose numbers differ from those in the
        copy.
        """
        if not isinstance(value, (torch.Tensor, np.ndarray)) or id(value) in self._noised:
            return True
        twin = self._copies.get(id(value))
        return twin is None or same_numbers(value, twin)


def _require_trainable(module: nn.Module) -> None:
    """Raise InputError for layers of which it is known beforehand that they keep or mix records."""
    if was_trained(module) or isinstance(
        module, load_opacus("opacus.grad_sample").AbstractGradSampleModule
    ):
        remedy = (
            "Build it anew for each run. To train on, take what `released()` of its engine gives."
        )
        raise InputError("module", type(module).__name__, "one that was not trained before", remedy)
    for name, layer in module.named_modules():
        if any(getattr(layer, hooks) for hooks in _RUN_IN_PASSES):
            raise InputError(_place(name), layer, "without hooks", _HOOKS)
        if any(map(nn.parameter.is_lazy, [*layer._parameters.values(), *layer._buffers.values()])):
            raise InputError(
                _place(name),
                layer,
                "initialised",
                "Call the module once on public inputs, such as zeros.",
            )
        if isinstance(layer, _NormBase) and layer.running_mean is not None and layer.training:
            raise InputError(
                _place(name), layer, "one that keeps nothing of the records it sees", _NORMS
            )
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            raise InputError(_place(name), layer, "one that treats each record by itself", _NORMS)
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
            raise InputError(
                _place(name), layer, "without max_norm, which changes it in a forward pass", _TOKENS
            )


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
        # These hooks are numbered by how many the process had before.
        for hooks in _OF_STATE_DICTS:
            numbered = getattr(layer, hooks)
            setattr(layer, hooks, type(numbered)(enumerate(numbered.values())))
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


def _is_constant(value: Any, around: tuple[Any, ...] = ()) -> bool:
    """Whether neither a value nor what is inside it can change; of a function, what it closes over,
    and its defaults.
    """
    if any(value is each for each in around):
        return True
    if not isinstance(value, _CONSTANT):
        return False
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.CellType, tuple)):
        return all(_is_constant(part, (*around, value)) for part in parts(value))
    return True


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    scale = max(float(a.abs().max()), 1e-6) if a.numel() else 1.0
    return torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-3 * scale, equal_nan=True)


def _position(tensor: torch.Tensor) -> tuple[int, int]:
    """Changes when torch's operations write to the tensor, or when it is given other memory."""
    version = 0 if tensor.is_inference() else tensor._version
    return version, tensor.data_ptr() if tensor.layout is torch.strided else 0


def equal_things(before: list[Any], now: list[Any]) -> bool:
    """Whether two traces have the same objects, and equal numbers and text."""
    if len(before) != len(now):
        return False
    return all(
        a is b or (type(a) is type(b) and type(a) in PLAIN and a == b)
        for a, b in zip(before, now, strict=True)
    )


class Numbers:
    """A copy of the numbers of tensors, one for each dtype and device: a GPU is waited for once."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._forms = list(map(_form, self._tensors))
        alike = collections.defaultdict[Any, list[int]](list)
        for place, (_, *kind) in enumerate(self._forms):
            alike[tuple(kind)].append(place)
        self._copies = [(places, torch.cat(self._flat(places))) for places in alike.values()]

    def changed(self) -> list[int]:
        """The places of tensors with other numbers than then; NaN counts as itself."""
        now = list(map(_form, self._tensors))
        if now != self._forms:
            return [place for place, form in enumerate(self._forms) if now[place] != form]
        found = []
        for places, copied in self._copies:
            flat = self._flat(places)
            if copied.is_cuda and same_numbers(torch.cat(flat), copied):
                continue
            parts = copied.split_with_sizes([len(each) for each in flat])
            for place, mine, part in zip(places, flat, parts, strict=True):
                if not same_numbers(mine, part):
                    found.append(place)
        return found

    def _flat(self, places: list[int]) -> list[torch.Tensor]:
        return [self._tensors[place].detach().reshape(-1) for place in places]


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def same_numbers(a: Any, b: Any) -> bool:
    """Whether two tensors or arrays have the same numbers; NaN counts as itself."""
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(
        torch.equal(a, b) or (a.shape == b.shape and ((a == b) | ((a != a) & (b != b))).all())
    )
