"""A6, A7, A21 of the server: asked over HTTP, with every released value frozen, it says the same about neighbours, also in its refusals."""

import pytest

from dpbo.algorithms.outsourced import Outcomes
from dpbo.integrations import application
from dpbo.testing import SeededEntropy, replay
from tests.algorithms.test_outsourced_curating import rows_of, terms
from tests.attacks.public import _HASH
from tests.integrations.test_serving import TOKEN, served

pytestmark = [pytest.mark.attack(name) for name in ("A6", "A7", "A21")]
QUESTIONS = [(5, "a"), (1, "b"), (5, "a"), (5, "again"), (99, "beyond"), (2, "c"), (-1, "d"), (5, "")]


def test_what_the_server_says_follows_from_releases_alone():
    """Status, headers and body of every reply: answers, a repeated name, an exhausted row, a row that is none, the statement."""
    neighbour = rows_of(40)
    neighbour[5] += 0.7

    def run(curator, _records):
        asked = Outcomes(curator, lambda record: record["y"], value_range=(0.0, 1.0), budget_share=0.5)
        heard = []
        with served(application(asked, token=TOKEN, every=0.001)) as web:
            web.headers["Authorization"] = f"Bearer {TOKEN}"
            for row, name in QUESTIONS:
                heard.append(web.post("/value", json={"row": row, "request": name}))
            heard.append(web.get("/statement"))
            heard.append(web.get("/nowhere"))
        return [(reply.status_code, sorted(set(reply.headers) - {"date"}), _HASH.sub("#", reply.text)) for reply in heard]

    records = [{"rows": X, "y": X[:, 0].sigmoid()} for X in (rows_of(40), neighbour)]
    assert len(replay(run, records[0], records[1], **terms(), entropy=SeededEntropy(1))) == 3
