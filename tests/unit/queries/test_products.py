"""Products whose terms one record could move for others are refused."""

import pytest
import torch

from dpbo import Budget
from dpbo.errors import UsageError
from dpbo.queries.products import require_true_products
from tests.attacks.marks import attack
from tests.setups import owner


@attack("A4")
def test_emulated_products_are_refused_on_a_gpu_alone(monkeypatch):
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    require_true_products(torch.device("cpu"))
    with pytest.raises(UsageError, match="CUBLAS_EMULATE_DOUBLE_PRECISION is set"):
        require_true_products(torch.device("cuda", 0))
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "0")
    require_true_products(torch.device("cuda", 0))


@attack("A4")
def test_they_are_refused_before_a_record_is_read(monkeypatch):
    asked = list[torch.device]()
    monkeypatch.setattr("dpbo.records.view.require_true_products", asked.append)
    for device in (None, "cpu"):
        owner(torch.zeros(3, 1), budget=Budget.gdp(1.0), device=device)
    assert asked == [torch.device("cpu")] * 3
