"""The README's loop runs as it is printed, twice: from the start, and again from its ledger."""

import pathlib
import re

import pytest

PREAMBLE = """
import scipy.stats
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import dpbo

digits = load_digits()
X_train, y_train, X_val, y_val = digits.data[:300], digits.target[:300], digits.data[300:], digits.target[300:]
ids = [i // 2 for i in range(len(y_val))]
"""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_whole_loop(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (pathlib.Path(__file__).parents[1] / "README.md").read_text(), flags=re.DOTALL)
    loop = next(block for block in blocks if "objective.history()" in block).replace("evaluations=30", "evaluations=10")
    outputs = []
    for _ in range(2):
        exec(compile(PREAMBLE + loop, "README.md", "exec"), {})
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1], "the second run finds everything done"
    assert "(3.000, 1e-06)-DP" in outputs[0]
    accuracy = float(outputs[0].split("} ")[1].split()[0])
    assert 0.7 < accuracy < 1.1


def test_the_search_in_scikit_learns_words(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (pathlib.Path(__file__).parents[1] / "README.md").read_text(), flags=re.DOTALL)
    search = next(block for block in blocks if "DPSearch" in block).replace("n_iter=30", "n_iter=10")
    exec(compile(PREAMBLE + search, "README.md", "exec"), {})
    assert "each patient of the validation records (749 of them" in capsys.readouterr().out
