from .estimator import DPSearch as DPSearch
