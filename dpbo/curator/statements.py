"""Composes the statement of a ledger: what it guarantees, under which assumptions, and what was
declared public.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

from dpbo.accounting.calibration import budget_in_words, epsilon_left
from dpbo.accounting.filters import Cost
from dpbo.accounting.gdp import true_positive_rate
from dpbo.errors import InputError
from dpbo.ledger.birth import ROLES
from dpbo.privacy import Adjacency, Budget, RowChange
from dpbo.statement import NOT_BOUNDED, Guarantee, Statement, conditional, format_down, format_up

if TYPE_CHECKING:
    from dpbo.ledger.facts import Facts
    from dpbo.ledger.ledger import Ledger

# where a unit more or less, or another one, may change the number of records
_OF_ANY_NUMBER = (
    "a record's score depends on no other unit's records nor, to the last bit, on how many records"
    " are scored with it, and the score modifies no record"
)
_ASSUMPTIONS = {
    "score-per-record": (
        "a record's score depends on no other unit's records, and the score modifies no record"
    ),
    "score-keeps-nothing": (
        "the score gets one record at a time, with a fresh copy of the model, and keeps nothing of"
        " it for the next one, in no global variable, cache or file"
    ),
    "score-total": (
        "the score never fails on the private records as a whole; if it does, the person who runs"
        " the program learns that, and the budget does not cover it"
    ),
    "timing-not-observed": (
        "only people who may see the records can measure how long evaluations and releases take"
    ),
    "durations-tell-nothing": (
        "how long a score takes does not depend on the records: values were released in the order"
        " in which workers finished, and every reader sees that order"
    ),
    "dpsgd-attested": (
        "training takes records from dpbo's loader alone, each protected record once, and uses"
        " nothing else of them, such as their mean; no layer, hook, optimizer or loop of the"
        " caller's keeps anything of a record for a later sample, such as a running mean in an"
        " attribute, or writes it to a parameter, to an optimizer's momenta or through .data; a"
        " record's gradient depends on no other record, and rounding that does moves the sum of the"
        " others by less than 2^-11 of the clip (class weights, padding of inputs or losses to the"
        " sample's longest, seeds or generators of the loop's own, and in float32 inputs or targets"
        " that are not standardised break that); nothing in a record makes training stop, fail,"
        " skip a step or change a rate"
    ),
    "sampling-attested": (
        "Opacus' own engine trains: its loader takes Poisson samples of these records alone, each"
        " record once, and training uses nothing else of them; each sample takes one step, all its"
        " parts before the next one's; in ghost mode the loss of make_private has the whole loss,"
        " without a penalty of the weights; a record's gradient depends on no other record, and"
        " rounding moves no clipped sum further than the clip; of a record nothing but the noised"
        " parameters stays in a model that leaves, and nothing in it makes training stop, fail,"
        " skip a step or change a rate; what Opacus computes from the number of records is public:"
        " the rate, the batch size and, for adaptive clipping, each sample's size"
    ),
    "noise-of-opacus": (
        "nobody knows a seed or a state of torch's generators, or computes them from released"
        " models, and no state was used twice, as by a trainer that restores it: they drew the"
        " noise, and on the CPU the samples, of training, and are no ciphers. (A seed has 64 bits"
        " at most, of which the samples' stream uses 32.)"
    ),
    "noise-drawn-on-cpu": (
        "nobody who has a released model computes from it the noise of its training, which torch's"
        " generator drew on the CPU: there, one model gives the generator's state in a second"
    ),
    "roles-by-record": (
        "whether a record trains or validates follows from the record itself, such as a keyed hash"
        " of its id: by its place in a table, removing one record would move others across"
    ),
    "runs-hidden": (
        "nobody learns how many runs a private selection made, nor what a losing run gave: what its"
        " training writes to files, networks and devices is not watched; no run reads what an"
        " earlier one left, such as a counter, a list or a cache, and what the best run returns"
        " tells of no clock, counter, memory address or process"
    ),
    "runs-attested": (
        "each run of a private selection, its output, its score and whether it fails, costs what"
        " its events say: of trainings in dpbo's sessions they are computed, of all else that reads"
        " records the caller states them; and runs share nothing that depends on the records"
    ),
    "conditional-allowed": (
        "none yet, but this ledger allows releases that rest on data assumptions: after one, not"
        " all are bounded"
    ),
    "repeated-records": (
        "none, but the caller allowed it: other ledgers may have released answers about these"
        " records, or some records have two roles, and these privacy losses add to this one"
    ),
    "records-keep-their-places": (
        "whenever this ledger is opened, every record stands where it stood: answers are counted by"
        " place"
    ),
    "shards-are-disjoint": "no record was given to two processes",
    "people-are-disjoint": (
        "no unit has records at two of the ranks, which compare no labels: for one at r ranks mu,"
        " or pure epsilon, is up to r times as large"
    ),
    "ranks-follow-the-protocol": (
        "so many ranks run this code and tell nobody what they hold; the others, the same ones from"
        " the first release to the last, may add no noise or put together what they know. A rank"
        " that sends something else can make a value wrong, and where another rank's ledger is"
        " shorter than its own can charge it, but learns no more. Ranks see that some rank failed,"
        " how long each other takes, and which one's program ends, and that must not depend on the"
        " records"
    ),
    "coordinator-relays-keys": (
        "who relays messages between the ranks did not exchange their public keys, whose"
        " fingerprints were not given. If they were exchanged, no masks hide what a rank sends"
    ),
    "masks-hide-shares": (
        "nobody breaks X25519, HKDF-SHA256 or ChaCha20, or reads a rank's memory. Without masks"
        " each rank's own noised sums are seen: with Gaussian noise mu is up to sqrt(ranks -"
        " tolerate) times as large; with Laplace noise, of which one share alone is weak, epsilon"
        " .1 becomes at least 1.79, 4.65 or 10 for ranks - tolerate of 2, 3 or 9. And a rank's"
        " number of units, where that of all is public, and whether it failed, are seen exactly"
    ),
    "rows-stand-alone": (
        "each protected row was computed from its own record, and from public ones: no scaler,"
        " imputer or encoder was fitted to protected rows, as to a whole table before it was split"
    ),
}
_NOTED = "noted by the caller, in these words: dpbo neither makes nor checks this assumption"
_INPUTS = (
    "search inputs, which are no secret: the configurations (points x) that were tried, and the"
    " ranges that they come from"
)
_MODELS = (
    "records that models were trained on, and the models: nothing here bounds what a model reveals"
    " of them. Where they are not public, the person who runs the study has to protect them in"
    " another way"
)
_OTHERS = "records of other roles"
_NOT_PROTECTED = {
    "training": (_OTHERS, _INPUTS),
    "validation": (_MODELS, _INPUTS),
    "candidate": (_MODELS, _INPUTS),
}

# The term of a search's reservation that holds the size of the validation part, or False.
SPLIT = "one table, split by position"
_FALSE_POSITIVES = 0.01  # rate of the membership test in the statement
# where that test's power is read, beside the budget's own
_DELTAS = (1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
# kinds of question that are listed under one reservation, where they declare what its terms do
# not say
_LISTED = 5
# kinds of release without a reservation that are listed
_LISTED_LOOSE = 20


@dataclass(frozen=True)
class BudgetUse:
    """What is used of a ledger's budget: bookkeeping, not a guarantee.

    Attributes:
        budget: the budget in words, and the accounting.
        spent: what the charges so far cost.
        reserved: what the charges and everything reserved cost together.
        spent_share, reserved_share: the same as shares of the cap, in [0, 1]; under `Planned` those
            of the event that is used most.
        epsilon_left: epsilon of the largest `Budget(epsilon, delta)` that is neither charged nor
            reserved, rounded down; None where the budget names no delta, or under `Planned`.
    """

    budget: str
    spent: Guarantee
    reserved: Guarantee
    spent_share: Fraction
    reserved_share: Fraction
    epsilon_left: float | None

    @classmethod
    def of(cls, ledger: Ledger, facts: Facts, delta: float | None) -> Self:
        """From the ledger's facts, with guarantees at this delta."""
        total = facts.total
        paid = facts.spent
        accounting = ledger.accounting
        return cls(
            budget=(
                f"{budget_in_words(ledger.budget)}, by"
                f" {type(accounting).__name__ if accounting.events else accounting.name}"
            ),
            spent=(Guarantee.none() if facts.exact_charges else _guarantee(ledger, paid, delta)),
            reserved=_guarantee(ledger, total, delta),
            spent_share=largest_share(paid, ledger.cap),
            reserved_share=largest_share(total, ledger.cap),
            epsilon_left=epsilon_left(total, ledger.cap, ledger.budget, accounting),
        )

    @property
    def left_share(self) -> float:
        """The share of the cap that is neither charged nor reserved, rounded down."""
        return math.floor((1 - self.reserved_share) * 10_000) / 10_000

    def facts(self, budget: Budget) -> dict[str, str]:
        """The same in words, for a table."""
        left = f"{100 * self.left_share:g} %"
        if self.epsilon_left is not None:
            left += f": epsilon {format_down(self.epsilon_left)} at delta {budget.delta:g}"
        reserved = f"{100 * float(self.reserved_share):.4g} %"
        return {
            "Budget": self.budget,
            "Used by releases": f"{100 * float(self.spent_share):.4g} %: {self.spent}",
            "Reserved, including those": f"{reserved}: {self.reserved}",
            "Left": left,
        }


