"""DP-EM (Park, Foulds, Chaudhuri & Welling 2017): private mixtures of Gaussians, factor analysis
and k-means, by released moments.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
