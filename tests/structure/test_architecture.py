"""The folder says which side of the wall a line is on, and these tests keep it so."""

import ast
import importlib
import pathlib
import pkgutil

import pytest

import dpbo
from dpbo.algorithms.kusner import RegularisedBest
from dpbo.mechanisms import Mechanism, NoNoise
from dpbo.queries import Query
from dpbo.testing import MechanismContract, QueryContract, RowContract, SelectionContract, VectorContract
from tests.queries.test_copies import CASES

ROOT = pathlib.Path(dpbo.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LAYERS = [  # a folder or file may import from its own line and the lines above it
    {"errors", "checking", "digits", "laws", "events", "loading", "quiet", "seeding", "describing"},
    {"privacy", "statement", "form"},
    {"accounting", "queries", "mechanisms", "release"},
    {"space", "planning"},
    {"models", "acquisition"},
    {"curator"},
    {"objective", "algorithms"},
    {"integrations", "testing", "plots"},
    {"demo"},
    {"__main__"},
]


def _layer(part):
    return next(i for i, names in enumerate(LAYERS) if part in names)


def _part(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dpbo."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "dpbo":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("dpbo."))


@pytest.mark.parametrize("path", [f for f in FILES if f.name != "__init__.py"], ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_go_one_way(path):
    own = _layer(_part(path))
    for part in _imports(path):
        assert _layer(part) <= own, f"{path.name} must not import dpbo.{part}"


def test_models_and_acquisitions_never_import_the_curator():
    for path in FILES:
        if _part(path) in ("models", "acquisition", "queries", "mechanisms", "accounting"):
            assert "curator" not in set(_imports(path)), path


def _uses(path, *names):
    """Attribute accesses and names in a file that match one of `names`."""
    tree = ast.parse(path.read_text())
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return sorted((found | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}) & set(names))


def test_only_the_curator_evaluates_queries_and_draws_noise():
    allowed = {
        "_evaluate": {
            "curator/evaluation.py",
            "testing/query_contract.py",
            "testing/row_contract.py",
            "queries/candidates.py",
            "queries/sampled.py",
            "algorithms/kusner/regularised.py",
        },
        "_sample": {
            "curator/curator.py",
            "curator/inside.py",
            *(f"testing/{kind}_contract.py" for kind in ("mechanism", "selection", "vector")),
        },
    }
    for name, homes in allowed.items():
        users = {str(path.relative_to(ROOT)) for path in FILES if _uses(path, name)}
        assert users == homes, name


def test_entropy_comes_from_one_place_and_noise_is_shaped_in_mechanisms_alone():
    generators = ("urandom", "randn", "normal_", "SystemRandom", "randint", "token_bytes", "rand")
    users = {str(path.relative_to(ROOT)) for path in FILES if _uses(path, *generators)}
    public = {
        "acquisition/designs.py",  # turns a design by a seeded generator: nothing private is near it
        "algorithms/outsourced/row_noise.py",  # draws a public projection by a seeded generator
        "algorithms/outsourced/po_gp_ucb.py",  # a transform without privacy, refused unless its user says so: these coins protect nothing
    }
    assert users == {"curator/entropy.py"} | public
    shapers = {str(path.relative_to(ROOT)) for path in FILES if _uses(path, "ndtri", "erfinv")}
    computing = {"accounting/gdp.py", "accounting/pairs.py", "accounting/profiles.py", "accounting/membership.py", "testing/auditing.py"}
    assert shapers <= {"mechanisms/gaussian.py", *computing}


def _all_subclasses(cls):
    return {cls} | {deeper for child in cls.__subclasses__() for deeper in _all_subclasses(child)}


def _shipped(cls):
    for module in pkgutil.walk_packages(dpbo.__path__, "dpbo."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {c for c in _all_subclasses(cls) if c.__module__.startswith("dpbo.") and not c.__abstractmethods__}


@pytest.mark.parametrize(
    ("base", "contracts"), [(Query, [QueryContract, RowContract]), (Mechanism, [MechanismContract, SelectionContract, VectorContract])]
)
def test_every_query_and_mechanism_is_under_contract(base, contracts):
    for path in (pathlib.Path(__file__).parents[1]).rglob("test_*.py"):
        if "Contract" not in path.read_text() or path == pathlib.Path(__file__):
            continue
        importlib.import_module(".".join(path.relative_to(pathlib.Path(__file__).parents[2]).with_suffix("").parts))
    covered = {c.covers for contract in contracts for c in _all_subclasses(contract) if not c.__abstractmethods__}
    exempt = {NoNoise, RegularisedBest}  # the first promises nothing; the second takes one record a unit and has a hunt of its own
    conditional = {c for c in _shipped(base) if issubclass(c, Query) and c.data_assumptions is not Query.data_assumptions}
    assert _shipped(base) - exempt - conditional <= covered
    assert _shipped(base), "the search found nothing"


def test_every_query_is_tried_with_arguments_that_are_altered_afterwards():
    assert _shipped(Query) == set(CASES)


def test_no_public_function_bears_the_name_of_a_module_beside_it():
    modules = {_part(path) for path in FILES}
    stub = ast.parse((ROOT / "__init__.pyi").read_text())
    exported = {alias.name for node in ast.walk(stub) if isinstance(node, ast.ImportFrom) and node.module for alias in node.names}
    assert not exported & modules


def test_public_names_have_docstrings():
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_") and isinstance(node, ast.ClassDef):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"
