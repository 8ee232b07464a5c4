"""What users of other libraries write out of habit is refused before anything is charged, in words
that name only what they wrote.
"""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from opacus.data_loader import DPDataLoader
from scipy.stats import loguniform
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dpbo import Budget, DPSearch, Privacy, PrivacyUnit, PrivateObjective
from dpbo.accounting import RDPFilter
from dpbo.dpsgd import DPSGDConfig, PrivateEngine, Session
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    OpacityError,
    UsageError,
)
from tests.attacks.marks import attack
from tests.attacks.setups import fit
from tests.setups import of, owner, point

X = np.random.default_rng(0).normal(size=(60, 2))
Y = (X[:, 0] > 0).astype(int)
FEATURES, LABELS = torch.from_numpy(X).float(), torch.from_numpy(Y)
RECORDS = TensorDataset(FEATURES, LABELS)
POINT = point(0.0)


def made(records, **terms):
    return owner(records, allow_repeated=True, **terms)


def objective(records, score):
    return PrivateObjective(made(records), score, score_range=(0, 1), evaluations=2)


@attack("A5")
@pytest.mark.parametrize(
    "records",
    [DataLoader(RECORDS, batch_size=8), {"x": DataLoader(RECORDS)}, {1.0, 2.0, 3.0}],
    ids=["a loader", "a loader in a dict", "a set"],
)
def test_what_gives_no_record_by_its_place_is_not_counted_as_records(records):
    # A loader of 60 records in batches of 8 was taken for 8 records.
    with pytest.raises(InputError, match=r"by their places.*loader\.dataset") as refused:
        made(records)
    assert refused.value.parameter == "records"


def test_a_unit_without_labels_whose_column_is_in_the_table_is_told_of():
    visits = pd.DataFrame({"age": X[:, 0], "customer_id": np.arange(60) // 3})
    labels = visits["customer_id"].to_numpy()
    for unit, column in (("customer", "customer_id"), ("Customer", "ID_customer")):
        table = visits.rename(columns={"customer_id": column})
        with pytest.warns(UserWarning, match=f"has a column '{column}'"):
            made(table, unit=unit, schema=table[:0])
    for quiet in (PrivacyUnit("visit"), PrivacyUnit("customer", groups=labels)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made(visits, unit=quiet, schema=visits[:0])
    with pytest.raises(TypeError) as raised:
        made(visits, unit="customer", groups=labels)
    assert any("groups: unit=PrivacyUnit" in note for note in raised.value.__notes__)


def search(**settings):
    terms = of(
        budget=Budget(3.0, 1e-6),
        n_iter=4,
        verbose=0,
        privacy=Privacy(allow_repeated=True),
        param_distributions={"C": loguniform(0.01, 10)},
    )
    return DPSearch(LogisticRegression(), **(terms | settings))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_released_before_a_callback_failed_stays_with_the_search(error):
    """A ledger in memory keeps it nowhere else, and it is paid for."""

    def failing(release):
        if release.number == 2:
            raise error

    held = search(callbacks=failing, strategy="bo", budget=Budget(30.0, 1e-6))
    with pytest.raises(error):
        held.fit(X[:30], Y[:30], X[30:], Y[30:])
    assert [release.number for release in held.releases_] == [1, 2]
    assert all(release.score is not None for release in held.releases_)


@pytest.mark.parametrize("parts", [[X, Y], [FEATURES, LABELS], [pd.DataFrame(X), pd.Series(Y)]])
def test_a_list_of_tables_that_belong_together_is_not_taken_for_two_records(parts):
    with pytest.raises(InputError, match=r"a tuple .* Give \(X, y\)") as refused:
        made(parts)
    assert refused.value.parameter == "records"
    # Samples that differ in size, or that are as long as each other.
    for samples in ([torch.zeros(3, 4, 4), torch.zeros(3, 5, 5)], [Y, Y], [X[:3], X]):
        assert made(samples).units == len(samples)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_module_that_was_refused_can_be_given_again():
    """Opacus' hooks stayed on it, and the next call refused hooks that its caller never wrote."""
    net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))

    def prepared(noise):
        curator = made((FEATURES, LABELS), accounting=RDPFilter(8.0), role="training")
        config = DPSGDConfig(noise_multiplier=noise, epochs=1, batches=2, batch_size=30)
        return PrivateEngine(curator, config).make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=DataLoader(RECORDS),
            max_grad_norm=1.0,
        )

    with pytest.raises(BudgetExceeded):
        prepared(0.5)
    fit(*prepared(50.0))


