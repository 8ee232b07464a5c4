"""Good calls: values, laws, events, accounting, queries, mechanisms."""

import fractions

import torch

import dpbo
from dpbo import accounting, events, laws, mechanisms, planning, queries
from dpbo.curator import Handle
from dpbo.privacy import Adjacency
from tests.fuzz import world as w
from tests.fuzz.case import Case, of

FRACTION = fractions.Fraction(1, 2)
LAW = laws.TruncatedNegativeBinomial.of_mean(5.0)
SUMMED = {"dimension": 2, "ball": w.BALL}
SCORED = {
    "score": w.score,
    "subject": None,
    "score_range": (0.0, 1.0),
    "fit": None,
    "weights": (1.0,),
    "max_records_per_unit": 2,
    "worst": "lower",
    "role": "validation",
}

VALUES = {
    "dpbo.Budget": of(dpbo.Budget, epsilon=1.0, delta=1e-6),
    "dpbo.Budget.gdp": of(dpbo.Budget.gdp, mu=1.0, delta=1e-6),
    "dpbo.Budget.from_json": of(dpbo.Budget.from_json, body=dpbo.Budget(1.0, 1e-6).to_json()),
    "dpbo.PrivacyUnit": of(dpbo.PrivacyUnit, name="patient", groups=None),
    "dpbo.RowChange": of(dpbo.RowChange, norm=1.0, diameter=10.0, table="rows"),
    "dpbo.Sensitivity": of(dpbo.Sensitivity, l1=1.0, l2=1.0, linf=1.0, scale=(1.0,), block=None),
    "dpbo.Source": of(dpbo.Source, load=w.records),
    "dpbo.plan": of(dpbo.plan, units=1000, budget=w.BUDGET, evaluations=10, dimension=2, score_range=(0.0, 1.0), final_share=0.1),
    "dpbo.planning.noise_per_evaluation": of(planning.noise_per_evaluation, units=100, budget=w.BUDGET, evaluations=10, budget_share=0.9),
    "dpbo.planning.noise_table": of(
        planning.noise_table, units=(100, 1000), epsilons=(1.0, 2.0), delta=1e-6, evaluations=10, budget_share=0.9
    ),
    "dpbo.planning.plans_table": of(planning.plans_table, units=(1000,), epsilons=(1.0,), plans=((dpbo.plan(1000, w.BUDGET),),)),
    "dpbo.Statement.voided": Case(lambda: w.curator().statement().voided, lambda: {"reason": "because"}),
}

LAWS = {
    "dpbo.laws.TruncatedNegativeBinomial": of(laws.TruncatedNegativeBinomial, shape=1.0, gamma=0.1),
    "dpbo.laws.TruncatedNegativeBinomial.of_mean": of(laws.TruncatedNegativeBinomial.of_mean, mean=5.0, shape=1.0),
    "dpbo.laws.PoissonRuns": of(laws.PoissonRuns, rate=5.0),
    "dpbo.laws.TruncatedPoisson": of(laws.TruncatedPoisson, rate=5.0),
    "dpbo.laws.TruncatedPoisson.of_mean": of(laws.TruncatedPoisson.of_mean, mean=5.0),
    "dpbo.laws.BinomialRuns": of(laws.BinomialRuns, trials=10, chance=0.5),
    "dpbo.laws.FixedRuns": of(laws.FixedRuns, runs=5),
    "dpbo.laws.ThresholdStop": of(laws.ThresholdStop, gamma=0.1),
    "dpbo.laws.law_from_json": of(laws.law_from_json, body=LAW.to_json()),
    "dpbo.laws.CountLaw.quantile": of(LAW.quantile, p=0.5),
    "dpbo.laws.CountLaw.probabilities": of(LAW.probabilities, count=5),
}
_PLAIN = ("GaussianEvent", "LaplaceEvent", "L2LaplaceEvent", "ExponentialEvent", "PermuteAndFlipEvent")
SELECTION = events.SelectionEvent(base=(w.EVENT,), law=LAW)
ROLES = events.RolesEvent(costs=(("training", (w.EVENT,)),))
POISSON = events.PoissonGaussianEvent(2.0, 3, rate=0.1, relation="replace-one")
EVENTS = {
    **{f"dpbo.events.{name}": of(getattr(events, name), noise_multiplier=2.0, slots=3) for name in _PLAIN},
    "dpbo.events.PoissonGaussianEvent": of(events.PoissonGaussianEvent, noise_multiplier=2.0, slots=3, rate=0.1, relation="replace-one"),
    "dpbo.events.SelectionEvent": of(events.SelectionEvent, noise_multiplier=1.0, slots=1, base=(w.EVENT,), law=LAW, spread=(1.0, 1.0)),
    "dpbo.events.RolesEvent": of(events.RolesEvent, noise_multiplier=1.0, slots=1, costs=(("training", (w.EVENT,)),)),
    "dpbo.events.NotPrivateEvent": of(events.NotPrivateEvent, noise_multiplier=0.0, slots=1),
    "dpbo.events.DeclassifiedEvent": of(events.DeclassifiedEvent, noise_multiplier=0.0, slots=1),
    "dpbo.events.event_from_json": of(events.event_from_json, body=w.EVENT.to_json()),
    "dpbo.events.Event.from_json": of(events.GaussianEvent.from_json, body={"noise_multiplier": 2.0, "slots": 1}),
    "dpbo.events.PoissonGaussianEvent.from_json": of(
        events.event_from_json,
        body={"mechanism": "poisson-gaussian", "noise_multiplier": 2.0, "slots": 1, "rate": 0.1, "relation": "replace-one"},
    ),
    "dpbo.events.SelectionEvent.from_json": of(events.event_from_json, body=SELECTION.to_json()),
    "dpbo.events.RolesEvent.from_json": of(events.event_from_json, body=ROLES.to_json()),
    "dpbo.events.RolesEvent.of": of(ROLES.of, role="training"),
    "dpbo.events.Event.repeated": of(w.EVENT.repeated, slots=2),
}

