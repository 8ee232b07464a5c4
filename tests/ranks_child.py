"""One rank of test_ranks.py. Arguments: what to do, folder. RANK and WORLD_SIZE are in the environment; one process runs it without."""

import datetime
import json
import os
import pathlib
import sys
from typing import Any

import torch
import torch.distributed as dist

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Ranks
from dpbo.algorithms.em import DPFactorAnalysis, DPGaussianMixture, DPKMeans
from dpbo.algorithms.gibo_options import choose_start
from dpbo.algorithms.gibo_settings import PAPER, RECOMMENDED
from dpbo.errors import PrivacyError
from dpbo.testing import SeededEntropy

job, folder = sys.argv[1], pathlib.Path(sys.argv[2])
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