def compose_statement(
    ledger: Ledger,
    *,
    delta: float | None = None,
    units: int | None = None,
    verified: Facts | None = None,
) -> Statement:
    """The statement of everything this ledger may ever release.

    Args:
        ledger: all of it is read first, unless its facts are given.
        delta: where to read epsilon, for a budget given as mu.
        units: public number of units; omitted, the newest one that a charge names.
        verified: the facts, as `Ledger.verified` has just returned it.

    Raises:
        InputError: a delta that is not the budget's.
        LedgerCorrupt: the ledger was changed.
    """
    at = _delta(ledger, delta)
    facts = verified if verified is not None else ledger.facts()
    birth = ledger.birth
    head = facts.head
    conditions = _conditions(facts)
    noted = []
    void = []
    for kind, text in facts.notes:
        if kind == "void":
            void.append(text or "no reason was given")
        elif not (conditions and text == "conditional-allowed"):
            noted.append(text)
    of_scores = "score-keeps-nothing" if birth.one_at_a_time else "score-per-record"
    assumed = {
        name: _ASSUMPTIONS.get(name.partition(":")[0], _NOTED)
        for name in (of_scores, "rows-stand-alone", "score-total", "timing-not-observed", *noted)
    }
    split = _split(facts)
    if "score-per-record" in assumed and (
        birth.grouped or birth.adjacency is Adjacency.ADD_OR_REMOVE_ONE
    ):
        assumed["score-per-record"] = _OF_ANY_NUMBER
    failing = float(min(facts.failing, Decimal(1)))
    protected = _guarantee(ledger, ledger.cap, at)
    guarantee = Guarantee.none() if facts.exact or failing >= 1.0 else protected
    use = BudgetUse.of(ledger, facts, at)
    roles = [birth.role]
    unknown = dict[str, None]()
    counted = ""
    for reserved in facts.reservations.values():
        role = reserved.terms.get("role", birth.role)
        # a reservation that states their number is of the curator's own records
        if role in ROLES and role != birth.role and "records" not in reserved.terms:
            counted = birth.role
        if role not in ROLES:
            unknown[repr(role)] = None
        elif role not in roles:
            roles.append(role)
    if units is None:  # a charge of DP-SGD steps need not name them
        units = facts.units
    storage = ledger.storage
    scope = ""
    if not storage.persistent:
        scope = "this process only"
    elif storage.file is not None:
        scope = f"this machine only, ledger {storage.file}"
    if facts.exact:
        void.append("answers without any guarantee were or will be published")
    return Statement(
        void="; ".join(void),
        scope=scope,
        dataset=birth.dataset,
        unit=birth.unit,
        grouped=birth.grouped,
        units=units,
        adjacency=birth.adjacency.value,
        role=" and ".join(roles),
        not_protected=(
            *split,
            *_not_protected(roles, facts),
            *(
                f"records of the role {name}, which a reservation names and dpbo does not know"
                for name in unknown
            ),
        ),
        guarantee=guarantee,
        lines=_lines(guarantee, protected, assumed, conditions, failing),
        spent=use.spent,
        reserved=use.reserved,
        assumptions={**assumed, **conditions},
        public_inputs=_public_inputs(facts),
        entries=head.seq + 1,
        head=head.hash,
        meaning=_meaning(ledger, guarantee, units, counted, conditions, failing),
        radius=_radius(birth.row_change),
        counted=counted,
        conditions=tuple(conditions),
        failure_probability=failing,
        remaining=use.left_share,
    )


