"""Processes that tests start are forked from one that has imported everything, once."""

import multiprocessing

multiprocessing.set_forkserver_preload(["tests.slow.preloaded"])
