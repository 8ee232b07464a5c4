"""Real processes for tests that kill them, forked from a server that has imported everything
already, so that each begins at once.
"""

import multiprocessing
import os
import pathlib
import socket
import sys
import warnings


def started(folder, log, function, *arguments):
    """A process that calls the function in the folder; what it prints is added to the file `log`
    there.
    """
    context = multiprocessing.get_context("forkserver")
    state = os.environ["DPBO_STATE"]
    process = context.Process(target=_run, args=(state, folder, log, function, *arguments))
    process.start()
    return process


def _run(state, folder, log, function, *arguments):
    os.environ["DPBO_STATE"] = state
    os.chdir(folder)
    with pathlib.Path(log).open("a") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    warnings.filterwarnings("error", module="dpbo")
    sys.exit(function(*arguments))


def free_port():
    """A port of this machine that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