def largest_share(cost: Cost, cap: Cost) -> Fraction:
    """The largest share that the cost takes of a part of the cap."""
    return max((used / whole for used, whole in cost.beside(cap) if whole), default=Fraction(1))


def _split(facts: Facts) -> list[str]:
    """The public part of each table of which only the validation part is protected."""
    splits = dict.fromkeys(
        (reserved.terms.get(SPLIT), reserved.terms.get("seed"))
        for reserved in facts.reservations.values()
    )
    return [
        "the training part of the one table given: it was split once by position (test_size"
        f" {test_size}, seed {seed}), and only its validation part is protected"
        for test_size, seed in splits
        if test_size
    ]


def _not_protected(roles: Sequence[str], facts: Facts) -> tuple[str, ...]:
    """What none of the roles protects."""
    found = dict.fromkeys(itertools.chain(*(_NOT_PROTECTED[role] for role in roles)))
    if len(roles) > 1:
        found.pop(_OTHERS, None)
    if "training" not in roles:
        return tuple(found)
    found.pop(_MODELS, None)
    own = facts.birth.role
    # Reservations for training records, and releases of these without one.
    trained = [
        name
        for name, reserved in facts.reservations.items()
        if reserved.terms.get("role", own) == "training"
    ]
    if own == "training":
        trained += facts.unreserved
    charged = ", ".join(map(repr, dict.fromkeys(trained))) or "nothing so far"
    return (
        *found,
        (
            "models, unless their training is charged in this ledger, which charges training"
            f" records for {charged}"
        ),
    )


