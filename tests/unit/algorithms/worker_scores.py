"""Scores for workers. It imports no mechanism and no curator, so that what a worker's process holds
shows what an evaluation needs.
"""

import os
import pickle
import signal
import sys

import torch

RECORDS = 400


def load():
    """The private records: whole hundredths, so that every executor sees the same bits."""
    return torch.arange(RECORDS, dtype=torch.float64).remainder(101) / 100


def near(x, records):
    """Best where x[0] is the records' median."""
    return 1 - (records - x[0]).abs() * (0.5 + 0.5 * x[1])


def trouble(x):
    """A fit that fails, in the open."""
    raise KeyError("no such model")


class Patient:
    """A record that does not pickle, and says whose it is; or that pickles, and says so where it is
    read.
    """

    def __init__(self, pickles):
        self.pickles = pickles

    def __reduce__(self):
        if self.pickles:
            return revealing, ()
        raise pickle.PicklingError("Can't pickle Patient('Ada Lovelace')")


def revealing():
    raise ValueError("Ada Lovelace cannot be read")


class Noting:
    """`near`, and a line in a file for every evaluation: its x, its process, and the drawing
    modules that are loaded there.

    The first evaluation that gets there kills its process if it is told to; its x and its process
    stand in the file `killed`.
    """

    def __init__(self, folder, kill=False):
        self.folder, self.kill = folder, kill

    def __call__(self, x, records):
        if len(records) == RECORDS:
            self._note(x)
            if self.kill and self._is_first(x):
                os.kill(os.getpid(), signal.SIGKILL)
        return near(x, records)

    def evaluations(self):
        """(x, process, drawing modules) of every evaluation."""
        lines = (self.folder / "evaluations").read_text().splitlines()
        return [
            (x, int(process), drawing)
            for x, process, drawing in (line.split("|") for line in lines)
        ]

    def _note(self, x):
        drawing = [
            name
            for name in sys.modules
            if name.startswith("dpbo.mechanisms.") or name == "dpbo.curator.curator"
        ]
        with (self.folder / "evaluations").open("a") as file:
            file.write(f"{x.tolist()}|{os.getpid()}|{','.join(drawing)}\n")

    def _is_first(self, x):
        try:
            with (self.folder / "killed").open("x") as file:
                file.write(f"{x.tolist()}|{os.getpid()}")
        except FileExistsError:
            return False
        return True
