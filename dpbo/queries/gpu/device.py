"""A device's multiprocessors, and the trial of a kernel on it."""

import warnings
from collections.abc import Callable

import torch


def passes_trial(kernel: str, device: torch.device, is_right: Callable[[], bool]) -> bool:
    """Whether a trial of the kernel runs and is right; if not, a warning says why it is not used."""
    reason = "its sums were wrong"
    try:
        if is_right():
            return True
    except torch.OutOfMemoryError:  # says nothing of the next trial: there may be memory then
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    text = f"the one-pass {kernel} does not run on {device} ({reason}). Sums are right but slower."
    warnings.warn(text, RuntimeWarning, stacklevel=3)
    return False


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the GPU; 1 where Triton's interpreter runs the kernel."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1
