"""What README.md prints as code, with stand-ins for what is the reader's own."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
GIVEN = """
import torch
from sklearn.datasets import load_digits
from sklearn.svm import SVC

digits = load_digits()
X_train, X_val = digits.data[:300], digits.data[300:]
y_train, y_val = digits.target[:300], digits.target[300:]
ids = [i // 2 for i in range(len(y_val))]
"""
_SEARCH = "X_public, y_public, X_customers, y_customers = X_train, y_train > 4, X_val, y_val > 4\n"
_LOOP = """
records, public_records = (X_val, y_val), (X_train, y_train)
X = torch.rand(3, 1, dtype=torch.float64)
train = lambda x: SVC(C=10 ** float(x[0])).fit(X_train, y_train)
score = lambda model, records: model.predict(records[0]) == records[1]
"""


def blocks(page: str | pathlib.Path) -> list[str]:
    """The blocks of Python on a page of the repository."""
    return re.findall(
        r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL
    )


def search() -> str:
    """The block with DPSearch, with four candidates in place of 24."""
    block = next(block for block in blocks("README.md") if "DPSearch" in block)
    shorter = block.replace("n_iter=24", "n_iter=4")
    return (
        GIVEN
        + _SEARCH
        + shorter.replace('(unit="customer", ', '(unit="customer", allow_repeated=True, ')
    )


def loop() -> str:
    """The block with PrivateObjective."""
    block = next(block for block in blocks("README.md") if "PrivateObjective" in block)
    return GIVEN + _LOOP + block
