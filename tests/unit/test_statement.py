"""The statement: every field, rounded up, the cap and not what was spent."""

import json
import math
import re

import pytest
import scipy.stats
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, plan
from dpbo.accounting import Planned, PureFilter, RDPFilter, ZCDPFilter
from dpbo.accounting.gdp import true_positive_rate
from dpbo.curator.statements import SPLIT, compose_statement
from dpbo.dpsgd import LedgerAccountant
from dpbo.errors import InputError
from dpbo.events import GaussianEvent, PoissonGaussianEvent
from dpbo.ledger.entries import table
from dpbo.ledger.ledger import Ledger
from dpbo.mechanisms import ExponentialMechanism, GaussianMechanism
from dpbo.privacy import DeltaWarning
from dpbo.queries import ClippedMean, QuantileUtilities
from dpbo.statement import form, format_up
from tests.attacks.marks import attack
from tests.setups import DOUBLE, following, itself, of, owner


def make(**changes):
    settings = {"unit": "patient", "budget": Budget.gdp(1.0, delta=1e-5), **changes}
    return owner(torch.rand(200, dtype=DOUBLE), **settings)


def test_twenty_five_gaussian_releases_of_total_mu_one_print_4_378():
    curator = make()
    objective = PrivateObjective(curator, itself, score_range=(0.0, 1.0), evaluations=25)
    assert "(4.378, 1e-05)-DP" in str(curator.statement())
    objective(torch.rand(25, 2, dtype=DOUBLE))
    statement = curator.statement()
    # guarantee, reserved, charged
    assert str(statement).count("(4.378, 1e-05)-DP") == 3
    assert all("(4.378, 1e-05)-DP" in line for line in statement.lines)


@attack("A15")
def test_the_guarantee_is_the_cap_whatever_was_spent():
    curator = make()
    before = curator.statement().guarantee
    curator.release(ClippedMean(itself, score_range=(0.0, 1.0)), GaussianMechanism(50.0))
    after = curator.statement()
    assert after.guarantee == before
    assert after.spent.mu == pytest.approx(1 / 50)
    assert "not a guarantee" in str(after)


def test_every_field_is_there_in_text_json_and_html(tmp_path):
    curator = make(dataset="readmissions", ledger=str(tmp_path / "l.db"), role="validation")
    PrivateObjective(curator, itself, score_range=(0.0, 1.0), evaluations=4, name="svm", budget=0.5)
    statement = curator.statement()
    text = str(statement)
    for part in (
        "patient",
        "readmissions",
        "under replace-one, which compares",
        "own patient; 200, a public",
        "Not protected",
        "score-per-record",
        "timing-not-observed",
        "svm: evaluations 4",
        "score range [0.0, 1.0]",
        "NaN counts as lower",
        "1 % false-positive rate",
        "2 entries",
        statement.head,
        "left: 50 %",
        "1.000-GDP means: suppose somebody sees everything released",
    ):
        assert part in text, part
    assert "this process only" not in text.lower()
    assert str(make().statement()).startswith("This process only")
    fields = json.loads(statement.to_json())
    assert (fields["guarantee"]["mu"], fields["grouped"]) == (1.0, False)
    assert fields["public_inputs"]["svm"]["budget"] == "1/2"
    assert fields["lines"] == [fields["lines"][0]] * 3
    assert all(name in fields["lines"][0] for name in fields["assumptions"])
    assert statement.head in statement._repr_html_()


