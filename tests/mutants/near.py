"""Where to look for a mutant's killer when none is known: the tests of its file, then those of its folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.mutants.mutant import ROOT

_FILES = {  # the part of the tests' names, by file; where it is not the file's own name
    "accounting/selected": ("accounting/test_selected_parts", "accounting/test_selected"),
    "accounting/dominating": (
        "accounting/test_dominating",
        "accounting/test_selected",
        "accounting/test_selection_event",
        "accounting/test_composition",
    ),
    "accounting/costs": ("accounting/test_costs", "accounting/test_planned", "accounting/test_filters"),
    "accounting/pld": ("accounting/test_pld", "accounting/test_composition", "accounting/test_planned"),
    "accounting/pairs": ("accounting/test_pairs", "accounting/test_composition"),
    "accounting/sides": ("accounting/test_sides", "accounting/test_selected", "accounting/test_selection_event"),
    "accounting/poisson": ("accounting/test_poisson", "accounting/test_composition"),
    "accounting/profiles": ("accounting/test_profiles", "accounting/test_roles", "accounting/test_filters", "accounting/test_composition"),
    "accounting/rdp": ("accounting/test_rdp", "accounting/test_filters", "accounting/test_exported"),
    "accounting/relations": ("accounting/test_filters", "accounting/test_composition", "accounting/test_selection_event"),
    "accounting/tuning": ("accounting/test_tuning", "accounting/test_selection_event", "accounting/test_selected", "accounting/test_roles"),
    "accounting/calibrate": ("accounting/test_filters",),
    "algorithms/descriptors": ("algorithms/test_private_selection",),
    "algorithms/em": ("algorithms/test_em_kmeans_factors", "algorithms/test_em_mixture"),
    "algorithms/hidden_runs": ("algorithms/test_private_selection",),
    "algorithms/kusner/regularised": ("algorithms/test_kusner_lipschitz", "algorithms/test_kusner_loops", "queries/test_copies"),
    "algorithms/kusner/bounds": ("algorithms/test_kusner_bounds", "algorithms/test_kusner_loops"),
    "algorithms/outsourced/curating": ("algorithms/test_outsourced_curating",),
    "algorithms/selection": ("algorithms/test_private_selection", "accounting/test_roles"),
    "curator/books": ("curator/test_curator",),
    "curator/chain": ("curator/test_ledger_contract", "fire/test_rows", "fire/test_bytes"),
    "curator/curator": ("curator/test_curator", "queries/test_sampled", "queries/test_rows", "accounting/test_roles"),
    "curator/deliveries": ("curator/test_curator", "test_killed"),
    "curator/entropy": ("queries/test_sampled",),
    "curator/evaluation": ("curator/test_curator",),
    "curator/inside": ("algorithms/test_private_selection",),
    "curator/ledger": (
        "curator/test_ledger_contract",
        "curator/test_conditional",
        "algorithms/test_outsourced_curating",
        "testing/test_sabotage",
    ),
    "curator/ranks": ("ranks/test_failures",),
    "curator/records": ("curator/test_curator", "queries/test_sampled"),
    "curator/reporting": (
        "test_statement",
        "curator/test_reporting",
        "curator/test_conditional",
        "testing/test_sabotage",
        "fire/test_rows",
    ),
    "curator/shards": ("ranks/test_failures",),
    "curator/dialects": ("fire",),
    "curator/plans": ("curator/test_terms", "algorithms/test_outsourced_curating", "curator/test_ledger_contract", "fire/test_contract"),
    "curator/storage": ("curator/test_curator", "fire"),
    "curator/upgrades": ("fire/test_versions",),
    "demo": ("test_main",),
    "events": ("accounting/test_selection_event", "accounting/test_roles"),
    "integrations/ax": ("integrations/test_ax",),
    "integrations/opacus": ("integrations/test_opacus_tuning", "integrations/test_opacus_releasing"),
    "integrations/optuna": ("integrations/test_optuna",),
    "integrations/outsourcing": ("integrations/test_two_parties", "integrations/test_serving"),
    "integrations/tuning": ("integrations/test_search_leaks", "integrations/test_search"),
    "mechanisms/additive": ("mechanisms/test_additive_contract", "testing/test_instruments"),
    "mechanisms/gaussian": ("mechanisms/test_additive_contract",),
    "mechanisms/laplace": ("mechanisms/test_additive_contract",),
    "mechanisms/exponential": ("mechanisms/test_selection",),
    "mechanisms/permute_and_flip": ("mechanisms/test_selection",),
    "mechanisms/l2_laplace": ("mechanisms/test_l2_laplace", "mechanisms/test_additive_contract"),
    "queries/ball": ("queries/test_ball", "queries/test_point_sums", "queries/test_mixture_moments"),
    "queries/cluster_sums": ("queries/test_point_sums",),
    "queries/features": ("queries/test_mixture_moments",),
    "queries/integers": ("queries/test_integers", "queries/test_clipped_contract", "curator/test_curator", "attacks/test_float_sums"),
    "queries/clipped": ("queries/test_clipped_contract", "curator/test_curator"),
    "queries/points": ("queries/test_mixture_moments", "queries/test_point_sums"),
    "queries/quantile": ("queries/test_quantile_contract",),
    "queries/outcome": ("queries/test_rows",),
    "queries/scoring": ("queries/test_scoring", "curator/test_curator"),
    "queries/rows": ("queries/test_row_allowances", "queries/test_refusals", "queries/test_rows"),
    "queries/second_moment": ("queries/test_point_sums", "queries/test_sensitivities", "queries/test_mixture_moments"),
    "queries/fused_moments": ("queries/test_fused_moments",),
    "queries/gradient_kernel": ("queries/test_fused",),
    "queries/moments_kernel": ("queries/test_fused_moments",),
    "queries/fused": ("queries/test_fused",),
    "queries/vectors": ("queries/test_vectors", "queries/test_gradient"),
}
_FOLDERS = {
    "accounting": ("accounting",), "queries": ("queries", "testing"), "mechanisms": ("mechanisms", "testing"),
    "curator": ("curator", "testing", "fire"), "algorithms": ("algorithms", "attacks"), "integrations": ("integrations", "attacks"),
}  # fmt: skip
_ELSEWHERE = ("test_objective.py", "test_statement.py", "test_planning.py", "curator", "accounting")


def near(file: str) -> Iterator[Sequence[str]]:
    """Groups of tests to try in turn for a change of dpbo/`file`."""
    stem = file.removesuffix(".py")
    named = next((tests for start, tests in _FILES.items() if stem.startswith(start)), (_own(stem),))
    yield _there(map(_path, named))
    yield _there(f"tests/{folder}" for folder in _FOLDERS.get(stem.partition("/")[0], _ELSEWHERE))


def _there(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if (ROOT / path).exists()]


def _own(stem: str) -> str:
    folder, _, name = stem.rpartition("/")
    return f"{folder}/test_{name}".lstrip("/")


def _path(test: str) -> str:
    return f"tests/{test}.py" if "test_" in test else f"tests/{test}"
