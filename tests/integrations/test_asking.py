"""A search ends where nothing is left to ask, and goes on without rows that have no answer."""

import pytest
import torch

from dpbo.algorithms.outsourced import Modeler
from dpbo.integrations import RemoteCurator, RemoteRefusal, application, search
from dpbo.models import squared_exponential
from tests.integrations.test_serving import TOKEN, outcomes, served


@pytest.fixture
def remote():
    """Of outcomes, the remote curator of a real server."""
    opened = []

    def of(asked):
        server = served(application(asked, token=TOKEN, every=0.001))
        web = server.__enter__()
        curator = RemoteCurator(str(web.base_url), TOKEN)
        opened.append((server, curator))
        return curator

    yield of
    for server, curator in opened:
        curator.__exit__()
        server.__exit__(None, None, None)


def modeler(**changed):
    Z = torch.arange(6, dtype=torch.float64).unsqueeze(1)
    return Modeler(Z, kernel=squared_exponential(1.0), noise=0.1, **changed)


def test_more_steps_than_rows(remote, tmp_path):
    answers = search(modeler(), remote(outcomes()), steps=50, journal=tmp_path / "j")
    assert sorted(answer.row for answer in answers) == list(range(6))


def test_rows_spent_elsewhere_are_left_out(remote, tmp_path):
    asked = outcomes()
    for row in (0, 3):
        asked.value(row, request=f"somebody's {row}")
    answers = search(modeler(), remote(asked), steps=50, journal=tmp_path / "j")
    assert sorted(answer.row for answer in answers) == [1, 2, 4, 5]
    again = search(modeler(), remote(asked), steps=50, journal=tmp_path / "j")
    assert again == answers


def test_repeats_end_where_they_are_used_up(remote, tmp_path):
    answers = search(modeler(repeats=True), remote(outcomes(repeats=2)), steps=50, journal=tmp_path / "j")
    assert sorted(answer.row for answer in answers) == sorted([*range(6), *range(6)])


def test_the_curators_limit_ends_the_search(remote, tmp_path):
    asked = outcomes(limit=2)
    assert len(search(modeler(), remote(asked), steps=50, journal=tmp_path / "j")) == 2
    asked.value(asked.history()[0].row, request=next(iter(asked._known)))
    assert search(modeler(), remote(outcomes(limit=2)), steps=1, journal=tmp_path / "other")[0].row == 0


def test_other_refusals_are_raised(remote, tmp_path):
    other = torch.arange(9, dtype=torch.float64).unsqueeze(1)
    larger = Modeler(other, kernel=squared_exponential(1.0), noise=0.1, history=[(row, 0.0) for row in range(6)])
    with pytest.raises(RemoteRefusal) as refused:
        search(larger, remote(outcomes()), steps=50, journal=tmp_path / "j")
    assert (refused.value.status, refused.value.gone) == (404, False)


@pytest.mark.attack("A13")
def test_minimising_is_maximising_the_negative(remote, tmp_path):
    told = modeler()
    (answer,) = search(told, remote(outcomes()), steps=1, journal=tmp_path / "j", minimise=True)
    assert told.history == [(0, -answer.value)]
