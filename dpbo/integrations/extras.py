"""Libraries that only some integrations need."""

import importlib.util


def require_extra(module: str, extra: str) -> None:
    """Raises ModuleNotFoundError, with the command that installs it, where a library of an extra of dpbo is missing."""
    if importlib.util.find_spec(module) is None:
        text = f"{module} is not installed, which this part of dpbo needs. Install it with: pip install 'dpbo[{extra}]'"
        raise ModuleNotFoundError(text, name=module)
