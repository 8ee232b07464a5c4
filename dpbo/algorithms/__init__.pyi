from .asynchronous import AsynchronousBO as AsynchronousBO
from .two_stage_search import search_then_choose as search_then_choose
