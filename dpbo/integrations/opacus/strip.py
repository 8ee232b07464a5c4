"""Removes from a model trained with DP-SGD what Opacus leaves on it, so that it can be published.

Opacus keeps on each parameter how every record of the last sample would change it (`grad_sample`) and that sum before its noise
(`summed_grad`), and on each layer the inputs of a forward pass (`activations`) until a backward pass has used them. Pickling a module,
`torch.save` included, writes all of it.
"""

import contextlib
import copy

from torch import nn

from dpbo._opacus import load_opacus
from dpbo.errors import InputError
from dpbo.validation import checked

_ON_LAYERS = ("activations", "max_batch_len", "ft_compute_sample_grad")
_ON_MODULES = "autograd_grad_sample_hooks"


@checked
def strip_opacus(module: nn.Module) -> nn.Module:
    """A copy of the module without Opacus' wrappers, hooks and attributes; its parameters hold their numbers only.

    The module itself does not change. Tied parameters stay tied, and training modes stay. Published are the parameters, buffers and plain
    attributes of the module and its parts. DP-SGD protects the parameters that it trained and nothing else, and an attribute that came
    from records cannot be told from a constant: so training must leave none there, such as the last batch, its loss or its size.

    Raises:
        InputError: not a module, or one that cannot be copied, such as a module that keeps an output of its own.
    """
    tensors = {id(buffer): buffer.detach().clone() for buffer in module.buffers()}
    tensors |= {id(weight): nn.Parameter(weight.detach().clone(), weight.requires_grad) for weight in module.parameters()}
    twin = None
    with contextlib.suppress(Exception):  # the error may hold what the module keeps
        twin = copy.deepcopy(module, tensors)
    if twin is None:
        raise InputError("module", type(module).__name__, "one that can be copied", "Keep no outputs in its attributes.")
    root, opacus = nn.ModuleList([twin]), load_opacus("opacus.grad_sample")
    for part in [*root.modules()]:
        for name, child in part._modules.items():
            if isinstance(child, opacus.AbstractGradSampleModule):
                part._modules[name] = child._module
    for part in root.modules():
        for hooks in (part._forward_hooks, part._backward_hooks):
            for key, hook in [*hooks.items()]:  # a method, or a partial of one
                if isinstance(getattr(getattr(hook, "func", hook), "__self__", None), opacus.AbstractGradSampleHooks):
                    del hooks[key]
        vars(part).pop(_ON_MODULES, None)
        if part._parameters:  # on other layers these names are the module's own
            for name in _ON_LAYERS:
                vars(part).pop(name, None)
    return root[0]