_FILTERS = {"GDPFilter": (), "PureFilter": (), "ZCDPFilter": (), "RDPFilter": (8.0,)}
ACCOUNTING = {
    "dpbo.accounting.GDPFilter": of(accounting.GDPFilter),
    "dpbo.accounting.PureFilter": of(accounting.PureFilter),
    "dpbo.accounting.ZCDPFilter": of(accounting.ZCDPFilter),
    "dpbo.accounting.RDPFilter": of(accounting.RDPFilter, order=8.0),
    **{f"dpbo.accounting.{n}.cap": of(getattr(accounting, n)(*a).cap, budget=w.BUDGET) for n, a in _FILTERS.items()},
    **{f"dpbo.accounting.{n}.cost": of(getattr(accounting, n)(*a).cost, event=w.PURE_EVENT) for n, a in _FILTERS.items()},
    **{f"dpbo.accounting.{n}.price": of(getattr(accounting, n)(*a).price, event=w.PURE_EVENT) for n, a in _FILTERS.items()},
    **{
        f"dpbo.accounting.{n}.guarantee": of(
            getattr(accounting, n)(*a).guarantee, cost=getattr(accounting, n)(*a).cap(w.BUDGET), delta=1e-5
        )
        for n, a in _FILTERS.items()
    },
    "dpbo.accounting.Planned": of(accounting.Planned, events=(w.EVENT, w.PURE_EVENT)),
    "dpbo.accounting.Planned.read": of(accounting.Planned.read, name=accounting.Planned([w.EVENT]).name),
    "dpbo.accounting.Planned.cap": of(accounting.Planned([w.EVENT]).cap, budget=w.BUDGET),
    "dpbo.accounting.Planned.fits": of(accounting.Planned([w.EVENT]).fits, budget=w.BUDGET, room=0.0),
    "dpbo.accounting.Planned.composition": of(accounting.Planned([w.EVENT]).composition, delta=1e-6, refine=False),
    "dpbo.accounting.Planned.price": of(accounting.Planned([w.EVENT]).price, event=w.EVENT),
    "dpbo.accounting.Planned.cost": of(accounting.Planned([w.EVENT]).cost, event=w.EVENT),
    "dpbo.accounting.calibrate": of(
        accounting.calibrate,
        foreign=("event",),
        budget=w.BUDGET,
        releases=10,
        share=0.9,
        accounting=accounting.GDPFilter(),
        event=events.GaussianEvent,
    ),
    "dpbo.accounting.compose": of(accounting.compose, events=(w.EVENT, w.PURE_EVENT), delta=1e-6, refine=False),
    "dpbo.accounting.convert": of(accounting.convert, event=w.EVENT, given=Adjacency.ADD_OR_REMOVE_ONE, wanted=Adjacency.REPLACE_ONE),
    "dpbo.accounting.choose_law": of(accounting.choose_law, dear=1, budget=w.BUDGET, base=(w.EVENT,), runs=5.0, beside=(), shapes=(1.0,)),
    "dpbo.accounting.scale_base": of(accounting.scale_base, dear=1, budget=w.BUDGET, base=(w.EVENT,), law=LAW, beside=()),
    "dpbo.accounting.LedgerAccountant": Case(
        lambda: accounting.LedgerAccountant, lambda: {"curator": w.curator(), "noise_multiplier": 40.0, "steps": 3, "name": "sgd"}
    ),
    "dpbo.accounting.LedgerAccountant.add": Case(lambda: accounting.LedgerAccountant().add, lambda: {"event": w.EVENT}),
}