def _radius(change: RowChange | None) -> str:
    """How far a row may move, in words; "" where it may move at will."""
    if change is None:
        return ""
    table = "" if change.table is None else f" of {change.table!r}"
    share = format_up(100 * change.norm / change.diameter, 3)
    return (
        f"a row{table} moves by at most {change.norm:g}, which is {share} % of the diameter"
        f" {change.diameter:g}"
    )


def _lines(
    guarantee: Guarantee,
    protected: Guarantee,
    assumed: dict[str, str],
    conditions: dict[str, str],
    failing: float,
) -> tuple[str, str, str]:
    """The guarantee of all releases, of the unconditional ones alone, and of all under the data
    assumptions.

    `protected` is the cap's guarantee. The unconditional releases keep it whatever else was
    released, where none of them was chosen by what the others said: a release that is not bounded
    may tell which question to ask next.
    """
    code = f"with {', '.join(assumed)}"
    if not conditions and guarantee == protected:
        return (f"{guarantee}, {code}",) * 3
    alone = f"{protected}, {code}, where none was chosen by what the other releases said"
    return (
        NOT_BOUNDED,
        alone,
        (
            f"{guarantee}, {code}, {conditional(conditions, failing)}"
            if conditions
            else str(guarantee)
        ),
    )


def _conditions(facts: Facts) -> dict[str, str]:
    """The data assumptions of everything reserved or charged, with all texts that were given for
    one name.
    """
    found = defaultdict[str, dict[str, None]](dict)
    for conditions in facts.conditions:
        for name, texts in conditions.items():
            found[name].update(texts)
    return {name: "; also: ".join(texts) for name, texts in found.items()}


def _delta(ledger: Ledger, delta: float | None) -> float | None:
    own = ledger.budget.delta
    if delta is None:
        return own
    if not 0.0 < delta < 1.0:
        raise InputError("delta", delta, "in (0, 1)")
    if own not in (None, delta) and ledger.budget.epsilon is not None:
        raise InputError(
            "delta",
            delta,
            f"the budget's own, {own:g}",
            "Only a budget given as mu may be read at any delta.",
        )
    return delta


def _guarantee(ledger: Ledger, cost: Cost, delta: float | None) -> Guarantee:
    """The guarantee of everything that cost this much. Within a cap that was rounded down, the
    budget's own epsilon is a bound as well.
    """
    bound = ledger.accounting.guarantee(cost, delta)
    stated = ledger.budget.epsilon
    if bound.epsilon is None or stated is None or not ledger.accounting.cap_is_budget:
        return bound
    return dataclasses.replace(bound, epsilon=min(bound.epsilon, stated))


