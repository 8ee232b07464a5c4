"""Check an exported ledger without dpbo: every hash, slot and cost by its published formula, the
cap; then print epsilon at delta.

python -m dpbo ledger export tuning.db | python -I -S examples/check_export.py [DELTA]

Ends with status 1 at the first record that does not follow. What has no short formula (a `Planned`:
epsilon) is taken as stated and listed. Where releases stand under assumptions about the data, so do
spent and reserved, and nothing is guaranteed without them.
"""

import hashlib
import json
import math
import sys
from collections import Counter
from fractions import Fraction
from statistics import NormalDist
from typing import Any

# pure epsilon times the noise multiplier
PURE = {
    "laplace": 1,
    "discrete-laplace": 1,
    "l2-laplace": 1,
    "exponential": 2,
    "permute-and-flip": 2,
    "thresholded exponential": 2,
}
EXACT = ("none", "declassified")  # answers without noise, which no cap bounds


def cost(event: dict[str, Any], notion: str, a: float) -> float | None:
    """Of one slot under a filter (of Renyi order a), or in a `Planned`; None where no short formula
    is known.
    """
    m, kind = event["noise_multiplier"], event["mechanism"]
    if kind in EXACT or notion == "Planned":
        return float(kind not in EXACT)
    if kind == "gaussian":
        return {"GDPFilter": 1.0, "ZCDPFilter": 0.5, "RDPFilter": a / 2}[notion] / m**2
    if kind not in PURE:
        return None
    e, ranged = PURE[kind] / m, kind == "exponential"
    if notion == "PureFilter":
        return e
    if notion == "GDPFilter":  # Dong, Roth & Su 2022, Proposition 2.12; a bounded range needs half
        # its lower tail, which floats resolve
        return (2 * NormalDist().inv_cdf(1 / (1 + math.exp(e / (1 + ranged))))) ** 2
    if notion == "ZCDPFilter":  # Bun & Steinke 2016; of Laplace its Kullback-Leibler divergence
        return e + math.expm1(-e) if kind == "laplace" else e**2 / (8 if ranged else 2)
    if kind == "laplace":  # Mironov 2017, Table II
        return min(
            e, e + math.log((a + (a - 1) * math.exp((1 - 2 * a) * e)) / (2 * a - 1)) / (a - 1)
        )
    # randomised response
    worst = (a * e + math.log1p(math.exp((1 - 2 * a) * e)) - e - math.log1p(math.exp(-e))) / (a - 1)
    return min(e, worst, a * e**2 / 8 if ranged else math.inf)


def epsilon(total: float, notion: str, a: float, delta: float) -> float:
    """What this much cost guarantees at delta."""
    if notion == "PureFilter" or total == 0:
        return total
    if notion != "GDPFilter":  # Canonne, Kamath & Steinke 2020, Proposition 12
        renyi = (
            {a: total}
            if notion == "RDPFilter"
            else {o: total * o for o in (1 + math.exp(x / 1000) for x in range(-8000, 12000))}
        )
        return max(
            0.0,
            min(
                paid + math.log1p(-1 / o) - math.log(delta * o) / (o - 1)
                for o, paid in renyi.items()
            ),
        )
    low, high, mu = 0.0, total / 2 + math.sqrt(-2 * total * math.log(delta)), math.sqrt(total)
    for _ in range(200):  # Dong, Roth & Su 2022, Corollary 2.13
        a, b = (low + high) / 2 / mu - mu / 2, (low + high) / 2 / mu + mu / 2
        # the normal tail beyond a large b over its density
        mills = 1 / (b + 1 / (b + 2 / (b + 3 / (b + 4 / (b + 5 / (b + 6 / b))))))
        second = (
            math.exp(-a * a / 2) * mills / math.sqrt(math.tau)
            if b > 20
            else math.exp((b * b - a * a) / 2) * math.erfc(b / 2**0.5) / 2
        )
        low, high = (
            ((low + high) / 2, high)
            if math.erfc(a / 2**0.5) / 2 - second > delta
            else (low, (low + high) / 2)
        )
    return high


