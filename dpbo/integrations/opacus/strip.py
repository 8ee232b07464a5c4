"""What may be published of a model that was trained with DP-SGD: the noised numbers, and nothing that records left beside them.

Opacus keeps on each parameter what every record of the last sample would change it by (`grad_sample`) and the sum of that before its noise
(`summed_grad`), and on each layer the records that a forward pass brought it (`activations`), until a backward pass has used them. Pickling
a module, `torch.save` included, writes all of it.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from dpbo._opacus import load_opacus
from dpbo.errors import InputError
from dpbo.validation import checked

_ON_LAYERS = ("activations", "max_batch_len", "ft_compute_sample_grad")
_ON_THE_WHOLE = "autograd_grad_sample_hooks"


@checked
def strip_opacus(module: nn.Module) -> nn.Module:
    """A copy without Opacus and what it left: no wrappers, no hooks of its, and new parameters that hold their numbers alone.

    The module itself is left alone. Tied parameters stay tied, and training modes what they are.
    Parameters, buffers and plain attributes of the module and its parts are what is published. DP-SGD protects the parameters that it
    trained. It protects nothing else, and what in an attribute came from records cannot be told from constants: so training must leave
    none there, such as the last batch, its loss or its size.

    Raises:
        InputError: no module, or one that cannot be copied, such as one that keeps an output of itself.
    """
    tensors = {id(kept): kept.detach().clone() for kept in module.buffers()}
    tensors |= {id(kept): nn.Parameter(kept.detach().clone(), kept.requires_grad) for kept in module.parameters()}
    twin = _copied(module, tensors)
    if twin is None:
        raise InputError("module", type(module).__name__, "one that can be copied", "Keep no outputs in its attributes.")
    root = nn.ModuleList([twin])
    _unwrap(root)
    for part in root.modules():
        _clean(part)
    return root[0]


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module | None:
    """None where that fails: the error may hold what the module keeps."""
    try:
        return copy.deepcopy(module, memo)
    except Exception:
        return None


def _unwrap(parent: nn.Module) -> None:
    """Wherever below it a module is wrapped, the wrapped one takes the wrapper's place."""
    wrapper = load_opacus("opacus.grad_sample").AbstractGradSampleModule
    for part in [*parent.modules()]:
        for name, child in part._modules.items():
            if isinstance(child, wrapper):
                part._modules[name] = child._module


def _clean(part: nn.Module) -> None:
    for hooks in (part._forward_hooks, part._backward_hooks):
        for key in [key for key, hook in hooks.items() if _is_opacus(hook)]:
            del hooks[key]
    vars(part).pop(_ON_THE_WHOLE, None)
    if part._parameters:  # Opacus looks at such layers alone; elsewhere these names are the module's own
        for name in _ON_LAYERS:
            vars(part).pop(name, None)


def _is_opacus(hook: Any) -> bool:
    """A method of what computes gradients by record, as it is or with arguments set."""
    return isinstance(getattr(getattr(hook, "func", hook), "__self__", None), load_opacus("opacus.grad_sample").AbstractGradSampleHooks)
