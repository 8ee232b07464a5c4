from .handle import Handle as Handle