def check(lines: list[str], delta: float | None = None) -> dict[str, Any]:
    """The summary of a chain that holds. Raises ValueError, or an error of reading, where one does
    not.
    """
    spent, before, head, exact, unknown, reserved = (
        0.0,
        Fraction(0),
        "0" * 64,
        set[str](),
        set[str](),
        dict[str, Any](),
    )
    used, parts, filled, waiting, rates = (
        dict[str, int](),
        dict[str, Counter[int]](),
        Counter[str | None](),
        dict[int, Any](),
        dict[str, float](),
    )
    charged, noted, under = set[str](), {"void": list[str](), "assume": list[str]()}, set[str]()
    for seq, r in enumerate(map(json.loads, lines)):
        body, kind, event, reservation, slots, counted = (
            r["body"],
            r["kind"],
            r["body"].get("event"),
            r["reservation"],
            0,
            0,
        )
        text = json.dumps(
            [
                *(head, seq, kind, r["name"], reservation, r["used"], r["answers"]),
                json.dumps(body, sort_keys=True, separators=(",", ":")),
                r["total"],
            ],
            separators=(",", ":"),
        )
        require(r, (r["seq"], kind == "birth") == (seq, seq == 0), "its place")
        require(r, r["hash"] == (head := hashlib.sha256(text.encode()).hexdigest()), "its hash")
        if kind == "birth":
            birth, (notion, _, terms) = body, body["accounting"].rstrip(")").partition("(")
            a, planned = (
                float(terms) if notion == "RDPFilter" else math.nan,
                json.loads(terms) if notion == "Planned" else [],
            )
            require(
                r,
                notion in ("GDPFilter", "PureFilter", "ZCDPFilter", "RDPFilter") or planned != [],
                "a known accounting",
            )
            totals = [0.0] * (len(planned) or 1)  # under Planned one for each event: its slots
        elif kind == "reserve":
            require(
                r,
                r["name"] not in reserved and type(body["slots"]) is int and body["slots"] > 0,
                "one reservation a name",
            )
            reserved[r["name"]], used[r["name"]], parts[r["name"]], slots = (
                body,
                0,
                Counter(),
                body["slots"],
            )
        elif kind == "charge":
            asked, slots = body.get("slots"), event["count"]
            handles = {s["handle"] for s in asked or [] if type(s["handle"]) is str} - charged
            require(
                r,
                type(slots) is int
                and slots > 0
                and (asked is None or len(asked) == len(handles) == slots),
                "one slot a handle",
            )
            waiting[seq] = None if asked is None else [s["handle"] for s in asked], slots
            charged |= handles
            if reservation is not None:
                parts[reservation].update(
                    s["part"] if reserved[reservation].get("parallel") else 0
                    for s in asked or [{}] * slots
                )
                slots, used[reservation], counted = (
                    max(parts[reservation].values()) - used[reservation],
                    max(parts[reservation].values()),
                    parts[reservation].total(),
                )
                wrong, limit = (
                    [p for p in parts[reservation] if type(p) is not int or p < 0],
                    reserved[reservation].get("limit") or math.inf,
                )
                require(
                    r,
                    not wrong
                    and (
                        not reserved[reservation].get("parallel")
                        or parts[reservation].total() <= limit
                    ),
                    "its parts and their limit",
                )
                require(
                    r,
                    used[reservation] <= reserved[reservation]["slots"]
                    and {**event, "count": 1} == {**reserved[reservation]["event"], "count": 1},
                    "its reservation",
                )
            require(r, r["used"] == counted, "what is used")
        elif kind == "value":
            (expected, count), given = (
                waiting.pop(r["answers"]),
                [v.get("handle") for v in body["values"]],
            )
            filled[reservation] += count
            require(
                r,
                len(given) == count
                and expected in (None, given)
                and r["used"] == (0 if reservation is None else filled[reservation]),
                "its charge",
            )
        else:
            noted[kind].append(r["name"])
        under.update(
            *(
                (s.get("assumptions") or ())
                for s in ([body["terms"]] if kind == "reserve" else body.get("slots") or [])
            )
        )
        exact |= {kind} if event and event["mechanism"] in EXACT else set()
        stated, found = (
            [Fraction(part) for part in r["total"].split(" ")],
            cost(event, notion, a) if slots else 0.0,
        )
        unknown |= set() if found is not None else {event["mechanism"]}
        rate = (
            found
            if found is not None
            else rates[reservation]
            if reservation in rates
            else float(sum(stated) - before) / slots
        )
        rates |= {r["name"]: rate} if kind == "reserve" else {}
        paid, place = (
            slots * rate,
            (
                [{**e, "count": 1} for e in planned].index({**event, "count": 1})
                if planned and slots * rate
                else 0
            ),
        )
        require(
            r,
            (not slots or event["noise_multiplier"] > 0 or rate == 0)
            and paid >= 0
            and sum(stated) >= before,
            "a cost that is one",
        )
        totals[place], spent = (
            totals[place] + (paid if reservation is None else 0.0),
            spent if kind == "reserve" else spent + paid,
        )
        same, before = (
            [math.isclose(x, y, rel_tol=1e-9) for x, y in zip(stated, totals, strict=True)],
            sum(stated, Fraction(0)),
        )
        require(r, all(same), "its running total")
    budget, cap = birth["budget"], [float(Fraction(part)) for part in birth["cap"].split(" ")]
    if planned:  # what all slots guarantee together has no short formula
        bought, unknown = cap == [e["count"] for e in planned], {*unknown, "the budget's epsilon"}
    elif budget["mu"]:
        bought = cap[0] <= budget["mu"] ** 2 * (1 + 1e-9)
    else:
        bought = epsilon(cap[0], notion, a, budget["delta"]) <= budget["epsilon"] * (1 + 1e-6)
    require(
        r,
        bought and all(x <= y * (1 + 1e-9) for x, y in zip(totals, cap, strict=True)),
        "a cap that the budget buys",
    )
    at = delta if delta is not None else budget["delta"]
    if notion not in ("PureFilter", "Planned") and not (at is not None and 0 < at < 1):
        raise ValueError("epsilon has no meaning without a DELTA in (0, 1)")
    costs = {"spent": spent, "reserved": totals[0], "guarantee": cap[0]}
    told = {name: None if planned else epsilon(paid, notion, a, at) for name, paid in costs.items()}
    if planned:
        told["guarantee"] = budget["epsilon"] if at == budget["delta"] else None
    told |= dict.fromkeys(
        ["guarantee"] * bool(exact or under) + ["spent"] * ("charge" in exact), math.inf
    )
    taken = {"under": sorted(under), "taken as stated": sorted(unknown)}
    if planned:
        # not a mistake in the ledger
        taken["why null"] = [
            "what slots of a Planned cost together has no short formula: its guarantee is the"
            f" budget's, at the budget's delta {budget['delta']:g}, and dpbo itself computes the"
            " rest: python -m dpbo ledger show FILE"
        ]
    return {"records": seq + 1, "head": head, "delta": at, "epsilon": told, **noted, **taken}


def require(record: dict[str, Any], holds: bool, what: str) -> None:
    """Raises ValueError, naming the record."""
    if not holds:
        raise ValueError(f"record {record['seq']} ({record['kind']}) does not keep {what}")


if __name__ == "__main__":
    try:
        print(json.dumps(check(list(sys.stdin), *map(float, sys.argv[1:])), indent=2))
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        UnboundLocalError,
    ) as error:
        sys.exit(f"the chain does not hold: {error!r}")
