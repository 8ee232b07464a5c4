"""No noise: exact answers on the same path, and a statement that says so."""

import json

import pytest
import torch

from dpbo import Budget
from dpbo.errors import InputError
from dpbo.mechanisms import GaussianMechanism, NoNoise
from tests.attacks.marks import attack
from tests.setups import DOUBLE, MEAN, owner

RECORDS = torch.linspace(0, 1, 101, dtype=DOUBLE)


@attack("A12")
def test_it_is_asked_for_by_name_and_its_exact_answer_guarantees_nothing(on_disk):
    for wrong in (False, None, 1, "yes"):
        with pytest.raises(InputError, match="allow_not_private"):
            NoNoise(allow_not_private=wrong)  # type: ignore[arg-type]
    curator = owner(RECORDS, budget=Budget(1.0, 1e-6), **on_disk)
    noised = curator.release(MEAN, GaussianMechanism(20.0))
    paid = curator.ledger.verify().total
    release = curator.release(MEAN, NoNoise(allow_not_private=True))
    assert curator.ledger.verify().total == paid, "the budget pays nothing"
    assert release.value.item() == pytest.approx(0.5, abs=1e-9)
    assert (release.variance.item(), noised.variance.item() > 0) == (0.0, True)
    statement = owner(RECORDS, budget=Budget(1.0, 1e-6), **on_disk).statement()
    assert "without any guarantee" in statement.void
    assert str(statement.spent) == "not bounded"
    assert str(statement).startswith("VOID")
    assert str(statement.guarantee) == "not bounded"
    assert [line.split(",")[0] for line in statement.lines] == [
        "not bounded",
        "(1.000",
        "not bounded",
    ]
    assert "100 %" in " ".join(statement.meaning)
    fields = json.loads(statement.to_json())
    assert fields["guarantee"]["epsilon"] == "infinite"