def _public_inputs(facts: Facts) -> dict[str, dict[str, Any]]:
    """By reservation: its terms; what queries under it declared otherwise than its terms say (each
    kind of question once, the first few of them); and what releases without one declared, each kind
    once with the number of its first release and how many there are."""
    inputs = {name: reserved.public_inputs() for name, reserved in facts.reservations.items()}
    for reservation, found in facts.declared.items():
        listed = [*found.values()][:_LISTED]
        if more := len(found) - len(listed):
            listed.append({"of other kinds": more, "listed": "in the ledger alone"})
        for number, other in enumerate(listed, 1):
            name = f"{reservation}, question {number}"
            inputs[_free_name(inputs, name, "not a reservation")] = other
    kinds = [*facts.loose.values()]
    for kind in kinds[:_LISTED_LOOSE]:
        counted = {"releases": kind.times} if kind.times > 1 else {}
        inputs[_free_name(inputs, f"release {kind.first}", "of no reservation")] = (
            counted | kind.inputs
        )
    if left := sum(kind.times for kind in kinds[_LISTED_LOOSE:]):
        name = _free_name(inputs, "other releases", "of no reservation")
        inputs[name] = {"releases": left, "listed": "in the ledger alone"}
    return inputs


def _free_name(taken: Mapping[str, Any], name: str, mark: str) -> str:
    """`name`, with `mark` until it is not taken."""
    while name in taken:
        name += f" ({mark})"
    return name


def _true_positive_rate(ledger: Ledger, guarantee: Guarantee) -> float:
    """Highest true-positive rate of a membership test on everything that the ledger may release.

    Without a mu it is read at several deltas, because the cap is (epsilon, delta)-DP at each of
    them: what epsilon and the budget's delta say alone is close to 100 % from epsilon 5 on. Every
    bound holds, and so does the least.
    """
    rates = [true_positive_rate(guarantee, _FALSE_POSITIVES)]
    if guarantee.mu is None:
        for delta in _DELTAS:
            bound = ledger.accounting.guarantee(ledger.cap, delta)
            rates.append(true_positive_rate(bound, _FALSE_POSITIVES))
    return min(rates)


def _meaning(
    ledger: Ledger,
    guarantee: Guarantee,
    units: int | None,
    counted: str,
    conditions: dict[str, str],
    failing: float,
) -> tuple[str, ...]:
    """What a membership test can find out, what mu-GDP means, and warnings of a delta that is too
    large.

    With records of other roles there are more units than `units`, so a delta above 1 / `units`
    still is too large.
    """
    birth = ledger.birth
    rate = _true_positive_rate(ledger, guarantee)
    # 99.4 % is not 100 %
    change = birth.row_change
    shown = format_up(100 * rate, 4 if 0.99 <= rate < 1.0 else 2)
    if change is None:
        test = f"membership test of one {birth.unit}"
    else:
        test = f"test of where a {birth.unit}'s row lies within its reach"
    power = f"{test} with a 1 % false-positive rate has a true-positive rate of at most {shown} %."
    sentences = [
        f"only under {conditional(conditions, failing)}: a {power}" if conditions else f"A {power}"
    ]
    if rate > 0.9 and guarantee.epsilon != math.inf:
        sentences.append("That is next to no limit on such a test: choose epsilon 1 or less.")
    if change is not None:
        times = change.diameter / change.norm
        sentences.append(
            "For a row that moves k times as far, pure epsilon or mu is up to k times as large, up"
            f" to k = {times:g}."
        )
    if guarantee.mu not in (None, math.inf):
        mu = format_up(guarantee.mu)
        sentences.append(
            f"{mu}-GDP means: suppose somebody sees everything released and wants to find out which"
            " of the two data sets was used. That is at least as hard as to find out from one"
            " number whether it was drawn from a normal distribution with mean 0 or with mean"
            f" {mu}, both of standard deviation 1."
        )
    if guarantee.epsilon != math.inf:
        compared = {
            Adjacency.REPLACE_ONE: f"whether one {birth.unit} had these records or others",
            Adjacency.ADD_OR_REMOVE_ONE: (
                f"whether the records of one {birth.unit} were among these"
            ),
            Adjacency.BOUNDED_ROW_CHANGE: "at which of two places the row lies",
        }[birth.adjacency]
        sentences.append(f"Such a test asks {compared}; guessing has a true-positive rate of 1 %.")
    if units and guarantee.delta and guarantee.delta > 1 / units:
        sentences.append(
            f"WARNING: delta exceeds 1/{units}: (epsilon, delta) alone would allow publishing a"
            " whole record."
        )
    elif units and guarantee.delta and counted:
        sentences.append(
            "Delta should be no more than one over the number of all protected records. It is for"
            f" the {units} {counted} records alone; the ledger does not know how many others there"
            " are, so the person who runs the study has to check."
        )
    return tuple(sentences)
