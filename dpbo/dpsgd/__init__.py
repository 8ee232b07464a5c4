"""Training by DP-SGD and tuning it, with training and validation records protected together; the
best of hidden runs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