@attack("A8", "A19")
def test_where_the_number_of_records_is_private_no_score_may_depend_on_it():
    of_pairs = PrivacyUnit("patient", groups=torch.arange(200) // 2)
    for terms, private in (
        ({}, False),
        ({"adjacency": Adjacency.ADD_OR_REMOVE_ONE}, True),
        ({"unit": of_pairs}, True),
    ):
        text = make(**terms).statement().assumptions["score-per-record"]
        assert ("on how many records are scored with it" in text) == private, terms
        assert "no other unit's records" in text


def test_delta_can_be_chosen_only_for_a_budget_of_mu():
    of_mu = make(budget=Budget.gdp(1.0))
    assert of_mu.statement().guarantee.epsilon is None
    assert format_up(of_mu.statement(delta=1e-5).guarantee.epsilon) == "4.378"
    with pytest.raises(InputError, match="delta"):
        make(budget=Budget(3.0, 1e-5)).statement(delta=1e-3)


def test_a_delta_above_one_over_units_is_warned_of_where_their_number_is_public():
    with pytest.warns(
        DeltaWarning, match=r"delta=0.01 is above 1/200, .* all records of one patient"
    ):
        curator = make(budget=Budget(3.0, 0.01))
    assert "WARNING" in str(curator.statement())
    # a private number, and a guarantee without a delta
    for silent in ({"adjacency": "add-or-remove-one"}, {"accounting": PureFilter()}):
        make(budget=Budget(3.0, 0.01), **silent)
    Curator.rehearsal([0.0], unit="patient", adjacency="replace-one", budget=Budget(3.0, 1e-6))
    with pytest.warns(DeltaWarning, match="such as 1e-06"):
        plan(100, Budget(3.0, 0.1))
    assert "WARNING" not in str(make(budget=Budget(3.0, 1e-5)).statement())


def test_a_void_statement_says_why_first_also_where_another_program_gave_no_reason():
    void = make().statement().voided("true values were shown")
    assert str(void).startswith("VOID: true values were shown. Nothing below is a guarantee.")
    assert "VOID" in void._repr_html_()
    ledger = make().ledger
    head = ledger.head()
    with ledger.storage.writing() as connection:
        connection.execute(table.insert().values(following(head, "void", "", {}).columns()))
    assert str(compose_statement(ledger)).splitlines()[0].startswith("VOID: no reason was given.")


@pytest.mark.parametrize(
    ("adjacency", "count", "changes"),
    [
        (
            "replace-one",
            "100, a public number",
            ("one record is replaced by another", "one dog's records are replaced by others"),
        ),
        (
            "add-or-remove-one",
            "their number is private",
            ("one record is added or", "all records of one dog are added or removed"),
        ),
    ],
)
def test_who_is_protected_with_labels_and_without(adjacency, count, changes):
    unit = PrivacyUnit("dog", groups=[i // 2 for i in range(200)])
    single, labelled = (
        str(make(adjacency=adjacency, unit=unit).statement()) for unit in ("dog", unit)
    )
    assert f"each dog (all records with one label together; {count})" in labelled
    assert "each dog (every record counts as its own dog; " in single
    assert changes[0] in single
    assert changes[1] in labelled


@attack("A15")
def test_numbers_are_rounded_up():
    shown = {
        4.37718: "4.378",
        3.0: "3.000",
        2.9999999999999996: "3.000",
        0.71911: "0.7192",
        0.2: "0.2001",
        0.25: "0.2500",
    }
    assert {value: format_up(value) for value in shown} == shown
    assert (format_up(12345.6), format_up(0.0)) == ("12350", "0.0")


def test_the_form_to_sign_says_all_the_statement_says_and_asks_the_rest():
    statement = make().statement()
    page = form(statement)
    blank = form()
    for title, text in statement.sections():
        cell = text.replace("\n", "<br>")
        assert f"| {title.strip()} | {cell} |" in page
    for title in statement.titles():
        assert f"| {title.strip()} |" in blank
    assert "This process only" in page, "what must be read first stands first"
    assert page.split("## What the signer states")[1] == blank.split("## What the signer states")[1]
    assert page.count("\n") < 60, "one page"


def test_the_form_of_a_void_statement_guarantees_nothing():
    assert "Nothing is guaranteed." in form(make().statement().voided("the noise repeats"))


def test_a_note_that_no_statement_could_tell_is_refused_before_anything_is_written():
    curator = make()
    for kind, text in (
        ("remark", "x"),
        ("birth", "x"),
        ("charge", "x"),
        ("assume", ""),
        ("void", ""),
    ):
        with pytest.raises(InputError, match="kind=" if text else "text="):
            curator.ledger.note(kind, text)
    assert curator.ledger.head().kind == "birth"
    assert not curator.statement().void


@pytest.mark.filterwarnings("ignore::dpbo.privacy.DeltaWarning")
def test_read_from_the_ledger_alone_a_statement_knows_the_number_of_units(tmp_path):
    url = str(tmp_path / "l.db")
    budget = Budget(20.0, 1e-2)
    curator = make(
        dataset="d", ledger=url, role="training", budget=budget, accounting=RDPFilter(6.0)
    )
    curator.release(ClippedMean(itself, score_range=(0.0, 1.0)), GaussianMechanism(8.0))
    accountant = LedgerAccountant(curator, noise_multiplier=8.0, steps=1)
    accountant.reserve(0.05)
    accountant.step(noise_multiplier=8.0, sample_rate=0.05)
    told = curator.statement()
    read = compose_statement(Ledger.open(url))
    assert str(read) == str(told)
    assert "each patient (every record counts as its own patient; 200, a public number)" in str(
        read
    )
    assert "WARNING: delta exceeds 1/200" in str(read)


@pytest.mark.filterwarnings("ignore::dpbo.privacy.DeltaWarning")
@pytest.mark.parametrize(
    ("delta", "told"),
    [(1e-2, "WARNING: delta exceeds 1/200"), (2e-3, "It is for the 200 validation records alone")],
)
def test_of_two_roles_the_statement_says_whose_number_it_knows(delta, told):
    curator = make(budget=Budget(6.0, delta), role="validation")
    PrivateObjective(curator, itself, score_range=(0.0, 1.0), evaluations=4, budget=0.5)
    assert "validation records alone" not in str(curator.statement())
    terms = {"role": "training"}
    curator.reserve("training", GaussianMechanism(30.0).event(), slots=1, terms=terms)
    statement = curator.statement()
    number = "; 200 in the validation records, a public number) of the validation and training"
    assert number in str(statement)
    assert told in " ".join(statement.meaning)
    assert (statement.units, statement.counted) == (200, "validation")
    assert "charges training records for 'training'" in str(statement)


def test_releases_of_many_kinds_are_counted_and_the_first_are_listed():
    curator = make(budget=Budget(3.0, 1e-6))
    for i in range(50):
        query = ClippedMean(itself, score_range=(0.0, 1.0 + i // 2))
        curator.release(query, GaussianMechanism(500.0))
    told = curator.statement().public_inputs
    assert len(told) == 21
    assert told["release 39"]["releases"] == 2
    assert told["other releases"] == {"releases": 10, "listed": "in the ledger alone"}


def test_a_membership_test_is_bounded_by_all_that_the_cap_says_and_not_by_one_delta():
    """At epsilon 6 the one pair (epsilon, delta) says 99.8 %. A Gaussian that fits the cap has a
    rate of its own.
    """
    budget = Budget(6.0, 1e-5)
    sampled = PoissonGaussianEvent(2.0, 100, rate=0.1, relation="replace-one")
    for accounting in (ZCDPFilter(), RDPFilter(5.0), Planned([sampled])):
        curator = make(budget=budget, accounting=accounting)
        shown = re.search(r"of at most ([0-9.]+) %", " ".join(curator.statement().meaning))
        assert shown is not None
        told = float(shown[1]) / 100
        assert told < true_positive_rate(curator.statement().guarantee, 0.01) - 0.2, accounting.name
        multiplier = accounting.multiplier(GaussianEvent, 1, curator.ledger.cap)
        if multiplier is not None:
            assert told >= scipy.stats.norm.cdf(scipy.stats.norm.ppf(0.01) + 1 / multiplier), (
                accounting.name
            )
    pure = make(budget=Budget(6.0, 0.0), accounting=PureFilter()).statement()
    assert "at most 99.76 %. That is next to no limit" in str(pure), (
        "what pure epsilon allows, not rounded to 100 %"
    )
    assert 0.9975 < 1 - math.exp(-6.0) * 0.99 < 0.9976


def test_each_split_of_one_table_is_told_whatever_a_later_search_was_given():
    curator = make()
    for part, size in (("first", 0.25), ("second", False), ("third", 0.5)):
        terms = {"seed": 0, SPLIT: size}
        curator.reserve(part, GaussianMechanism, slots=1, budget=0.1, terms=terms)
    told = " ".join(curator.statement().not_protected)
    assert "test_size 0.25, seed 0" in told
    assert "test_size 0.5, seed 0" in told


def test_every_range_space_and_grid_is_said_to_be_public():
    """A range that was taken from the records is no public one: who answers for that reads here
    which there are.
    """
    curator = make()
    bounds = torch.tensor([[-3.0], [7.0]], dtype=DOUBLE)
    objective = of(score_range=(-0.25, 1.75), evaluations=1, budget=0.1)
    PrivateObjective(curator, itself, bounds=bounds, **objective)
    grid = QuantileUtilities(itself, candidates=[0.125, 0.375], quantile=0.5)
    curator.release(grid, ExponentialMechanism(200.0))
    listed = curator.statement().public_inputs
    assert listed["objective"]["score_range"] == [[-0.25, 1.75]]
    assert listed["objective"]["bounds"] == [[-3.0], [7.0]]
    assert listed["release 1"]["candidates"] == [0.125, 0.375]
    _, declared = str(curator.statement()).split("without looking at the data")
    for number in ("-0.25", "1.75", "-3", "0.375"):
        assert number in declared, number