QUERIES = {
    "dpbo.queries.ClippedMean": of(queries.ClippedMean, **SCORED, divisor=40.0),
    "dpbo.queries.ClippedSum": of(queries.ClippedSum, **SCORED),
    "dpbo.queries.CellMeans": of(queries.CellMeans, score=w.score, subject=None, cells=3, divisor=40.0),
    "dpbo.queries.CandidateScores": of(queries.CandidateScores, score=w.score, candidates=w.grid(), score_range=(0.0, 1.0), fit=None),
    "dpbo.queries.QuantileUtilities": of(
        queries.QuantileUtilities, score=w.first_column, subject=None, candidates=(0.0, 0.5, 1.0), quantile=0.5, step_cost=0.1
    ),
    "dpbo.queries.PoissonSampled": of(queries.PoissonSampled, query=w.query(), rate=0.5),
    "dpbo.queries.ClippedGradient": of(
        queries.ClippedGradient,
        loss=w.loss,
        X=w.grid(3),
        weights=torch.ones(2, 3, dtype=w.DOUBLE),
        clip=1.0,
        center=0.0,
        divisor=40.0,
        earlier=(),
        keep=False,
        loss_range=(0.0, 1.0),
    ),
    "dpbo.queries.RowTable": of(
        queries.RowTable,
        center=(0.0, 0.0),
        radius=2.0,
        row_change=dpbo.RowChange(1.0, 10.0),
        projection=torch.eye(2, dtype=w.DOUBLE),
        table=None,
    ),
    "dpbo.queries.RowOutcome": of(queries.RowOutcome, outcome=w.records, row=0, value_range=(0.0, 1.0), declassified=None, worst="lower"),
    "dpbo.queries.SecondMoment": of(queries.SecondMoment, **SUMMED, vectors=None),
    "dpbo.queries.ClusterSums": of(queries.ClusterSums, **SUMMED, vectors=None, centers=w.grid(3), weights=(1.0, 1.0)),
    "dpbo.queries.MixtureMoments": of(
        queries.MixtureMoments,
        **SUMMED,
        vectors=None,
        natural=torch.zeros(2, 6, dtype=w.DOUBLE),
        covariance="full",
        weights=(1.0, 1.0, 1.0),
    ),
    "dpbo.queries.Ball": of(
        queries.Ball, radius=2.0, center=torch.zeros(2, dtype=w.DOUBLE), matrix=torch.eye(2, dtype=w.DOUBLE), norm="l2"
    ),
    "dpbo.queries.Ball.inward": of(w.BALL.inward, X=w.grid()),
    "dpbo.queries.Ball.outward": of(w.BALL.outward, Z=w.grid()),
    "dpbo.queries.Ball.log_volume": of(w.BALL.log_volume, d=2),
    "dpbo.queries.Ball.require_dimension": of(w.BALL.require_dimension, d=2),
    "dpbo.curator.Handle": of(Handle, query=w.query(), details={}, name="x"),
}
_NOISES = ("GaussianMechanism", "LaplaceMechanism", "L2LaplaceMechanism", "ExponentialMechanism", "PermuteAndFlipMechanism")
MECHANISMS = {
    **{f"dpbo.mechanisms.{name}": of(getattr(mechanisms, name), noise_multiplier=2.0) for name in _NOISES},
    **{f"dpbo.mechanisms.{name}.of": of(getattr(mechanisms, name).of, epsilon=2.0) for name in _NOISES[1:]},
    **{f"dpbo.mechanisms.{name}.event": of(getattr(mechanisms, name)(2.0).event, slots=2) for name in _NOISES},
    "dpbo.mechanisms.NoNoise": of(mechanisms.NoNoise, allow_not_private=True),
    "dpbo.mechanisms.NoNoise.event": of(mechanisms.NoNoise(allow_not_private=True).event, slots=2),
}
CASES = {**VALUES, **LAWS, **EVENTS, **ACCOUNTING, **QUERIES, **MECHANISMS}
