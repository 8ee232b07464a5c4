"""The folder says which side of the wall a line is on, and these tests keep it so."""

import ast
import functools
import importlib
import pathlib
import pkgutil
import re
from typing import Any

from torch.utils._device import _device_constructors

import dpbo
from dpbo.mechanisms import NoNoise, ThresholdedExponentialMechanism
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.papers.kusner import RegularisedBest
from dpbo.queries import Query
from dpbo.testing import QueryContract
from dpbo.testing.query_contract import RowContract
from tests.contracts.choice_contract import ChoiceContract
from tests.contracts.mechanism_contract import MechanismContract, VectorContract
from tests.contracts.test_copies import CASES
from tests.layers import CORE, PAGE, PROGRAMS, WINGS, circles, imported, page
from tests.setups import subclasses

ROOT = pathlib.Path(dpbo.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LAYERS = [set(names.split()) for names, _ in CORE]


def _part(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path):
    names = [name for node in _nodes(path) for name in imported(node)]
    return {name.split(".")[1] for name in names if name.startswith("dpbo.")}


def test_the_core_imports_no_wing_and_nothing_below_it():
    core = set().union(*LAYERS)
    for path in FILES:
        if _part(path) not in core or path.name == "__init__.py":
            continue
        layer = next(number for number, names in enumerate(LAYERS) if _part(path) in names)
        allowed = set().union(*LAYERS[: layer + 1])
        assert _imports(path) <= allowed, path.relative_to(ROOT)
        if _part(path) in ("models", "acquisition", "queries", "mechanisms", "accounting"):
            assert not _imports(path) & {"ledger", "records", "curator"}, path


def test_a_wing_imports_the_core_and_the_wings_it_names():
    core = set().union(*LAYERS)
    for path in FILES:
        if _part(path) in WINGS:
            others = set(WINGS[_part(path)][0].split())
            assert _imports(path) <= core | others | {_part(path)}, path.relative_to(ROOT)


def test_no_two_files_of_the_rooms_import_each_other():
    assert circles(ROOT) == []


def test_every_module_has_its_place_and_the_page_says_so():
    placed = [*LAYERS, set(WINGS), set(PROGRAMS.split()), {"__init__", "data"}]
    assert {_part(path) for path in FILES} <= set().union(*placed)
    assert sum(map(len, placed)) == len(set().union(*placed))
    assert page(PAGE.read_text()) == PAGE.read_text(), (
        "python -m tests.layers writes the table anew"
    )


@functools.cache
def _nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def _words(path):
    return {
        getattr(node, "attr", getattr(node, "id", ""))
        for node in _nodes(path)
        if isinstance(node, (ast.Attribute, ast.Name))
    }


def _users(*names):
    return {str(path.relative_to(ROOT)) for path in FILES if _words(path) & set(names)}


def test_only_the_curator_evaluates_queries_and_draws_noise():
    allowed = {
        "_evaluate": {
            "curator/evaluation.py",
            "testing/query_contract.py",
            "queries/utilities.py",
            "queries/unit_sum.py",
            "papers/kusner/regularised.py",
        },
        "_sample": {"curator/releasing.py"},
    }
    for name, homes in allowed.items():
        assert _users(name) == homes, name


def test_entropy_comes_from_one_place_and_noise_is_shaped_in_mechanisms_alone():
    public = {
        # turns a design by a seeded generator: nothing private is near it
        "acquisition/designs.py",
        # a transform without privacy, refused unless its user says so: these coins protect nothing
        "papers/po_gp_ucb/transform.py",
        "papers/po_gp_ucb/row_noise.py",  # draws a public projection by a seeded generator
    }
    generators = (
        "urandom",
        "RAND_bytes",
        "randn",
        "normal_",
        "SystemRandom",
        "randint",
        "token_bytes",
        "rand",
    )
    assert _users(*generators) == {"entropy.py"} | public
    computing = {
        "accounting/gdp.py",
        "accounting/dominating_pairs.py",
        "accounting/event_costs.py",
        "testing/auditing.py",
    }
    assert _users("ndtri", "erfinv") <= {"mechanisms/gaussian.py", *computing}


def test_no_clock_that_can_be_set_is_read():
    """A jump of the system's time can end no wait, lose no charge and open no ledger anew."""
    clock = re.compile(
        r"\b(time\.(time|time_ns|localtime|gmtime|ctime|strftime)"
        r"|(datetime|date)\.(now|utcnow|today))\("
    )
    assert [path for path in FILES if clock.search(path.read_text())] == []


def test_every_tensor_that_is_made_names_its_device():
    """Else it would lie on the default device of the caller."""
    makers = {function.__name__ for function in _device_constructors()}
    for path in FILES:
        for node in _nodes(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch."):
                made = ast.unparse(node.func).removeprefix("torch.") in makers
                assert not made or "device" in {given.arg for given in node.keywords}, (
                    f"{path.relative_to(ROOT)}:{node.lineno}"
                )


def _shipped(cls):
    for module in pkgutil.walk_packages(dpbo.__path__, "dpbo."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {
        c for c in subclasses(cls) if c.__module__.startswith("dpbo.") and not c.__abstractmethods__
    }


def test_every_query_and_mechanism_is_under_contract():
    for path in (pathlib.Path(__file__).parents[1]).rglob("test_*.py"):
        if "Contract" not in path.read_text() or path == pathlib.Path(__file__):
            continue
        importlib.import_module(
            ".".join(path.relative_to(pathlib.Path(__file__).parents[2]).with_suffix("").parts)
        )
    contracts: dict[Any, list[Any]] = {
        Query: [QueryContract, RowContract],
        Mechanism: [MechanismContract, ChoiceContract, VectorContract],
    }
    for base, kinds in contracts.items():
        covered = {
            c.covers for kind in kinds for c in subclasses(kind) if not c.__abstractmethods__
        }
        # the first promises nothing; the second takes one record a unit and has a hunt of its own;
        # the third's law is not one of distances alone, and has a contract of its own
        exempt = {NoNoise, RegularisedBest, ThresholdedExponentialMechanism}
        conditional = {
            c
            for c in _shipped(base)
            if issubclass(c, Query) and c.data_assumptions is not Query.data_assumptions
        }
        assert _shipped(base) - exempt - conditional <= covered
        assert _shipped(base), "the search found nothing"
    assert _shipped(Query) == set(CASES), (
        "every query is tried with arguments that are altered afterwards"
    )


def test_no_public_function_bears_the_name_of_a_module_beside_it():
    modules = {_part(path) for path in FILES}
    stub = ast.parse((ROOT / "__init__.pyi").read_text())
    exported = {
        alias.name
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert not exported & modules


def test_public_names_have_docstrings():
    for path in FILES:
        assert ast.get_docstring(_nodes(path)[0]), path
        for node in _nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"
