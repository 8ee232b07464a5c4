from .search import DPSearch as DPSearch