def test_an_engine_that_is_asked_to_choose_its_noise_names_no_argument_of_opacus():
    curator = made(RECORDS, role="training", accounting=RDPFilter(8.0))
    config = DPSGDConfig(noise_multiplier=5.0, epochs=1, batches=3, batch_size=20)
    network = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="call make_private") as refused:
        PrivateEngine(curator, config).make_private_with_epsilon(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
            data_loader=DataLoader(RECORDS),
            target_epsilon=3.0,
            target_delta=1e-5,
            epochs=1,
            max_grad_norm=1.0,
        )
    assert "noise_generator" not in str(refused.value)
    assert not curator.ledger.used()


class Stream(IterableDataset[tuple[torch.Tensor, ...]]):
    def __iter__(self):
        return iter(RECORDS)

    def __len__(self):
        return len(RECORDS)


def test_a_sampler_that_would_be_dropped_and_a_stream_are_refused_with_what_to_do():
    """With weights that make positives one half of each sample they were .11 of it."""
    curator = made(RECORDS, role="training", accounting=RDPFilter(8.0))
    config = DPSGDConfig(noise_multiplier=5.0, epochs=1, batches=3, batch_size=20)
    network = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    weighted = WeightedRandomSampler([1.0] * 60, 60)
    for loader, remedy in (
        (DataLoader(RECORDS, sampler=weighted), "public one of its class"),
        (DataLoader(RECORDS, sampler=SubsetRandomSampler(range(9))), r"Subset\(dataset, places\)"),
        (DataLoader(RECORDS, batch_sampler=BatchSampler(weighted, 9, False)), "Weighted"),
        (DataLoader(RECORDS, batch_sampler=[[0, 1], [2]]), "with a list"),
        (
            DataLoader(RECORDS, sampler=RandomSampler(RECORDS, num_samples=10)),
            "with a RandomSampler",
        ),
        (DataLoader(Stream()), "a stream has no places"),
    ):
        with pytest.raises(InputError, match=remedy) as refused:
            PrivateEngine(curator, config).make_private(
                module=network, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0
            )
        assert refused.value.parameter == "data_loader"
    with pytest.raises(InputError, match="a stream has no places"):
        Session(Stream(), config).make_private(network, optimizer, max_grad_norm=1.0)
    assert not curator.ledger.used()
    PrivateEngine(curator, config).make_private(
        module=network,
        optimizer=optimizer,
        data_loader=DPDataLoader(RECORDS, sample_rate=0.5),
        max_grad_norm=1.0,
    )


def test_a_handle_and_a_curator_in_other_libraries_hands_say_what_gives_the_value():
    asked = objective((X, Y), lambda _, records: records[1])
    handle = asked.evaluate(POINT[0])
    for use in (float, np.asarray, lambda opaque: opaque.item()):
        for opaque in (handle, asked.curator):
            with pytest.raises(OpacityError, match=r"objective\.release\(handle\)"):
                use(opaque)
    for opaque in (handle, asked.curator):
        with pytest.raises(OpacityError, match=r"objective\.submit\(x, executor\)"):
            pickle.dumps(opaque)
    # What a library's own error shows, such as that of Ax.
    assert "release()" in repr(handle)
    assert asked.remaining == 2
