"""The sabotages: a definition of the package, what is replaced in its source, and the test that
must fail.

Add one with every new kind of release, noise law, ledger rule or accounting bound.
"""

import ast
import pathlib
import re
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]


@dataclass(frozen=True)
class Sabotage:
    """`old` becomes `new` in the source of `where`; then `test` must fail.

    `where` is "module:name": the name of a function, class or constant, qualified by its class.
    `old` occurs there once. Line breaks do not count, and the first lines of `old` and `new` are
    not indented.
    """

    name: str
    where: str
    old: str
    new: str
    test: str

    def file(self, root: pathlib.Path = ROOT) -> pathlib.Path:
        """The file that is changed, in the copy of the package under `root`."""
        module = root.joinpath(*self.where.partition(":")[0].split("."))
        return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")

    def applied(self, text: str) -> str:
        """The file's text with the change in it.

        Raises:
            ValueError: if the definition is not there, or `old` does not occur in it exactly once.
        """
        node: Any = ast.parse(text)
        for part in self.where.partition(":")[2].split("."):
            named = [inner for inner in node.body if part in _names(inner)]
            if len(named) != 1:
                raise ValueError(f"{self.name}: {len(named)} definitions of {self.where}, not one")
            node = named[0]
        start = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
        lines = text.splitlines(keepends=True)
        source = "".join(lines[start - 1 : node.end_lineno])
        changed, times = _anywhere(self.old).subn(lambda _: self.new, source)
        if times != 1:
            raise ValueError(f"{self.name}: its text is in {self.where} {times} times, not once")
        return "".join([*lines[: start - 1], changed, *lines[node.end_lineno :]])


def _names(statement: ast.stmt) -> list[str]:
    """What a statement defines: a function, a class, or the names to which it assigns."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    assigned = [getattr(statement, "target", None), *getattr(statement, "targets", ())]
    return [target.id for target in assigned if isinstance(target, ast.Name)]


def _anywhere(code: str) -> re.Pattern[str]:
    """Matches `code` also as a formatter breaks it into lines, with commas before closing
    brackets.
    """
    pattern = ""
    for word in re.findall(r"\w+|\S", code):
        comma = r",?\s*" if word in ")]}" else ""
        pattern += comma + re.escape(word) + r"\s*"
    return re.compile(pattern.removesuffix(r"\s*"))


SABOTAGES = (
    # queries: what one unit may change
    Sabotage(
        "scores are not clipped",
        where="dpbo.queries.integers:quantise",
        old="truncate(steps).clamp_(grid.low, grid.high)",
        new="truncate(steps)",
        test=(
            "tests/contracts/test_clipped_contract.py"
            "::TestClippedMean::test_a_unit_of_any_size_stays_within_the_declared_sensitivity"
        ),
    ),
    Sabotage(
        "a query that nobody vouches for is asked about groups",
        where="dpbo.curator.evaluation:require_askable",
        old="require_per_unit(query, grouped=birth.grouped)",
        new="require_per_unit(query, grouped=False)",
        test=(
            "tests/attacks/test_own_queries.py"
            "::test_a_query_that_nobody_vouches_for_is_refused_on_groups_before_a_charge"
        ),
    ),
    Sabotage(
        "a declaration holds for code that a subclass replaces",
        where="dpbo.queries.query:declares_per_unit",
        old="if any(_is_code(name, inherited) for name in vars(base)):",
        new="if inherited is None:",
        test="tests/attacks/test_own_queries.py::test_a_declaration_ends_where_code_is_replaced",
    ),
    Sabotage(
        "the documented query counts records where it declares units",
        where="dpbo.queries.query:Query",
        old="units.index_add(0, view.groups, above).clamp(max=1)",
        new="units.index_add(0, view.groups, above)",
        test=(
            "tests/attacks/test_own_queries.py"
            "::test_every_documented_query_and_mechanism_passes_its_contract_beside_it"
        ),
    ),
    Sabotage(
        "a sum of an own score forgets the groups",
        where="dpbo.queries.unit_sum:UnitSum._evaluate",
        old="return self._sum._evaluate(view, subject)",
        new=(
            "return self._sum._evaluate(dataclasses.replace(view, groups=None, rows=None), subject)"
        ),
        test=(
            "tests/attacks/test_own_queries.py"
            "::test_every_documented_query_is_about_units_also_of_a_hundred_records"
        ),
    ),
    Sabotage(
        "a query fails after it was charged",
        where="dpbo.curator.releasing:Releases.draw",
        old="require_expressible(query, answer.quanta, law, mechanism, birth.units)",
        new="pass",
        test=(
            "tests/attacks/test_own_queries.py"
            "::test_a_query_that_needs_the_private_number_of_units_fails_before_it_is_charged"
        ),
    ),
    Sabotage(
        "large units are summed without a cap",
        where="dpbo.queries.integers:_scaled_mean",
        old="times = rows.clamp(max=most)",
        new="times = rows.where(rows > 40, rows.clamp(max=most))",
        test=(
            "tests/contracts/test_clipped_contract.py"
            "::TestClippedSumOfFewRecordsAUnit"
            "::test_a_unit_of_any_size_stays_within_the_declared_sensitivity"
        ),
    ),
    Sabotage(
        "units of five to seven records are summed",
        where="dpbo.queries.integers:_scaled_mean",
        old="if most == 1:\n        return whole",
        new="if most == 1:\n        return torch.where((rows > 4) & (rows < 8), sums, whole)",
        test=(
            "tests/contracts/test_clipped_contract.py"
            "::TestClippedMean::test_a_unit_of_any_size_stays_within_the_declared_sensitivity"
        ),
    ),
    Sabotage(
        "NaN passes for a good score",
        where="dpbo.queries.integers:quantise",
        old="~scores.isfinite(), grid.worst)",
        new="~scores.isfinite(), grid.high)",
        test=(
            "tests/unit/curator/test_curator.py"
            "::test_nan_infinities_and_failures_count_as_the_worst_score"
        ),
    ),
    Sabotage(
        "a sum in float32",
        where="dpbo.queries.integers:_exact_sum",
        old="steps[:even].view(-1, _EXACT_BLOCK).sum(1).to(torch.int64).sum()",
        new="steps[:even].view(-1, _EXACT_BLOCK).float().sum(1).to(torch.int64).sum()",
        test=(
            "tests/attacks/test_float_sums.py"
            "::test_permuted_and_one_record_swapped_a_sum_moves_as_declared[dtype0-mean]"
        ),
    ),
    Sabotage(
        "one block too long to be summed exactly",
        where="dpbo.queries.integers:_EXACT_BLOCK",
        old="_EXACT_BLOCK = 1 << 13",
        new="_EXACT_BLOCK = 1 << 16",
        test=(
            "tests/attacks/test_float_sums.py"
            "::test_the_largest_numbers_of_many_records_are_added_exactly"
        ),
    ),
    Sabotage(
        "differences of paired scores are not clipped to c",
        where="dpbo.queries.clipped:ClippedScores.lattices",
        old="for ends, origin in zip(self.ranges, self.origins(), strict=True)",
        new=(
            "for ends, origin in zip(getattr(self.asked, 'ranges', self.ranges), self.origins(),"
            " strict=True)"
        ),
        test=(
            "tests/contracts/test_clipped_contract.py"
            "::TestPairedMean::test_a_unit_of_any_size_stays_within_the_declared_sensitivity"
        ),
    ),
    Sabotage(
        "the reference of paired scores may change after the query is made",
        where="dpbo.queries.clipped:ClippedScores._pair",
        old="reference = copy.deepcopy(self.reference)",
        new="reference = self.reference",
        test=(
            "tests/unit/queries/test_paired.py::test_a_reference_that_changes_later_changes_nothing"
        ),
    ),
    Sabotage(
        "the reference of paired scores is fitted to protected records",
        where="dpbo.search.problem:Problem.choose",
        old="reference = self.trainer(None)",
        new="reference = self.trainer.configured(None).fit(*self.curator._Curator__view.records)",
        test="tests/integration/test_search_small.py::test_no_fit_sees_a_protected_record",
    ),
    Sabotage(
        "a unit counts once a row, not once",
        where="dpbo.queries.clipped:ClippedScores._evaluate",
        old="return sum_units(pieces, grids, view.groups, view.rows, self.max_records_per_unit)",
        new="return sum_records(pieces, grids)",
        test=(
            "tests/contracts/test_clipped_contract.py"
            "::TestClippedMean::test_a_unit_of_any_size_stays_within_the_declared_sensitivity"
        ),
    ),
    Sabotage(
        "replacing is charged as adding",
        where="dpbo.queries.clipped:_box",
        old="replaced = k * (b - a) + (k - 1) * max(a, -b, Fraction(0))",
        new="replaced = k * max(abs(a), abs(b))",
        test=(
            "tests/contracts/test_clipped_contract.py"
            "::TestClippedMean::test_a_unit_of_any_size_stays_within_the_declared_sensitivity"
        ),
    ),
    Sabotage(
        "the largest metric alone bounds the sum",
        where="dpbo.queries.clipped:_box",
        old="root_up(largest**2 * sum(weight**2 for weight in weights))",
        new="root_up(largest**2 * max(weight**2 for weight in weights))",
        test=(
            "tests/contracts/test_clipped_contract.py"
            "::TestClippedMeanOfSeveralMetrics"
            "::test_a_unit_of_any_size_stays_within_the_declared_sensitivity"
        ),
    ),
    Sabotage(
        "2B becomes B",
        where="dpbo.gibo.gradient_query:ClippedGradient.sensitivity",
        old="l2 = 2 * self.clip",
        new="l2 = self.clip",
        test=(
            "tests/unit/gibo/test_gradient_query.py"
            "::TestGradient::test_a_unit_of_any_size_stays_within_the_declared_sensitivity"
        ),
    ),
    Sabotage(
        "gradients are not clipped in whole numbers",
        where="dpbo.gibo.gradient_query:_clipped",
        old="whole.masked_fill_(squares > most**2, 0)",
        new="pass",
        test=(
            "tests/unit/gibo/test_gradient_query.py"
            "::test_whole_numbers_are_never_too_long_whatever_the_floats_did"
        ),
    ),
    Sabotage(
        "a unit's broken row is averaged over the rest",
        where="dpbo.gibo.gradient_query:ClippedGradient._unit_losses",
        old="means[broken] = torch.nan",
        new="",
        test=(
            "tests/unit/gibo/test_gradient_query.py"
            "::test_a_loss_that_is_not_finite_silences_its_whole_unit"
        ),
    ),
    Sabotage(
        "the chunk's padding keeps the last chunk's records",
        where="dpbo.gibo.gradient_query:_products",
        old="buffer[:, count:] = 0.0\n        yield deterministic_matmul(W, buffer)[:d], count",
        new="yield deterministic_matmul(W, buffer)[:d], rows",
        test="tests/unit/gibo/test_gradient_query.py::test_one_unit_changes_no_others_bits",
    ),
    Sabotage(
        "a projection's norm is left out",
        where="dpbo.papers.po_gp_ucb.rows:RowTable.spectral_norm",
        old="float(torch.linalg.matrix_norm(self.projection, 2)) * _UP",
        new="1.0",
        test=(
            "tests/unit/papers/test_po_gp_ucb_rows.py"
            "::TestProjectedTable"
            "::test_another_row_moves_its_own_answer_alone_and_within_the_sensitivity"
        ),
    ),
    Sabotage(
        "mixture moments as if replacing moved one component alone",
        where="dpbo.papers.em.mixture_moments:MixtureMoments.squared_l2",
        old="two_components = one_record if self.components == 1 else 2.0 * one_record",
        new="two_components = one_record",
        test=(
            "tests/unit/papers/test_em_mixture_moments.py"
            "::TestSplit::test_worst_case_attains_the_sensitivity"
        ),
    ),
    Sabotage(
        "a tied covariance's second moments count twice",
        where="dpbo.papers.em.mixture_moments:MixtureMoments.chunk_sum",
        old="product(gamma.sum(0, keepdim=True), phi[shared])",
        new="product(2.0 * gamma.sum(0, keepdim=True), phi[shared])",
        test=(
            "tests/unit/papers/test_em_mixture_moments.py"
            "::TestTied::test_worst_case_attains_the_sensitivity"
        ),
    ),
    Sabotage(
        "means without second moments move as far as those that are answered with them",
        where="dpbo.papers.em.moment_features:distance_squared",
        old="return 4.0 * m",
        new="return 2.0 * m",
        test=(
            "tests/unit/papers/test_em_mixture_moments.py"
            "::TestCountsAndMeans::test_worst_case_attains_the_sensitivity"
        ),
    ),
    Sabotage(
        "a replaced record moves a sum of vectors no further than one more does",
        where="dpbo.papers.em.point_sums:VectorSum.squared_l2",
        old="return max(furthest * m * m, one_record)",
        new="return one_record",
        test=(
            "tests/unit/papers/test_em_exponential_family.py"
            "::TestVectorSum::test_worst_case_attains_the_sensitivity"
        ),
    ),
    Sabotage(
        "vectors that are said not to be negative are taken as they are",
        where="dpbo.papers.em.point_sums:VectorSum.chunk_sum",
        old="Z = Z.clamp(min=0.0)",
        new="pass",
        test=(
            "tests/unit/papers/test_em_exponential_family.py"
            "::TestNonnegative::test_what_is_below_zero_counts_as_zero"
        ),
    ),
    Sabotage(
        "EM divides by the exact private number of records",
        where="dpbo.papers.em.exponential_family:DPEM.fit",
        old="count = record_count(curator.units, value[0], std[0])",
        new="count = float(curator._Curator__view.units)",
        test=(
            "tests/attacks/test_replays.py"
            "::test_one_unit_fewer_changes_the_exact_sum_alone[exponential family]"
        ),
    ),
    Sabotage(
        "statistics of EM get the parameters themselves, and may write to them",
        where="dpbo.papers.em.exponential_family:DPEM._question",
        old="functools.partial(ask, self.statistics, theta)",
        new="functools.partial(self.statistics, theta)",
        test=(
            "tests/unit/papers/test_em_exponential_family.py"
            "::test_what_the_statistics_write_into_theta_reaches_no_other_call"
        ),
    ),
    Sabotage(
        "vectors of points are not tried on public records",
        where="dpbo.papers.em.point_sums:PointSums.per_record_scores",
        old="if self.vectors is None:",
        new="if True:",
        test=(
            "tests/unit/papers/test_em_exponential_family.py"
            "::test_statistics_and_vectors_of_several_records_are_refused"
        ),
    ),
    Sabotage(
        "a Dataset's samples are not compared with the records of other budgets",
        where="dpbo.records.digests:_reader",
        old="records = view.records",
        new="return None",
        test=(
            "tests/attacks/test_roles.py"
            "::test_a_dataset_asked_by_two_curators_is_one_table[TensorDataset-53]"
        ),
    ),
    Sabotage(
        "the paper's Laplace noise on weights and means is for one of two components",
        where="dpbo.papers.em.point_sums:of_counts_and_sums",
        old="times = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0",
        new="times = 1.0",
        test=(
            "tests/unit/papers/test_em_mixture_moments.py"
            "::test_counts_and_means_reach_their_l1_sensitivity"
        ),
    ),
    Sabotage(
        "kept places of narrow records answer a question about wider ones",
        where="dpbo.papers.em.point_sums:ClusterSums._total_of_view",
        old="key = (self.ball, self.box, self.dimension, resolution.bits, rows)",
        new="key = (self.ball, self.box, resolution.bits, rows)",
        test=(
            "tests/unit/papers/test_em_point_sums.py"
            "::test_kept_places_of_narrow_records_answer_no_question_about_wider_ones"
        ),
    ),
    Sabotage(
        "kept places are taken for those of other records",
        where="dpbo.records.view:PrivateView.keep",
        old="if found is None or found[0] is not self.container or found[1] != key:",
        new="if found is None:",
        test=(
            "tests/unit/papers/test_em_point_sums.py"
            "::test_kept_places_are_those_of_the_same_records_and_ball"
        ),
    ),
    Sabotage(
        "records are not clipped once they are rounded",
        where="dpbo.queries.ball:_clipped",
        old="k = truncate(k.mul_(torch.where(squares > steps * steps, steps / root, 1.0)))",
        new="pass",
        test=(
            "tests/unit/papers/test_em_mixture_moments.py"
            "::test_no_record_is_longer_than_one_and_weights_sum_to_one_exactly"
        ),
    ),
    Sabotage(
        "whoever asks without the token is answered",
        where="dpbo.papers.po_gp_ucb.server:serve",
        old="if not hmac.compare_digest(given.encode(), expected):",
        new="if False:",
        test="tests/attacks/test_doors.py::test_without_the_token_nothing_is_told",
    ),
    # mechanisms: the laws of the noise
    Sabotage(
        "the noise of a coordinate serves another seven places on",
        where="dpbo.mechanisms.additive:IndependentNoise.noise",
        old="wide.reshape(-1), entropy).reshape(fractions.shape)",
        new=(
            "wide.reshape(-1), entropy)[[*range(7), *range(fractions.size - 7)][:"
            " fractions.size]].reshape(fractions.shape)"
        ),
        test=(
            "tests/contracts/test_additive_contract.py"
            "::TestGaussian::test_vectors_of_every_width_get_the_noise_of_their_event"
        ),
    ),
    Sabotage(
        "vectors of some widths get the noise of one coordinate",
        where="dpbo.mechanisms.gaussian:GaussianMechanism.norm",
        old="return sensitivity.l2",
        new="return sensitivity.linf if 3 <= len(sensitivity.scale) <= 99 else sensitivity.l2",
        test=(
            "tests/contracts/test_additive_contract.py"
            "::TestGaussian::test_noise_is_at_least_what_the_event_charges_for"
        ),
    ),
    Sabotage(
        "large sums get no noise",
        where="dpbo.mechanisms.additive:AdditiveMechanism._sample",
        old="return whole + self.noise(",
        new="return whole + (np.abs(exact) <= 2**50) * self.noise(",
        test=(
            "tests/contracts/test_additive_contract.py"
            "::TestGaussian::test_noise_is_added_to_the_exact_value"
        ),
    ),
    Sabotage(
        "offsets grow with the private number of units",
        where="dpbo.curator.releasing:_with_offsets",
        old="torch.tensor(_steps(affine, quanta), device=numerators.device)",
        new="torch.tensor(_steps(affine, quanta)) * numerators.abs().max().clamp(1) // 2**30",
        test=(
            "tests/contracts/test_utilities_contract.py"
            "::test_offsets_change_who_is_ahead_and_not_what_a_unit_moves"
        ),
    ),
    Sabotage(
        "a candidate is recommended without a handicap",
        where="dpbo.search.problem:Problem.recommend",
        old="if gain <= 0.0:",
        new="if released <= 0.0:",
        test=(
            "tests/integration/test_recommendation.py"
            "::test_a_candidate_that_is_no_better_is_recommended_with_the_stated_risk[LaplaceMechanism]"
        ),
    ),
    Sabotage(
        "a test's threshold is that of the nominal noise of a score",
        where="dpbo.search.problem:Problem.recommend",
        old="std = variance.sqrt().item()",
        new="std = reservation.noise_std.item()",
        test=(
            "tests/integration/test_recommendation.py"
            "::test_a_candidate_that_is_no_better_is_recommended_with_the_stated_risk[LaplaceMechanism]"
        ),
    ),
    Sabotage(
        "the noised gain is told as if it were a lower bound",
        where="dpbo.search.problem:Problem.recommend",
        old="replace(own, gain=gain,",
        new="replace(own, gain=released,",
        test=(
            "tests/integration/test_search_small.py"
            "::test_it_tunes_for_the_protected_population_where_the_free_choice_does_not"
        ),
    ),
    Sabotage(
        "a resumed search is tested by the clip of today",
        where="dpbo.search.problem:Problem.recommend",
        old="clip = asked[",
        new="clip = self.clip(x) or asked[",
        test=(
            "tests/integration/test_recommendation.py"
            "::test_a_resumed_search_is_tested_by_the_clip_and_the_noise_of_the_ledger"
        ),
    ),
    Sabotage(
        "a gain is tested by the clip that makes it seem largest",
        where="dpbo.search.recommendation:clip_of",
        old="kept = [signs * np.clip(",
        new="kept = [np.clip(",
        test=(
            "tests/integration/test_search_small.py"
            "::test_a_clip_is_a_quarter_of_the_range_or_more_and_hides_no_few_large_differences"
        ),
    ),
    Sabotage(
        "a choice between candidates and none charged as the exponential mechanism",
        where="dpbo.mechanisms.thresholded_exponential:ThresholdedExponentialMechanism.event",
        old="return ThresholdedExponentialEvent(self.noise_multiplier, count)",
        new=(
            "from dpbo.events import ExponentialEvent\n\n        return"
            " ExponentialEvent(self.noise_multiplier, count)"
        ),
        test=(
            "tests/contracts/test_thresholded_exponential_contract.py"
            "::TestThresholdedExponential::test_it_is_as_private_as_is_charged_in_every_order"
        ),
    ),
    Sabotage(
        "each of several candidates spends the risk of one",
        where="dpbo.mechanisms.thresholded_exponential:total_weight",
        old="return min(alone, risk / _MOST * count / (count - 1))",
        new="return count * alone",
        test=(
            "tests/contracts/test_thresholded_exponential_contract.py"
            "::TestThresholdedExponential::test_the_risk_is_attained_and_never_exceeded"
        ),
    ),
    Sabotage(
        "candidates are compared with the constant without a handicap",
        where="dpbo.mechanisms.thresholded_exponential:total_weight",
        old="alone = math.sqrt(2 * risk)",
        new="return float(count)",
        test=(
            "tests/contracts/test_thresholded_exponential_contract.py"
            "::TestThresholdedExponential::test_the_risk_is_attained_and_never_exceeded"
        ),
    ),
    Sabotage(
        "utilities are scaled by a quarter of l1",
        where="dpbo.mechanisms.choice:ChoiceMechanism.distribution",
        old="Fraction(sensitivity.linf) * _ROUND_UP",
        new="Fraction(sensitivity.l1) / 4 * _ROUND_UP",
        test=(
            "tests/contracts/test_choice_contract.py"
            "::TestExponential::test_neighbours_move_levels_by_no_more_than_the_law_says"
        ),
    ),
    Sabotage(
        "the best of more than a thousand candidates always wins",
        where="dpbo.mechanisms.choice:ChoiceMechanism._sample",
        old="distance = self.choose(filled, distribution.rate, entropy)",
        new=(
            "distance = self.choose(filled, distribution.rate, entropy) if len(utilities) <= 1000"
            " else 0"
        ),
        test=(
            "tests/contracts/test_choice_contract.py"
            "::TestExponential::test_among_many_near_equal_candidates_the_best_is_seldom_chosen"
        ),
    ),
    Sabotage(
        "noise of seven tenths of its scale",
        where="dpbo.mechanisms.additive:AdditiveMechanism.scale",
        old="return tuple(self.noise_multiplier * self.norm(",
        new="return tuple(0.7 * self.noise_multiplier * self.norm(",
        test=(
            "tests/contracts/test_additive_contract.py"
            "::TestGaussian::test_noise_is_at_least_what_the_event_charges_for"
        ),
    ),
    Sabotage(
        "noise of seven tenths, told as if it were whole",
        where="dpbo.mechanisms.additive:AdditiveMechanism._sample",
        old="np.asarray(distribution.scale) / np.asarray(distribution.grid), entropy)",
        new="0.7 * np.asarray(distribution.scale) / np.asarray(distribution.grid), entropy)",
        test=(
            "tests/contracts/test_additive_contract.py"
            "::TestGaussian::test_law_is_accepted_and_wrong_scales_are_rejected"
        ),
    ),
    Sabotage(
        "float noise added to a float value",
        where="dpbo.mechanisms.additive:AdditiveMechanism._sample",
        old=(
            "return whole + self.noise(fractions, np.asarray(distribution.scale) /"
            " np.asarray(distribution.grid), entropy)"
        ),
        new=(
            "wide = np.asarray(distribution.scale) / np.asarray(distribution.grid)\n"
            "        rng = np.random.default_rng(int.from_bytes(entropy(8), 'little'))\n"
            "        return np.floor(whole + fractions + wide * "
            "rng.normal(size=fractions.shape)).astype(np.int64)"
        ),
        test=(
            "tests/contracts/test_additive_contract.py"
            "::TestLaplace::test_law_is_accepted_and_wrong_scales_are_rejected"
        ),
    ),
    Sabotage(
        "permute-and-flip charged as the exponential mechanism",
        where="dpbo.mechanisms.permute_and_flip:PermuteAndFlipMechanism.event",
        old="return PermuteAndFlipEvent(self.noise_multiplier, count)",
        new=(
            "from dpbo.events import ExponentialEvent\n\n        return"
            " ExponentialEvent(self.noise_multiplier, count)"
        ),
        test=(
            "tests/contracts/test_choice_contract.py"
            "::TestPermuteAndFlip::test_no_order_diverges_further_than_is_charged"
        ),
    ),
    Sabotage(
        "the exponential mechanism's rate doubled",
        where="dpbo.mechanisms.exponential:ExponentialMechanism.choose",
        old="rate: Fraction, entropy: Entropy) -> int:",
        new="rate: Fraction, entropy: Entropy) -> int:\n        rate = 2 * rate",
        test=(
            "tests/unit/mechanisms/test_choice.py"
            "::test_at_the_edge_between_two_levels_further_bits_decide"
        ),
    ),
    Sabotage(
        "all rows of a table get the same l2-Laplace noise",
        where="dpbo.mechanisms.l2_laplace:L2LaplaceMechanism.noise",
        old="words = random_words(2 * rows.size, entropy).reshape(len(rows), -1)",
        new="words = np.tile(random_words(2 * rows.shape[1], entropy), (len(rows), 1))",
        test=(
            "tests/unit/mechanisms/test_l2_laplace.py"
            "::test_rows_of_a_table_have_noise_of_their_own[l2-laplace]"
        ),
    ),
    Sabotage(
        "noise never reaches its far tails",
        where="dpbo.mechanisms.rounding:by_both_ends",
        old="near, far = ends_of(distribution, k)",
        new="k = np.maximum(k, np.uint64(1 << 40))\n    near, far = ends_of(distribution, k)",
        test=(
            "tests/unit/mechanisms/test_rounding.py::test_the_extreme_word_is_decided_by_more_bits"
        ),
    ),
    # accounting
    Sabotage(
        "a run of one of several configurations costs the mean of their profiles",
        where="dpbo.accounting.selection_pairs:_both_directions",
        old="most = np.maximum.reduce(ups)",
        new="most = np.mean(ups, axis=0)",
        test=(
            "tests/unit/accounting/test_one_of.py"
            "::test_no_candidate_and_no_mixture_passes_the_largest_profile"
        ),
    ),
    Sabotage(
        "one of several candidates costs what the first of them costs",
        where="dpbo.accounting.event_costs:largest",
        old="worst = max(worst, together)",
        new="worst = worst or together",
        test=(
            "tests/unit/accounting/test_one_of.py"
            "::test_whatever_adds_costs_the_largest_of_the_candidates"
        ),
    ),
    Sabotage(
        "runs of several configurations are charged as runs of the first one",
        where="dpbo.dpsgd.planning:_plan",
        old="steps = run_event(fitted, adjacency)",
        new="steps = run_event(fitted[:1], adjacency)",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestSeveralConfigurations"
            "::test_all_cost_the_same_and_keep_the_budget_whichever_is_drawn"
        ),
    ),
    Sabotage(
        "each of several configurations is calibrated as if it were alone",
        where="dpbo.dpsgd.planning:_plan",
        old="fitted = with_least_noise(fitted)\n    multiplier",
        new="multiplier",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestSeveralConfigurations"
            "::test_all_cost_the_same_and_keep_the_budget_whichever_is_drawn"
        ),
    ),
    Sabotage(
        "an audit of one training takes delta's part of the bound for nothing",
        where="dpbo.testing.model_auditing:too_likely",
        old="excess = canaries * delta * scipy.special.expit(-epsilon)",
        new="excess = 0.0",
        test=(
            "tests/unit/testing/test_model_auditing.py"
            "::test_no_leak_makes_more_guesses_right_than_the_bound"
        ),
    ),
    Sabotage(
        "two kinds of release that share one dominating pair are composed as the last one alone",
        where="dpbo.accounting.selection_pairs:pairs_of",
        old="pairs[pair] += event.count",
        new="pairs[pair] = event.count",
        test=(
            "tests/unit/accounting/test_composition.py"
            "::test_mechanisms_that_share_a_dominating_pair_add_up"
        ),
    ),
    Sabotage(
        "a plan is within its cap as soon as one of its events is",
        where="dpbo.accounting.filters:Cost.__le__",
        old="return all(a <= b for a, b in self.beside(other))",
        new="return any(a <= b for a, b in self.beside(other))",
        test="tests/unit/accounting/test_planned.py::test_each_event_has_its_own_slots",
    ),
    Sabotage(
        "permute-and-flip gets the exponential mechanism's half of mu",
        where="dpbo.accounting.event_costs:mu_squared",
        old="float(one / 2 if isinstance(event, ExponentialEvent) else one)",
        new="float(one / 2 if isinstance(event, (ExponentialEvent, PermuteAndFlipEvent)) else one)",
        test=(
            "tests/unit/accounting/test_composition.py"
            "::test_exponentials_are_half_as_far_as_any_pure_mechanism"
        ),
    ),
    Sabotage(
        "Laplace noise is charged with a tenth of its pure epsilon",
        where="dpbo.accounting.event_costs:pure",
        old="return event.count / Fraction(event.noise_multiplier)",
        new="return event.count / Fraction(10 * event.noise_multiplier)",
        test=(
            "tests/contracts/test_additive_contract.py"
            "::TestLaplace::test_its_law_tells_neighbours_apart_as_far_as_is_charged"
        ),
    ),
    Sabotage(
        "a search's second choice gets the answer to its first",
        where="dpbo.search.problem:Problem.choose",
        old="reservation.release(query, candidates=asked)",
        new="reservation.release(query)",
        test=(
            "tests/integration/test_search.py"
            "::test_a_second_question_never_gets_the_first_ones_answer"
        ),
    ),
    Sabotage(
        "the Renyi bound of a selection takes the paper's ln(1/g - 1) for ln(1/g)",
        where="dpbo.accounting.selection_bounds:renyi",
        old="(1 - 1 / inner) * run_curve(inner) - math.log(run_count.gamma) / inner).min()",
        new=(
            "(1 - 1 / inner) * run_curve(inner) + math.log(max(1 / run_count.gamma - 1, 1e-9)) /"
            " inner).min()"
        ),
        test=(
            "tests/unit/accounting/test_selection_bounds.py"
            "::test_no_mechanism_passes_the_renyi_bounds"
        ),
    ),
    Sabotage(
        "losses that are atoms are rounded down to the grid",
        where="dpbo.accounting.pld:_discretised",
        old="share = -math.expm1(cell * step - loss) / -math.expm1(-step)",
        new="share = 0.0",
        test=(
            "tests/unit/accounting/test_composition.py"
            "::test_many_exponentials_cost_what_their_range_says"
        ),
    ),
    Sabotage(
        "zCDP and Renyi are read as epsilon with the order in place of the order less one",
        where="dpbo.accounting.renyi:conversions",
        old="(math.log(delta) + np.log(orders)) / (orders - 1.0)\n    return",
        new="(math.log(delta) + np.log(orders)) / orders\n    return",
        test="tests/unit/accounting/test_filters.py::test_rdp_agrees_with_dp_accounting",
    ),
    Sabotage(
        "adding converts to replacing at no price",
        where="dpbo.accounting.calibration:convert_adjacency",
        old="noise_multiplier=event.noise_multiplier / 2)",
        new="noise_multiplier=event.noise_multiplier)",
        test="tests/unit/accounting/test_composition.py::test_relations_are_converted_one_way",
    ),
    Sabotage(
        "a checkpoint takes steps back",
        where="dpbo.dpsgd.accountant:LedgerAccountant.load_state_dict",
        old=(
            "runs = {run: _longer(self._runs.get(run, []), steps) for run, steps in loaded.items()}"
        ),
        new="runs = {run: list(steps) for run, steps in loaded.items()}",
        test=(
            "tests/unit/dpsgd/test_ledger_accountant.py"
            "::test_a_checkpoint_is_merged_and_never_takes_anything_back"
        ),
    ),
    # curator and ledger
    Sabotage(
        "noise before the charge",
        where="dpbo.curator.releasing:Releases.draw",
        old="entry = self._charge(fresh, name, event, slots, reservation, used)",
        new=(
            "from dpbo.entropy import system_entropy\n"
            "        for handle, law in zip(fresh, laws, strict=True):\n"
            "            _, answer = answers[handle]\n"
            "            mechanism._sample(answer.numerators, answer.quanta, law, system_entropy)\n"
            "        entry = self._charge(fresh, name, event, slots, reservation, used)"
        ),
        test=(
            "tests/unit/curator/test_curator.py"
            "::test_the_charge_is_durable_before_the_noise_and_the_value_after"
        ),
    ),
    Sabotage(
        "a batch is charged as one release",
        where="dpbo.curator.pricing:event_of",
        old="plain = mechanism.event(len(queries))",
        new="plain = mechanism.event(1)",
        test="tests/unit/curator/test_curator.py::test_submit_gives_handles_from_an_executor",
    ),
    Sabotage(
        "a handle that was charged and lost is drawn again",
        where="dpbo.curator.releasing:Releases._uncharged",
        old="if handle in self._charged:",
        new="if self._charged.get(handle) is not None:",
        test=(
            "tests/unit/curator/test_curator.py"
            "::test_a_failure_after_the_charge_loses_the_value_for_good"
        ),
    ),
    Sabotage(
        "a charge that the next process overwrites",
        where="dpbo.ledger.storage:Storage.writing",
        old='"BEGIN IMMEDIATE" if self._sqlite',
        new='"BEGIN" if self._sqlite',
        test=(
            "tests/process/ledger/test_contract.py"
            "::test_births_at_once_are_one_birth_and_no_charge_overwrites_another[sqlite]"
        ),
    ),
    Sabotage(
        "a ledger that the power may empty",
        where="dpbo.ledger.storage:_sqlite_connect",
        old="PRAGMA synchronous=EXTRA",
        new="PRAGMA synchronous=OFF",
        test=(
            "tests/process/ledger/test_contract.py"
            "::test_a_charge_is_on_disk_with_its_folder_on_sqlite"
        ),
    ),
    Sabotage(
        "a charge beyond the cap by one",
        where="dpbo.ledger.ledger:Ledger._total_with",
        old="if not total <= self.cap:",
        new="if not Cost.read(self._head.total) <= self.cap:",
        test=(
            "tests/contracts/test_ledger_contract.py"
            "::TestSQLiteFile::test_charges_add_up_to_the_cap_and_not_beyond"
        ),
    ),
    Sabotage(
        "the chain forgets its predecessor",
        where="dpbo.ledger.entries:digest",
        old="dump([previous, *columns])",
        new="dump([*columns])",
        test="tests/process/ledger/test_rows.py::test_the_predecessor_is_under_the_hash[sqlite]",
    ),
    Sabotage(
        "an entry that was changed is taken at its word",
        where="dpbo.ledger.ledger:_require_hash",
        old="row.seq == place and row.hash == digest(last, *row[:-1])",
        new="row.seq == place",
        test=(
            "tests/attacks/test_holes_ledger.py"
            "::test_an_open_ledger_sees_every_change_of_records_that_it_has_read"
        ),
    ),
    Sabotage(
        "a reservation forgets what was charged to it",
        where="dpbo.ledger.ledger:Ledger.charge",
        old="after = before + event.count",
        new="after = before",
        test=(
            "tests/contracts/test_ledger_contract.py"
            "::TestSQLiteFile::test_a_reservation_takes_its_slots_from_the_budget_at_once"
        ),
    ),
    Sabotage(
        "a file that was put in the ledger's place is not looked at",
        where="dpbo.ledger.storage:Storage._errors_translated",
        old="found != self._left",
        new="self._left is None",
        test=(
            "tests/process/ledger/test_disk.py"
            "::test_an_older_copy_under_a_running_curator_is_seen[moved]"
        ),
    ),
    Sabotage(
        "a ledger that was read once is not looked at again",
        where="dpbo.ledger.ledger:Ledger._transaction",
        old="if self._seen is not None and not self._holds(connection, self._seen):",
        new="if False:",
        test=(
            "tests/contracts/test_ledger_contract.py"
            "::TestSQLiteFile::test_a_rollback_is_seen_by_whoever_knew_the_newest_record[read]"
        ),
    ),
    Sabotage(
        "a forked process takes the steps that its parent paid for",
        where="dpbo.dpsgd.accountant:LedgerAccountant._begin_run",
        old="self._paid = iter(())",
        new='self._paid = self.__dict__.get("_paid", iter(()))',
        test=(
            "tests/unit/dpsgd/test_ledger_accountant.py"
            "::test_steps_are_charged_in_blocks_before_they_are_taken_and_never_left_out"
        ),
    ),
    Sabotage(
        "steps of a run that a checkpoint tells of are taken again without a charge",
        where="dpbo.dpsgd.accountant:LedgerAccountant.load_state_dict",
        old="self._paid = iter(())",
        new="pass",
        test=(
            "tests/unit/dpsgd/test_ledger_accountant.py"
            "::test_steps_are_charged_in_blocks_before_they_are_taken_and_never_left_out"
        ),
    ),
    Sabotage(
        "a hook that is attached later displaces the charges of Opacus' own engine",
        where="dpbo.dpsgd.own_engine:Charges.attach",
        old="optimizer.add_noise = functools.partial(self._draw, optimizer, optimizer.add_noise)",
        new="optimizer.step_hook = lambda own: self._charge(own.noise_multiplier)",
        test=(
            "tests/integration/test_opacus_own_engine.py"
            "::test_each_optimizer_pays_for_its_own_steps_and_a_later_hook_displaces_no_charge"
        ),
    ),
    Sabotage(
        "a step of Opacus' own engine is charged after its noise",
        where="dpbo.dpsgd.own_engine:Charges._draw",
        old="self._require_planned(optimizer)",
        new="add_noise()\n            add_noise = lambda: None",
        test=(
            "tests/integration/test_opacus_own_engine.py"
            "::test_a_step_beyond_the_plan_raises_before_its_noise_and_however_often_it_is_tried"
        ),
    ),
    Sabotage(
        "a step of Opacus' own engine sums several samples",
        where="dpbo.dpsgd.own_engine:Charges._require_planned",
        old="if (samples := optimizer.accumulated_iterations) != 1:",
        new="if False:",
        test=(
            "tests/integration/test_opacus_own_engine.py"
            "::test_a_step_on_two_samples_is_refused_and_says_what_takes_large_ones"
        ),
    ),
    Sabotage(
        "each process of a training charges its steps",
        where="dpbo.dpsgd.accountant:LedgerAccountant.get_optimizer_hook_fn",
        old="self._ranks = Ranks()",
        new="pass",
        test=(
            "tests/process/ranks/test_failures.py"
            "::test_two_processes_train_one_model_in_opacus_own_engine_and_the_first_alone_charges"
        ),
    ),
    Sabotage(
        "each process trains a model of its own for one charge",
        where="dpbo.dpsgd.own_engine:Charges.attach",
        old='if several > 1 and not hasattr(optimizer, "world_size"):',
        new="if False:",
        test=(
            "tests/process/ranks/test_failures.py"
            "::test_two_processes_train_one_model_in_opacus_own_engine_and_the_first_alone_charges"
        ),
    ),
    Sabotage(
        "a forked process takes the first step that its parent paid for",
        where="dpbo.dpsgd.own_engine:Charges._require_planned",
        old="if os.getpid() != self._process:",
        new="if False:",
        test=(
            "tests/integration/test_opacus_own_engine.py"
            "::test_a_forked_process_takes_no_step_that_its_parent_paid_for"
        ),
    ),
    Sabotage(
        "whoever knows the script knows the noise",
        where="dpbo.dpsgd.own_engine:require_unknown_seed",
        old="if any(seed < _WRITTEN_SEEDS or seed in _inherited for seed in seeds):",
        new="if False:",
        test=(
            "tests/integration/test_opacus_own_engine.py"
            "::test_a_seed_that_somebody_wrote_is_refused_before_anything_is_reserved"
        ),
    ),
    Sabotage(
        "the noise follows a schedule of clips, and the clip does not",
        where="dpbo.dpsgd.own_engine:Charges._require_planned",
        old="if (fixed and clip != self._first) or {*self._clips} - {clip}:",
        new="if {*self._clips} - {clip}:",
        test=(
            "tests/integration/test_opacus_own_engine.py"
            "::test_a_clip_that_no_longer_scales_with_the_noise_is_refused"
        ),
    ),
    Sabotage(
        "a loss that clips nothing trains in ghost mode",
        where="dpbo.dpsgd.own_engine:Charges._sum",
        old="if _is_ghost(optimizer) and not vars(optimizer).pop(_CLIPPED, False):",
        new="if False:",
        test=(
            "tests/integration/test_opacus_own_engine.py"
            "::test_a_loss_that_clips_nothing_in_ghost_mode_is_refused"
        ),
    ),
    Sabotage(
        "relations are mixed: unsampled events pass as either",
        where="dpbo.ledger.birth:Birth.require_relation",
        old="if not event.relations() <= {self.adjacency.value}:",
        new="if False:",
        test=(
            "tests/contracts/test_ledger_contract.py"
            "::TestSQLiteFile::test_what_is_counted_under_another_relation_is_not_charged"
        ),
    ),
    Sabotage(
        "a plan is resumed without the terms that it was made with",
        where="dpbo.ledger.entries:Reserved.require_same",
        old="for term in {**wanted.terms, **self.terms}\n        ]",
        new="for term in wanted.terms\n        ]",
        test=(
            "tests/unit/curator/test_terms.py"
            "::test_a_session_resumes_under_all_terms_and_no_other[objective]"
        ),
    ),
    Sabotage(
        "conditional releases need no leave",
        where="dpbo.curator.releasing:Releases.require_allowed",
        old="if conditions and not self._allow_conditional:",
        new="if False:",
        test=(
            "tests/unit/curator/test_conditional.py"
            "::test_it_is_refused_unless_allowed_and_nothing_is_charged"
        ),
    ),
    Sabotage(
        "a scaler of all rows is looked for in the protected table alone",
        where="dpbo.records.scaled_tables:_is_scaled",
        old="any(_is_standard(each, near) for each in tables)",
        new="_is_standard(own, near)",
        test=(
            "tests/attacks/test_likely_slips.py"
            "::test_a_scaler_that_saw_protected_rows_is_warned_of[standard]"
        ),
    ),
    Sabotage(
        "samples of one fixed size",
        where="dpbo.entropy:bernoulli",
        old="heads = np.zeros(count, dtype=np.bool_)",
        new=(
            'words = np.frombuffer(keyed_stream(8 * count), dtype="<u8")\n'
            "    if count:\n"
            "        return words.argsort().argsort() < round(count * rate)\n"
            "    heads = np.zeros(count, dtype=np.bool_)"
        ),
        test="tests/unit/test_entropy.py::test_units_are_taken_by_themselves_and_anew",
    ),
    Sabotage(
        "a block is copied over the one that is worked on",
        where="dpbo.records.streaming:on_device",
        old="iter(buffers[number % 2])",
        new="iter(buffers[0])",
        test=(
            "tests/unit/records/test_streaming.py"
            "::test_the_next_block_is_copied_beside_the_one_that_is_worked_on"
        ),
    ),
    Sabotage(
        "a unit's rows are asked in two blocks",
        where="dpbo.records.view:PrivateView.can_be_views",
        old="self.groups is None and all(",
        new="all(",
        test=(
            "tests/unit/records/test_streaming.py"
            "::test_what_has_no_views_for_blocks_is_asked_as_a_whole[groups]"
        ),
    ),
    Sabotage(
        "losses that are kept stay in a buffer that is used again",
        where="dpbo.records.streaming:to_host",
        old="if not isinstance(part, Tensor):\n        return part\n    return",
        new=(
            "if not isinstance(part, Tensor) or not part.is_cuda:\n        return part\n    return"
        ),
        test=(
            "tests/unit/records/test_streaming.py"
            "::test_the_next_block_is_copied_beside_the_one_that_is_worked_on"
        ),
    ),
    Sabotage(
        "seeded noise leaves the statement standing",
        where="dpbo.curator.curator:Curator.__init__",
        old="lambda: entropy is not system_entropy",
        new="lambda: False",
        test="tests/unit/curator/test_curator.py::test_repeatable_noise_voids_the_statement",
    ),
    Sabotage(
        "a forked process goes on with its own copy of a ledger in memory",
        where="dpbo.ledger.lock:ProcessLock.__enter__",
        old="if os.getpid() != self._home:",
        new="if False:",
        test="tests/unit/curator/test_curator.py::test_a_forked_process_cannot_release",
    ),
    Sabotage(
        "ranks evaluate different models",
        where="dpbo.curator.curator:Curator.evaluate",
        old="(asked, details, Reached(asked))",
        new="(asked, details)",
        test=(
            "tests/process/ranks/test_failures.py"
            "::test_ranks_with_other_code_globals_or_models_are_refused_before_a_charge"
        ),
    ),
    Sabotage(
        "a unit's rows on two ranks pass",
        where="dpbo.curator.ranks:Ranks._meet",
        old="return any(self.gather_mark(repeated))",
        new="return False",
        test=(
            "tests/process/ranks/test_failures.py"
            "::test_labels_on_two_ranks_are_refused_on_all_before_there_is_a_ledger"
        ),
    ),
    Sabotage(
        "the letters of two texts of a row are interchangeable",
        where="dpbo.records.digests:_text_words",
        old="return _mixed(letters.astype(np.uint64) @ _keys(longest))",
        new="return letters.astype(np.uint64) @ _keys(longest)",
        test=(
            "tests/unit/records/test_digests.py::test_rows_that_differ_in_a_cell_have_other_digests"
        ),
    ),
    Sabotage(
        "a table's digest leaves out all blocks but the first",
        where="dpbo.records.digests:RowDigests._read",
        old="range(0, view.count, step)",
        new="range(0, min(view.count, step), step)",
        test=(
            "tests/unit/records/test_digests.py"
            "::test_the_digest_of_a_table_knows_every_row_and_no_order"
        ),
    ),
    Sabotage(
        "labels of several kinds are merged",
        where="dpbo.records.labels:_values",
        old="if len({*kinds.values()}) > 1:",
        new="if False:",
        test="tests/unit/records/test_labels.py::test_values_of_two_kinds_are_refused",
    ),
    Sabotage(
        "partial sums of ranks are added in floats",
        where="dpbo.curator.ranks:Ranks.reduce_tensor",
        old=(
            "moved = numbers.to(device, copy=True).contiguous()\n"
            "        with self._connected():\n"
            "            dist.reduce(moved, dst=self._members[0], group=group)\n"
            "            if self.rank == 0:\n"
            "                return moved.cpu()"
        ),
        new=(
            "moved = numbers.to(device, torch.float64, copy=True).contiguous()\n"
            "        with self._connected():\n"
            "            dist.reduce(moved, dst=self._members[0], group=group)\n"
            "            if self.rank == 0:\n"
            "                return moved.cpu().to(numbers.dtype)"
        ),
        test="tests/process/ranks/test_failures.py::test_partial_sums_are_added_in_whole_numbers",
    ),
    Sabotage(
        "every sum of hospitals has the same masks",
        where="dpbo.curator.secure_sum:Masks.masked",
        old="self._count += 1",
        new="self._count = 1",
        test=(
            "tests/unit/curator/test_secure_sum.py"
            "::test_every_word_is_uniform_and_no_two_sums_or_starts_share_a_stream"
        ),
    ),
    Sabotage(
        "a start returns to the masks of an earlier one",
        where="dpbo.curator.secure_sum:Masks.__init__",
        old="fresh = X25519PrivateKey.generate()",
        new="fresh = identity",
        test=(
            "tests/unit/curator/test_secure_sum.py"
            "::test_every_word_is_uniform_and_no_two_sums_or_starts_share_a_stream"
        ),
    ),
    Sabotage(
        "masks do not depend on the question",
        where="dpbo.curator.secure_sum:Masks.masked",
        old="pair.encode() + about",
        new="pair.encode()",
        test=(
            "tests/unit/curator/test_secure_sum.py"
            "::test_ranks_that_are_told_different_things_send_words_that_do_not_add_up"
        ),
    ),
    Sabotage(
        "every mask is shared with rank 0",
        where="dpbo.curator.secure_sum:Masks.masked",
        old="for other, secret in self._secrets.items():",
        new=(
            "for other, secret in self._secrets.items():\n"
            "            if self._rank and other:\n"
            "                continue"
        ),
        test=(
            "tests/unit/curator/test_secure_sum.py"
            "::test_all_other_ranks_but_one_read_nothing_of_a_hospital_and_all_others_read_its_word"
        ),
    ),
    Sabotage(
        "fingerprints of keys are not compared",
        where="dpbo.curator.secure_sum:Masks.__init__",
        old="if found != given:",
        new="if False:",
        test=(
            "tests/unit/curator/test_secure_sum.py"
            "::test_a_relay_that_exchanges_keys_is_noticed_by_fingerprints"
        ),
    ),
    Sabotage(
        "keys of files are left out of the masks",
        where="dpbo.curator.secure_sum:Masks.__init__",
        old="other: identity.exchange(public)",
        new="other: bytes(32)",
        test=(
            "tests/unit/curator/test_secure_sum.py"
            "::test_a_relay_that_exchanges_the_keys_of_this_start_alone_learns_no_stream"
        ),
    ),
    Sabotage(
        "silent ranks count for the noise",
        where="dpbo.mechanisms.shares:GaussianShare.scale",
        old="honest = self.ranks - self.tolerate",
        new="honest = self.ranks",
        test=(
            "tests/unit/mechanisms/test_shares.py"
            "::test_the_total_has_its_law_and_tolerated_silent_ranks_leave_that_of_the_charge"
        ),
    ),
    Sabotage(
        "silent ranks count for Laplace noise",
        where="dpbo.mechanisms.shares:LaplaceShare.noise",
        old="honest = self.ranks - self.tolerate",
        new="honest = self.ranks",
        test=(
            "tests/unit/mechanisms/test_shares.py"
            "::test_the_total_has_its_law_and_tolerated_silent_ranks_leave_that_of_the_charge"
        ),
    ),
    Sabotage(
        "ranks round to the grid and nobody pays for it",
        where="dpbo.mechanisms.shares:LaplaceShare.distribution",
        old="left = 1 - coordinates * Fraction(self.noise_multiplier) / _LEAST_STEPS",
        new="left = Fraction(1)",
        test=(
            "tests/unit/mechanisms/test_shares.py"
            "::test_whatever_a_unit_moves_is_paid_for_with_each_ranks_rounding_to_the_grid"
        ),
    ),
    Sabotage(
        "Laplace noise on a grid is charged as continuous noise",
        where="dpbo.mechanisms.shares:LaplaceShare",
        old="kind: ClassVar[type[Event]] = DiscreteLaplaceEvent",
        new="pass",
        test=(
            "tests/unit/mechanisms/test_shares.py"
            "::test_the_loss_on_a_grid_is_more_than_that_of_continuous_laplace_noise"
        ),
    ),
    Sabotage(
        "a budget pays for continuous noise and ranks draw on a grid",
        where="dpbo.curator.pricing:priced",
        old="event = in_shares(kind(1.0)).event()",
        new="event = kind(1.0).event()",
        test=(
            "tests/unit/mechanisms/test_shares.py"
            "::test_what_a_budget_pays_for_is_priced_as_what_ranks_draw"
        ),
    ),
    Sabotage(
        "the parameter of a discrete Laplace law is not rounded up",
        where="dpbo.mechanisms.polya:parameter",
        old="* ROUND_UP",
        new="",
        test=(
            "tests/unit/mechanisms/test_polya.py"
            "::test_the_parameter_is_rounded_up_so_that_the_price_holds"
        ),
    ),
    Sabotage(
        "floats decide the numbers of a Laplace share next to an edge",
        where="dpbo.mechanisms.polya:logarithmic",
        old="for i in np.flatnonzero(~np.isfinite(high) | (low != high)):",
        new="for i in np.flatnonzero(~np.isfinite(high)):",
        test=(
            "tests/unit/mechanisms/test_polya.py"
            "::test_a_number_next_to_an_edge_waits_for_the_bits_that_decide_it"
        ),
    ),
    Sabotage(
        "64 bits decide how many numbers a Laplace share adds up",
        where="dpbo.mechanisms.polya:poisson",
        old="for i in np.flatnonzero(surely != perhaps):",
        new="for i in range(0):",
        test=(
            "tests/unit/mechanisms/test_polya.py"
            "::test_a_count_next_to_a_tail_waits_for_the_bits_that_decide_it"
        ),
    ),
    Sabotage(
        "hospitals send sums without masks",
        where="dpbo.curator.ranks:Ranks.total",
        old="self._masks.masked(sent, about)",
        new="sent.astype('<i8').tobytes()",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_no_message_holds_a_partial_sum_a_share_or_a_total_without_noise"
        ),
    ),
    Sabotage(
        "a rank that failed sends what the others add up",
        where="dpbo.curator.ranks:Ranks.total",
        old="about = system_entropy(_DIGEST)",
        new="about = fingerprint((self._asked, ()))",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_what_one_rank_cannot_do_ends_on_all_and_no_other_learns_whose_fault_it_was"
        ),
    ),
    Sabotage(
        "an error between two steps of a method is told to nobody",
        where="dpbo.curator.ranks:_told",
        old="if not ranks.told:",
        new="if False:",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_where_one_rank_cannot_charge_or_draw_the_others_read_a_random_word"
        ),
    ),
    Sabotage(
        "a total is released where a rank could not charge",
        where="dpbo.curator.ranks:Ranks.total",
        old="if self.told and not failed:",
        new="if False:",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_where_one_rank_cannot_charge_or_draw_the_others_read_a_random_word"
        ),
    ),
    Sabotage(
        "a total of random words is released",
        where="dpbo.curator.shared_ledger:OwnLedger.release",
        old="if (np.abs(part.astype(np.float64)) > most_honest).any():",
        new="if False:",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_random_words_are_refused_and_a_chosen_shift_spoils_a_value_alone"
        ),
    ),
    Sabotage(
        "masks do not depend on what was charged",
        where="dpbo.curator.shared_ledger:OwnLedger.release",
        old="(self.head(), dump([each.law.to_json() for each in found]))",
        new="dump([each.law.to_json() for each in found])",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_random_words_are_refused_and_a_chosen_shift_spoils_a_value_alone"
        ),
    ),
    Sabotage(
        "hospitals' ledgers are not compared",
        where="dpbo.curator.shared_ledger:OwnLedger._asking",
        old='return f"{title} after entry {self._read} ({head[:8]})", (head, *question)',
        new="return title, question",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_a_ledger_that_differs_stops_all_and_a_lost_one_is_filled_again"
        ),
    ),
    Sabotage(
        "a ledger of another past is continued",
        where="dpbo.curator.shared_ledger:OwnLedger._catch_up",
        old="begins = theirs.startswith(mine)",
        new="begins = True",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_a_ledger_that_differs_stops_all_and_a_lost_one_is_filled_again"
        ),
    ),
    Sabotage(
        "a hospital writes entries that another one contradicts",
        where="dpbo.curator.shared_ledger:OwnLedger._catch_up",
        old="if others:",
        new="if False:",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_a_ledger_that_differs_stops_all_and_a_lost_one_is_filled_again"
        ),
    ),
    Sabotage(
        "a hospital's ledger is made void by another one's",
        where="dpbo.curator.shared_ledger:OwnLedger._add",
        old='if any(kind == "void" for kind, *_ in entries):',
        new="if False:",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_a_ledger_that_differs_stops_all_and_a_lost_one_is_filled_again"
        ),
    ),
    Sabotage(
        "one process draws the share of many",
        where="dpbo.curator.ranks:OneProcess.in_shares",
        old="return whole(mechanism)",
        new="return mechanism",
        test=(
            "tests/unit/mechanisms/test_shares.py"
            "::test_one_process_draws_the_whole_noise_where_it_is_given_a_share"
        ),
    ),
    Sabotage(
        "ranks draw the share of other ranks",
        where="dpbo.curator.ranks:Ranks.in_shares",
        old="mechanism = whole(mechanism)",
        new="if isinstance(mechanism, GaussianShare):\n            return mechanism",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_what_one_rank_cannot_do_ends_on_all_and_no_other_learns_whose_fault_it_was"
        ),
    ),
    Sabotage(
        "a hospital shows the ledger of a study of its own",
        where="dpbo.curator.curator:Curator.__init__",
        old='federated=ranks is not None and ranks.trust == "sum"',
        new="federated=False",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_what_one_rank_cannot_do_ends_on_all_and_no_other_learns_whose_fault_it_was"
        ),
    ),
    Sabotage(
        "a search plans with less noise than hospitals add",
        where="dpbo.search.problem:least_noise",
        old="cast(IndependentNoise, in_shares(payable))",
        new="payable",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_what_one_rank_cannot_do_ends_on_all_and_no_other_learns_whose_fault_it_was"
        ),
    ),
    Sabotage(
        "a rank confirms whatever it is told",
        where="dpbo.curator.secure_sum:Masks.unlike",
        old="if rows[other][own] != self._tag(other, self._rank, message)",
        new="if False",
        test=(
            "tests/unit/curator/test_secure_sum.py"
            "::test_a_message_that_another_changes_or_another_rank_holds_otherwise_is_not_confirmed"
        ),
    ),
    Sabotage(
        "fingerprints are compared with all that sha256sum prints",
        where="dpbo.curator.secure_sum:Masks.__init__",
        old="line.split()[0].lower()",
        new="line",
        test=(
            "tests/unit/curator/test_secure_sum.py"
            "::test_a_relay_that_exchanges_keys_is_noticed_by_fingerprints"
        ),
    ),
    Sabotage(
        "a hospital unpickles what another one sends",
        where="dpbo.curator.ranks:Ranks.run_together",
        old="if self._masks is not None:",
        new="if False:",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_what_one_rank_cannot_do_ends_on_all_and_no_other_learns_whose_fault_it_was"
        ),
    ),
    Sabotage(
        "a hospital believes a number of units below its own",
        where="dpbo.curator.ranks:Ranks.count_units",
        old="if total < view.units:",
        new="if False:",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_what_one_rank_cannot_do_ends_on_all_and_no_other_learns_whose_fault_it_was"
        ),
    ),
    Sabotage(
        "the private number of units is shown",
        where="dpbo.curator.ranks:Ranks.count_units",
        old="return total if public else None",
        new="return total",
        test=(
            "tests/process/ranks/test_hospitals.py"
            "::test_a_private_number_of_units_changes_no_size_of_a_message"
        ),
    ),
    Sabotage(
        "ranks do not see what was charged",
        where="dpbo.curator.shared_ledger:SharedLedger.change",
        old="copy.append(added)",
        new="",
        test=(
            "tests/process/ranks/test_failures.py::test_ranks_note_together_that_others_take_turns"
        ),
    ),
    Sabotage(
        "the statement prints what was spent",
        where="dpbo.curator.statements:compose_statement",
        old="protected = _guarantee(ledger, ledger.cap, at)",
        new="protected = _guarantee(ledger, chain.spent, at)",
        test="tests/unit/test_statement.py::test_the_guarantee_is_the_cap_whatever_was_spent",
    ),
    Sabotage(
        "conditional releases are told as unconditional",
        where="dpbo.curator.statements:_lines",
        old="if not conditions and guarantee == protected:",
        new="if guarantee == protected:",
        test="tests/unit/curator/test_conditional.py::test_three_lines_tell_three_guarantees",
    ),
    Sabotage(
        "epsilon printed to the nearest digit",
        where="dpbo.statement:format_up",
        old="_rounded(value, digits, ROUND_CEILING)",
        new='_rounded(value, digits, "ROUND_HALF_EVEN")',
        test=(
            "tests/unit/test_statement.py"
            "::test_twenty_five_gaussian_releases_of_total_mu_one_print_4_378"
        ),
    ),
    Sabotage(
        "notebooks show a conditional guarantee as a plain one",
        where="dpbo.statement:Statement.facts",
        old='"Guarantee": _line(self.stated())}',
        new='"Guarantee": str(self.guarantee)}',
        test=(
            "tests/attacks/test_holes_statements.py"
            "::test_every_surface_that_shows_a_guarantee_shows_what_it_hangs_on[assumed]"
        ),
    ),
    Sabotage(
        "the report's card shows a conditional guarantee as a plain one",
        where="dpbo.reporting.page:report",
        old="condition=statement.condition(),",
        new='condition="",',
        test=(
            "tests/attacks/test_holes_statements.py"
            "::test_every_surface_that_shows_a_guarantee_shows_what_it_hangs_on[both]"
        ),
    ),
    Sabotage(
        "a refusal names an accounting that would not have paid for what was released before",
        where="dpbo.ledger.facts:Facts.exceeded",
        old="[*self._bought.items(), (wanted, 1)]",
        new="[(wanted, 1)]",
        test="tests/unit/curator/test_curator.py"
        "::test_a_refusal_names_the_accounting_that_would_have_paid[Gaussian noise before]",
    ),
    Sabotage(
        "a plan states only what was released of its failure probability",
        where="dpbo.ledger.facts:Facts._reserve",
        old="Decimal(repr(probability)) * reserved.releases",
        new="Decimal(repr(probability)) * 0",
        test=(
            "tests/attacks/test_holes_statements.py"
            "::test_a_reserved_plan_states_from_the_start_how_probably_it_fails"
        ),
    ),
    Sabotage(
        "a release may fail more probably than its plan states",
        where="dpbo.ledger.entries:Reserved.require_declared",
        old="if probability > self.terms.get(FAILURE_PROBABILITY, 0.0):",
        new="if False:",
        test=(
            "tests/attacks/test_holes_statements.py"
            "::test_a_reserved_plan_states_from_the_start_how_probably_it_fails"
        ),
    ),
    # algorithms
    Sabotage(
        "the number of runs is one more than drawn",
        where="dpbo.dpsgd.hidden_runs:_largest",
        old="for _ in range(count):",
        new="for _ in range(count + 1):",
        test="tests/unit/dpsgd/test_private_selection.py::test_no_run_releases_nothing",
    ),
    Sabotage(
        "all hidden runs share one stream",
        where="dpbo.dpsgd.hidden_runs:_run",
        old="with isolate_generators(system_entropy), mute_warnings():",
        new="with mute_warnings():",
        test="tests/attacks/test_first_run.py::test_every_run_begins_a_stream_of_its_own",
    ),
    Sabotage(
        "hidden runs leave their tables among the protected ones",
        where="dpbo.dpsgd.hidden_runs:_run",
        old="protected_tables.put_back(protected)",
        new="pass",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_hidden_runs_leave_no_table_among_the_protected_ones"
        ),
    ),
    Sabotage(
        "hidden runs share a generator of the caller's",
        where="dpbo.dpsgd.selection:require_no_generator",
        old="if isinstance(value, _GENERATORS):",
        new="if False:",
        test=(
            "tests/attacks/test_first_run.py"
            "::test_a_generator_that_all_runs_would_share_is_refused_by_name_before_a_charge[numpy]"
        ),
    ),
    Sabotage(
        "a generator of a helper is not seen",
        where="dpbo.dpsgd.selection:require_no_generator",
        old="if refers_to(function, _GENERATORS):",
        new="if False:",
        test=(
            "tests/attacks/test_first_run.py"
            "::test_so_is_one_of_a_helper_a_partial_a_default_or_an_object"
        ),
    ),
    Sabotage(
        "the output that leaves is the object that was scored, or that later runs change",
        where="dpbo.dpsgd.selection:_leaving",
        old="return copied_output(output, unfitted), unfitted",
        new="copied_output(output, unfitted)\n        return output, unfitted",
        test=(
            "tests/unit/dpsgd/test_private_selection.py"
            "::test_the_output_that_leaves_is_not_the_object_that_was_scored"
        ),
    ),
    Sabotage(
        "a later run changes the winner's object",
        where="dpbo.dpsgd.outputs:copied_output",
        old="if kind in _MAPPINGS:",
        new="if kind in _MAPPINGS and all(map(_PLAIN.__contains__, map(type, output.values()))):\n"
        "        return output\n    if kind in _MAPPINGS:",
        test="tests/attacks/test_first_run.py::test_the_winner_is_as_its_own_run_left_it",
    ),
    Sabotage(
        "a hidden run's session need not be paid for",
        where="dpbo.dpsgd.engine:Session.make_private",
        old="if unpaid is not None:",
        new="if False:",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_a_hidden_run_trains_in_no_session_but_those_whose_cost_is_computed"
            "[its events by hand]"
        ),
    ),
    Sabotage(
        "one configuration pays for every session of a run",
        where="dpbo.dpsgd.engine:Session.make_private",
        old="unpaid.remove(taken)",
        new="pass",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_a_second_session_of_one_run_is_paid_for_like_the_first"
        ),
    ),
    Sabotage(
        "a parameter leaves with each record's gradient",
        where="dpbo.dpsgd.outputs:copied_output",
        old="alone = output.detach().clone(memory_format=torch.contiguous_format)",
        new="return output",
        test="tests/attacks/test_holes_training.py::test_what_is_listed_leaves",
    ),
    Sabotage(
        "a tensor leaves with all of its memory",
        where="dpbo.dpsgd.outputs:copied_output",
        old="output.detach().clone(memory_format=torch.contiguous_format)",
        new="output.detach()",
        test="tests/attacks/test_holes_training.py::test_what_is_listed_leaves",
    ),
    Sabotage(
        "a private selection releases the trained module itself",
        where="dpbo.dpsgd.outputs:copied_output",
        old="if isinstance(output, nn.Module) and is_rebuilt(output):",
        new="if isinstance(output, nn.Module):\n        return output\n    if False:",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_a_private_selection_releases_no_trained_module_but_the_rebuilt_one"
        ),
    ),
    Sabotage(
        "a hidden run draws conditional answers",
        where="dpbo.curator.hidden_draws:HiddenDraws.__call__",
        old="if conditions_of(query) or event.free:",
        new="if event.free:",
        test=(
            "tests/attacks/test_holes_statements.py"
            "::test_a_hidden_run_draws_nothing_that_the_statement_would_have_to_name[may fail]"
        ),
    ),
    Sabotage(
        "a hidden run draws exact answers",
        where="dpbo.curator.hidden_draws:HiddenDraws.__call__",
        old="if conditions_of(query) or event.free:",
        new="if conditions_of(query):",
        test=(
            "tests/attacks/test_holes_statements.py"
            "::test_a_hidden_run_draws_nothing_that_the_statement_would_have_to_name[exact]"
        ),
    ),
    Sabotage(
        "a hidden run writes to the ledger",
        where="dpbo.ledger.ledger:Ledger._write",
        old=(
            "if in_hidden_run.get() is not None and (self.storage.persistent or not"
            " self._made_in_hidden_run):"
        ),
        new="if False:",
        test="tests/attacks/test_first_run.py::test_no_run_leaves_a_record_in_a_ledger",
    ),
    Sabotage(
        "a hidden run's score is not noised",
        where="dpbo.curator.hidden_draws:HiddenDraws.__call__",
        old=(
            "return noised(query, outcome, distribution, mechanism, self._entropy,"
            " units=birth.units)"
        ),
        new=(
            "steps = outcome.numerators.double() * torch.tensor(outcome.quanta) / "
            "torch.tensor(distribution.grid).double()\n"
            "        return torch.from_numpy(mechanism.publish(steps.round().long().numpy(), "
            "distribution, query.affine(birth.units))[0])"
        ),
        test=(
            "tests/unit/dpsgd/test_private_selection.py"
            "::test_scores_inside_carry_the_noise_that_is_charged"
        ),
    ),
    Sabotage(
        "adaptive hidden runs may leave half of the promised density out",
        where="dpbo.dpsgd.hidden_runs:integer_weights",
        old="least = math.ceil(spread[0] * _ONE)",
        new="spread = spread[0] / 2, spread[1]\n    least = math.ceil(spread[0] * _ONE)",
        test=(
            "tests/unit/dpsgd/test_hypo.py"
            "::test_weights_keep_the_bounds_exactly_and_their_mean_is_one"
        ),
    ),
    Sabotage(
        "a job that an executor refused is forgotten",
        where="dpbo.algorithms.asynchronous:AsynchronousBO.run",
        old="self._submit_again(pool, Exception, KeyboardInterrupt)",
        new="self._jobs.clear()",
        test=(
            "tests/unit/algorithms/test_asynchronous.py"
            "::test_after_any_error_of_an_executor_the_next_run_goes_on_with_the_same_points"
        ),
    ),
    Sabotage(
        "the search looks at raw scores",
        where="dpbo.algorithms.asynchronous:AsynchronousBO._next_point",
        old="x = self._propose(X, Y, Yvar,",
        new=(
            "for job in self._jobs:\n"
            "            if job.future.done():\n"
            "                Y = Y + 1e-3 * "
            "float(self.objective.curator._answer(job.future.result())[1].numerators[0])\n"
            "        x = self._propose(X, Y, Yvar,"
        ),
        test=(
            "tests/unit/algorithms/test_asynchronous.py"
            "::test_in_order_every_point_and_value_is_the_same_however_long_jobs_take"
        ),
    ),
    Sabotage(
        "DP-GIBO steps along the raw gradient",
        where="dpbo.gibo.algorithm:DPGIBO.tell",
        old="self._advance(release.value, self._pending)",
        new=(
            "answer = self.curator._answer(self._pending)[1]\n"
            "        raw = answer.numerators.double() * answer.quanta[0] / (self.curator.units "
            "or 1)\n"
            "        self._advance(raw, self._pending)"
        ),
        test="tests/unit/gibo/test_gibo.py::test_the_released_gradients_carry_exactly_this_noise",
    ),
    Sabotage(
        "a value found by any acquisition is released by the bound of GP-UCB's regret",
        where="dpbo.papers.kusner.search:KusnerSearch._require_own_search",
        old="if self.acquisition is not None:",
        new="if False:",
        test="tests/unit/papers/test_kusner_search.py"
        "::test_where_the_bound_is_that_of_one_search_no_other_is_taken",
    ),
    Sabotage(
        "Kusner's public design counts the functions' difference, not the evaluations' noise",
        where="dpbo.papers.kusner.search:KusnerSearch.spread",
        old="_with_noise(2.0 * (1.0 - self.kappa) * inner, 2.0 * self.noise)",
        new="2.0 * (1.0 - self.kappa) * inner",
        test=(
            "tests/unit/papers/test_kusner_search.py"
            "::test_the_public_design_moves_the_posterior_mean_as_derived"
        ),
    ),
    Sabotage(
        "Theorem 1's sensitivity is bounded at one candidate and used at all",
        where="dpbo.papers.kusner.bounds:theorem_1",
        old="return 2.0 * math.sqrt(2.0 * math.log(3.0 * count / delta)) + c",
        new="return 2.0 * math.sqrt(2.0 * math.log(3.0 / delta)) + c",
        test="tests/unit/papers/test_kusner_bounds.py::test_printed_numbers",
    ),
    Sabotage(
        "the best regularised model gets noise for the narrowest range of a loss",
        where="dpbo.papers.kusner.regularised:RegularisedBest.sensitivity",
        old="widest = max(upper - lower for lower, upper in map(self._range, self.grid))",
        new="widest = min(upper - lower for lower, upper in map(self._range, self.grid))",
        test=(
            "tests/unit/papers/test_kusner_search.py"
            "::test_the_best_value_is_found_and_unconditional_over_the_whole_grid[whole grid]"
        ),
    ),
    Sabotage(
        "private factor analysis divides by the exact private number of records",
        where="dpbo.papers.em.factor_analysis:DPFactorAnalysis.fit",
        old="count = record_count(public, value[0], std[0])\nmean =",
        new="count = float(curator._Curator__view.units)\n            mean =",
        test=(
            "tests/unit/papers/test_em_kmeans_factors.py"
            "::test_nothing_depends_on_the_records_but_through_releases"
            "[Adjacency.ADD_OR_REMOVE_ONE-DPFactorAnalysis]"
        ),
    ),
    Sabotage(
        "a question asked again under its name is answered and charged anew",
        where="dpbo.papers.po_gp_ucb.curator_side:Outcomes._answer",
        old='charged += record.body["slots"]',
        new="pass",
        test=(
            "tests/unit/papers/test_po_gp_ucb_curator_side.py"
            "::test_an_outcome_is_not_looked_at_where_its_row_has_no_answer_left"
        ),
    ),
    # integrations
    Sabotage(
        "a search that is started again asks by other names",
        where="dpbo.papers.po_gp_ucb.modeler:search",
        old='f"{name} {row}.{asked[row]}"',
        new='f"{name} {id(asked)} {row}.{asked[row]}"',
        test=(
            "tests/integration/test_serving.py"
            "::test_a_search_that_is_started_again_gets_the_same_answers_and_charges_nothing"
        ),
    ),
    Sabotage(
        "a row is called found whatever its margin",
        where="dpbo.papers.po_gp_ucb.modeler:Modeler.recommend",
        old="best - margin > average",
        new="best > average",
        test=(
            "tests/unit/papers/test_po_gp_ucb_modeler.py"
            "::test_a_recommendation_has_a_margin_and_says_where_nothing_was_found"
        ),
    ),
    Sabotage(
        "trials may be pruned on raw values",
        where="dpbo.integrations.optuna.trials:require_suitable",
        old="if not isinstance(study.pruner, optuna.pruners.NopPruner):",
        new="if False:",
        test=(
            "tests/integration/test_optuna.py"
            "::test_studies_that_do_not_fit_are_refused_before_anything_is_fitted"
        ),
    ),
    Sabotage(
        "the recommended trial may break the study's constraints",
        where="dpbo.integrations.recommendation:highest",
        old="return int(mean.where(feasible, -torch.inf).argmax())",
        new="return int(mean.argmax())",
        test=(
            "tests/integration/test_optuna.py"
            "::test_a_trial_that_breaks_a_constraint_is_not_recommended"
        ),
    ),
    Sabotage(
        "a trial without a study's constraint counts as meeting it",
        where="dpbo.integrations.optuna.sampling:feasible_trials",
        old="(_constraint_values(study, trials) <= 0).all(1)",
        new="~(_constraint_values(study, trials) > 0).any(1)",
        test=(
            "tests/integration/test_optuna.py"
            "::test_a_trial_that_lacks_a_constraint_does_not_count_as_meeting_it"
        ),
    ),
    Sabotage(
        "a pruned point may be proposed again",
        where="dpbo.integrations.optuna.sampling:NoiseAwareSampler._not_pruned",
        old="if shown not in pruned:",
        new="if True:",
        test="tests/integration/test_optuna.py::test_a_pruned_point_is_never_proposed_again",
    ),
    Sabotage(
        "a trial that Optuna tries again is paid for twice",
        where="dpbo.integrations.optuna.trials:TrialObjective.__call__",
        old="if ENTRY in trial.user_attrs:",
        new="if False:",
        test=(
            "tests/integration/test_optuna.py"
            "::test_a_trial_that_optuna_tries_again_after_a_kill_is_paid_for_once"
        ),
    ),
    Sabotage(
        "Ax proposes another point after a private failure",
        where="dpbo.integrations.ax.experiments:ClientObjective.tell",
        old="except (PrivacyError, *LOST):",
        new="except ZeroDivisionError:",
        test=("tests/integration/test_ax.py::test_no_proposal_follows_a_private_failure"),
    ),
    Sabotage(
        "Ax proposes more trials than the budget covers",
        where="dpbo.integrations.ax.experiments:ClientObjective.ask",
        old="self.objective.remaining - len(self._running)",
        new="self.objective.remaining",
        test="tests/integration/test_ax.py::test_step_by_step",
    ),
    Sabotage(
        "a tuned model is handed out, and kept, with what Opacus left on it",
        where="dpbo.dpsgd.tuning:_trainer",
        old="return session.released()",
        new="return returned",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestTuning::test_the_model_and_its_files_hold_numbers_alone[once]"
        ),
    ),
    Sabotage(
        "the trial before a tuning trains on private records, which nothing pays for",
        where="dpbo.dpsgd.tuning:_Study.try_first",
        old="self.train(self.space.decode(x), tried)",
        new="self.train(self.space.decode(x))",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestTrial::test_it_takes_all_steps_on_zeros_at_both_ends_and_moves_no_generator"
        ),
    ),
    Sabotage(
        "the trial before a tuning ends before a fit that stops early would",
        where="dpbo.dpsgd.tuning:_Study.try_first",
        old="samples = None if place < len(self.tried) else _TRIED_STEPS",
        new="samples = _TRIED_STEPS",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestTrial"
            "::test_a_fit_that_takes_fewer_steps_than_configured_is_refused_before_a_charge"
        ),
    ),
    Sabotage(
        "the trial before a tuning runs through the ends of one configuration alone",
        where="dpbo.dpsgd.tuning:_ends",
        old="[places % count]",
        new="[places * 0]",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestTrial"
            "::test_a_configuration_or_default_that_stops_early_is_refused_wherever_it_is"
            "[selection-1]"
        ),
    ),
    Sabotage(
        "a DP-SGD run is charged as the plan says, whatever it trains by",
        where="dpbo.dpsgd.tuning:_Models.__init__",
        old="run = RolesEvent(costs=((_TRAINING, (run_event(study.plan.configs, adjacency),)),))",
        new="run = study.plan.events[-2].repeated(1)",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestSeveralConfigurations"
            "::test_runs_that_train_by_less_noise_than_was_planned_are_refused[search]"
        ),
    ),
    Sabotage(
        "the better of two noised scores replaces the default",
        where="dpbo.dpsgd.gains:gain_test",
        old="if exceeded(0.0) >= 0.0:",
        new="if True:",
        test=(
            "tests/unit/dpsgd/test_gains.py"
            "::test_models_that_are_alike_replace_the_default_with_the_stated_risk"
        ),
    ),
    Sabotage(
        "the best of several scores is tested against the default as one score is",
        where="dpbo.dpsgd.gains:gain_test",
        old="run_count.generating(scipy.special.ndtr(_PLACES + h))",
        new="scipy.special.ndtr(_PLACES + h)",
        test=(
            "tests/unit/dpsgd/test_gains.py"
            "::test_models_that_are_alike_replace_the_default_with_the_stated_risk"
        ),
    ),
    Sabotage(
        "a gain is told over a default run that failed",
        where="dpbo.dpsgd.tuning:_Study.told",
        old="return None if models.kept(self.default) is None else gain",
        new="return gain",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestSeveralConfigurations::test_a_default_that_fails_has_no_gain_over_it"
        ),
    ),
    Sabotage(
        "a study with another default goes on as the first one's",
        where="dpbo.dpsgd.tuning:_Models.__init__",
        old="if study.fixed:",
        new="if False:",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestSeveralConfigurations::test_a_study_goes_on_with_its_own_default_alone"
        ),
    ),
    Sabotage(
        "DP-SGD divides by the private number of records",
        where="dpbo.dpsgd.engine:NoisedEngine._prepare_optimizer",
        old="expected_batch_size=self.config.batch_size,",
        new="expected_batch_size=len(self.dataset) // self.config.batches,",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestSession::test_it_gives_out_exactly_its_steps_as_fresh_poisson_samples"
        ),
    ),
    Sabotage(
        "a DP-SGD run is paid for after it was trained, and one that fails is not",
        where="dpbo.dpsgd.tuning:_Models.fit",
        old=(
            "self._reservation.charge(details)\n"
            "        try:\n"
            "            model = self._study.train(self._study.space.decode(x))\n"
            "        except Exception as error:\n"
            "            if isinstance(error, INTERRUPTS):\n"
            "                raise\n"
            "            return None"
        ),
        new=(
            "try:\n"
            "            model = self._study.train(self._study.space.decode(x))\n"
            "        except Exception:\n"
            "            return None\n"
            "        self._reservation.charge(details)"
        ),
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestTuning::test_a_run_is_paid_for_before_it_sees_a_record"
        ),
    ),
    Sabotage(
        "a second step of DP-SGD on one sample passes",
        where="dpbo.dpsgd.noise:NoisedOptimizer.clip_and_accumulate",
        old="if self._samples.stepped == self._samples.drawn:",
        new="if not self._samples.drawn:",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_a_second_step_on_one_sample_is_refused_and_charges_nothing"
        ),
    ),
    Sabotage(
        "DP-SGD's noise has nine tenths of its size",
        where="dpbo.dpsgd.noise:_noised",
        old="scale = std * ROUND_UP",
        new="scale = 0.9 * std * ROUND_UP",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_the_noise_is_gaussian_on_a_public_grid_and_fresh_at_every_draw"
        ),
    ),
    Sabotage(
        "parts of a sample are summed in float32 as if each were the whole",
        where="dpbo.dpsgd.noise:_weighted_sum",
        old="_BLOCK_TERMS // max(records, 1)",
        new="_BLOCK_TERMS // max(count, 1)",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_sums_are_exact_within_what_the_proof_of_their_sensitivity_allows[20000-64]"
        ),
    ),
    Sabotage(
        "a record's factor for which float32 has no normal number is flushed to zero",
        where="dpbo.dpsgd.noise:_weighted_sum",
        old="if on_cpu and normal and",
        new="if on_cpu and",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_sums_are_exact_within_what_the_proof_of_their_sensitivity_allows[129-129]"
        ),
    ),
    Sabotage(
        "a sample is summed in float32 in one block",
        where="dpbo.dpsgd.noise:_weighted_sum",
        old="min(_BLOCK_TERMS // max(records, 1), _MOST_ROWS)",
        new="1 << 20",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_sums_are_exact_within_what_the_proof_of_their_sensitivity_allows[1000-1000]"
        ),
    ),
    Sabotage(
        "noise that a GPU draws has one key for all steps",
        where="dpbo.dpsgd.device_noise:rounded_on_device",
        old="entropy(32)",
        new="bytes(32)",
        test="tests/unit/gpu/test_noise.py::test_interpreted_it_gives_the_cpus_integers",
    ),
    Sabotage(
        "noise that a GPU draws has nine tenths of its size",
        where="dpbo.dpsgd.noise:_noised",
        old="clamp_(max=_BELOW_ONE), scale / grid)",
        new="clamp_(max=_BELOW_ONE), 0.9 * scale / grid)",
        test="tests/unit/gpu/test_noise.py::test_interpreted_it_gives_the_cpus_integers",
    ),
    Sabotage(
        "how many records there are decides which gradients' norms are taken together",
        where="dpbo.dpsgd.noise:_groups",
        old="gradient.shape[1] <= room",
        new="len(gradient) <= 1 << 19",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_no_records_factor_depends_on_how_many_there_are_or_how_they_lie_in_memory"
        ),
    ),
    Sabotage(
        "a gradient's norm is summed in the order in which it lies in memory",
        where="dpbo.dpsgd.noise:NoisedOptimizer.clip_and_accumulate",
        old="gradient.shape[1:])).contiguous()",
        new="gradient.shape[1:]))",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_no_records_factor_depends_on_how_many_there_are_or_how_they_lie_in_memory"
        ),
    ),
    Sabotage(
        "gradients of DP-SGD are clipped block by block of coordinates",
        where="dpbo.dpsgd.noise:_factors",
        old="squares = squares + part",
        new="squares = part",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_a_record_moves_the_float_sum_by_at_most_the_clip_and_one_nearly_does[dtype0]"
        ),
    ),
    Sabotage(
        "DP-SGD's steps are charged by a hook that another one replaces",
        where="dpbo.dpsgd.noise:NoisedOptimizer.add_noise",
        old="self._charge(self)",
        new="self.step_hook = self.step_hook or self._charge",
        test="tests/integration/test_opacus_noise.py::test_a_hook_of_the_users_displaces_no_charge",
    ),
    Sabotage(
        "a released model is a copy of the trained one, with what it kept",
        where="dpbo.dpsgd.rebuilding:PublicCopy.rebuilt",
        old="released = _copied(self._copy, tensors).eval()",
        new="released = _copied(self._module, _fresh_tensors(self._module)).eval()",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_the_model_that_leaves_follows_from_noised_parameters_alone[nothing]"
        ),
    ),
    Sabotage(
        "parameters may change in a forward pass",
        where="dpbo.dpsgd.rebuilding:PublicCopy.require_unchanged",
        old="_require_same(self._stepped, _places(self._module))",
        new="pass",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_a_loop_that_writes_to_parameters_gives_no_model[False-in place]"
        ),
    ),
    Sabotage(
        "hidden runs share their parameters",
        where="dpbo.dpsgd.hidden_runs:_run",
        old="copy.deepcopy(space.decode(x))",
        new="space.decode(x)",
        test=(
            "tests/attacks/test_first_run.py"
            "::test_a_run_that_changes_its_parameters_changes_no_other_runs"
        ),
    ),
    Sabotage(
        "what draws for hidden runs draws outside them, too",
        where="dpbo.curator.hidden_draws:HiddenDraws.__call__",
        old="if in_hidden_run.get() is None:",
        new="if False:",
        test=(
            "tests/unit/dpsgd/test_private_selection.py"
            "::test_what_draws_for_hidden_runs_draws_for_nothing_else[after]"
        ),
    ),
    Sabotage(
        "an error of a user's query shows a record",
        where="dpbo.curator.evaluation:Job._outcome",
        old='return Failure("exception")',
        new="raise",
        test=(
            "tests/attacks/test_own_queries.py"
            "::test_an_error_of_a_users_query_shows_no_record[ValueError]"
        ),
    ),
    Sabotage(
        "text hides protected rows among the training rows",
        where="dpbo.search.search:DPSearch._curator",
        old="own = _in_form(form, X_val, y_val)",
        new="own = (X_val, y_val)",
        test=(
            "tests/attacks/test_roles.py"
            "::test_protected_rows_among_public_training_rows_are_refused"
        ),
    ),
    Sabotage(
        "a kernel with a kink passes",
        where="dpbo.models.kernels:Autodiff.prior",
        old="rounding = 1e-6 * float(K.abs().max())",
        new="rounding = 1e300",
        test=(
            "tests/unit/models/test_kernel_derivatives.py"
            "::test_a_kernel_whose_process_has_no_gradient_or_whose_code_hides_it_is_refused"
            "[Brownian]"
        ),
    ),
    Sabotage(
        "a module that mixes the records of a sample is trained",
        where="dpbo.dpsgd.rebuilding:PublicCopy._try",
        old="or not _close(",
        new="or False and not _close(",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_code_that_mixes_the_records_of_a_sample_is_refused_whatever_they_are[mean]"
        ),
    ),
    Sabotage(
        "batch norm is trained in training mode",
        where="dpbo.dpsgd.rebuilding:_require_trainable",
        old="if keeps or mixes:",
        new="if False:",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_layers_that_are_known_are_refused_before_a_forward_pass"
        ),
    ),
    Sabotage(
        "a sample may be skipped",
        where="dpbo.dpsgd.noise:PoissonSamples._counted",
        old="if self.stepped != self.drawn:",
        new="if False:",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_an_engine_refuses_the_next_sample_after_a_skipped_step"
        ),
    ),
    Sabotage(
        "a sample with a record that cannot be read is left out",
        where="dpbo.dpsgd.noise:PoissonSamples._counted",
        old="self.drawn += 1\n                    raise",
        new="raise",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_a_sample_that_could_not_be_loaded_is_not_left_out[1]"
        ),
    ),
    Sabotage(
        "a training may stop early",
        where="dpbo.dpsgd.engine:Session.released",
        old="if self._engine is None or self._engine.steps != self._most:",
        new="if self._engine is None:",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_a_loop_that_skips_or_stops_for_its_loss_gives_no_model[stops]"
        ),
    ),
    Sabotage(
        "a fit may return something that is not noised",
        where="dpbo.dpsgd.tuning:_trainer",
        old="if not session.is_model(returned):",
        new="if False:",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_a_fit_that_returns_anything_but_its_model_gives_none"
        ),
    ),
    Sabotage(
        "a loader's sampler is dropped in silence",
        where="dpbo.dpsgd.engine:NoisedEngine.make_private",
        old="if not whole and not isinstance(sampler, (PoissonSamples, poisson)):",
        new="if False:",
        test=(
            "tests/integration/test_habits.py"
            "::test_a_sampler_that_would_be_dropped_and_a_stream_are_refused_with_what_to_do"
        ),
    ),
    Sabotage(
        "an engine trains on other records than its curator's",
        where="dpbo.dpsgd.engine:PrivateEngine._prepare_data_loader",
        old=(
            "if not self._curator.protected.are(data_loader.dataset) and not"
            " self._curator.protected.are(_table(data_loader.dataset)):"
        ),
        new="if False:",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_a_loader_of_other_records_than_the_curators_is_refused_without_their_number"
        ),
    ),
    Sabotage(
        "a training run that was killed is not told of",
        where="dpbo.dpsgd.tuning:_tell_resumed",
        old="lost = begun - kept",
        new="lost = 0",
        test=(
            "tests/integration/test_opacus_tuning.py"
            "::TestTuning::test_the_log_tells_of_a_run_that_was_killed"
        ),
    ),
    Sabotage(
        "a seed that a loop sets makes dropout's masks known",
        where="dpbo.dpsgd.noise:PoissonSamples._hide_generators",
        old="self._before.seed(system_entropy)",
        new="if not self.stepped:\n            self._before.seed(system_entropy)",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_a_seed_before_or_between_samples_does_not_make_masks_known[session]"
        ),
    ),
    Sabotage(
        "a loader's workers draw by a seed of the caller's",
        where="dpbo.dpsgd.noise:SeedWorker.__call__",
        old="self._own(worker)\n        generators.seed(system_entropy)",
        new="self._own(worker)",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_workers_load_ahead_and_a_sample_counts_where_the_loop_gets_it[False]"
        ),
    ),
    Sabotage(
        "a training leaves the caller's generators as its records moved them",
        where="dpbo.dpsgd.noise:PoissonSamples._show_generators",
        old="self._before.restore()",
        new="pass",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_the_callers_generators_are_the_same_after_a_training_of_any_size[True]"
        ),
    ),
    Sabotage(
        "what a fit draws after its loop moves the caller's generators",
        where="dpbo.dpsgd.tuning:_PaidSession._note_records",
        old="self.private.enter_context(private_generators)",
        new="",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_a_buffer_drawn_in_a_later_run_does_not_tell_the_number_of_records"
        ),
    ),
    Sabotage(
        "a mean loss is trained in half precision between layers",
        where="dpbo.dpsgd.rebuilding:PublicCopy._try",
        old="self.is_precise and seen.found <= _PRECISE",
        new="self.is_precise",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_a_mean_loss_is_refused_in_half_precision[between layers]"
        ),
    ),
    Sabotage(
        "a module whose trial shows nothing is trained",
        where="dpbo.dpsgd.rebuilding:PublicCopy._try",
        old="if (not axes or None in axes or",
        new="if (not axes and None in axes or",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_a_module_that_mixes_records_or_whose_trial_shows_nothing_is_refused[a loss]"
        ),
    ),
    Sabotage(
        "a module whose trial fails is trained",
        where="dpbo.dpsgd.rebuilding:PublicCopy._try",
        old="if len(returned) < 3:",
        new="if False:",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_a_module_that_mixes_records_or_whose_trial_shows_nothing_is_refused[fails]"
        ),
    ),
    Sabotage(
        "a loop calls a method of the module, which no trial has tried",
        where="dpbo.dpsgd.noise:NoisedOptimizer.clip_and_accumulate",
        old="self._model.require_tried()",
        new="",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_a_loop_that_calls_a_method_of_the_module_takes_no_step"
        ),
    ),
    Sabotage(
        "a released model tells how many hooks the process had",
        where="dpbo.dpsgd.rebuilding:_copied",
        old="for layer in twin.modules():",
        new="for layer in ():",
        test=(
            "tests/attacks/test_released_models.py"
            "::test_the_model_that_leaves_follows_from_noised_parameters_alone[hook]"
        ),
    ),
    Sabotage(
        "a module that is trained on keeps the mark of one that was rebuilt",
        where="dpbo.dpsgd.rebuilding:PublicCopy.__init__",
        old="mark_rebuilt(module.modules(), rebuilt=False)",
        new="",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_a_released_module_that_is_trained_on_does_not_leave"
        ),
    ),
    Sabotage(
        "a fit computes with the records beside its loader",
        where="dpbo.dpsgd.tuning:tune",
        old='require_unnamed("fit", fit, records, role, _FROM_LOADER)',
        new="pass",
        test=(
            "tests/attacks/test_holes_training.py"
            "::test_a_fit_whose_code_leads_to_the_records_is_refused[closure]"
        ),
    ),
    Sabotage(
        "a fit of an objective trains on the table that holds the protected rows",
        where="dpbo.records.protected_records:require_unnamed",
        old="if same or _share_rows",
        new="if same and _share_rows",
        test="tests/attacks/test_likely_slips.py::test_training_on_the_whole_table_is_refused",
    ),
    Sabotage(
        "a search's functions may take the table that holds the protected rows",
        where="dpbo.search.search:DPSearch._curator",
        old='require_unnamed(name, value, (X_val, y_val), "validation")',
        new="pass",
        test=(
            "tests/attacks/test_likely_slips.py"
            "::test_a_search_whose_functions_use_the_whole_table_is_refused"
        ),
    ),
    Sabotage(
        "a key that code binds again counts as what it was before",
        where="dpbo.records.named_tables:_Reader._step",
        old="elif line.argval in names and line.argval not in self._bound:",
        new="elif line.argval in names:",
        test=(
            "tests/unit/records/test_named_tables.py"
            "::test_code_that_takes_protected_rows_is_refused[bound again]"
        ),
    ),
    Sabotage(
        "what is computed of a table, such as its number of rows, counts as public",
        where="dpbo.records.named_tables:_Reader.chain",
        old="if _is_table(stack[0]) or not _is_table(found[1]):",
        new="if True:",
        test=(
            "tests/unit/records/test_named_tables.py"
            "::test_code_that_takes_protected_rows_is_refused[number of rows]"
        ),
    ),
    Sabotage(
        "a Dataset that may read files is read to compare it",
        where="dpbo.records.protected_records:_in_memory",
        old="None if isinstance(base, Dataset) else table",
        new="table",
        test=(
            "tests/unit/records/test_named_tables.py"
            "::test_datasets_are_compared_in_memory_or_by_identity"
        ),
    ),
    Sabotage(
        "labels are joined to a table of another index by their place",
        where="dpbo.records.labels:require_one_index",
        old="not labels.index.equals(table.index)",
        new="False",
        test="tests/attacks/test_likely_slips.py::test_labels_with_another_index_are_refused",
    ),
    Sabotage(
        "records of which none has the public form count as the worst",
        where="dpbo.records.view:PrivateView.of",
        old="if count > 1 and marks.all() and not shard:",
        new="if False:",
        test="tests/attacks/test_likely_slips.py::test_labels_in_other_words_are_refused",
    ),
    # the form of private tables, and the trial of scores
    Sabotage(
        "a whole number's column takes what dtype the private cells have",
        where="dpbo.records.form:Column._numbers",
        old="unfit |= ~fits\n        return found",
        new="unfit |= ~fits\n        return numbers if not fits.all() else found",
        test="tests/attacks/test_tables.py::test_one_cell_changes_no_other_record_of_a_column",
    ),
    Sabotage(
        "private tables are not cast to the public form",
        where="dpbo.records.view:PrivateView.of",
        old="in_form, marks = form.cast(load(records))",
        new="in_form, marks = load(records), form.cast(load(records))[1]",
        test=(
            "tests/attacks/test_tables.py::test_a_missing_value_moves_the_exact_sum_by_one_at_most"
        ),
    ),
    Sabotage(
        "a record without a value in the public form is scored as its stand-in",
        where="dpbo.queries.score_evaluation:_with_unfit_as_nan",
        old="yield floats.masked_fill(unfit.unsqueeze(1), torch.nan)",
        new="yield floats",
        test="tests/attacks/test_tables.py::test_only_an_unfit_record_counts_as_the_worst",
    ),
    Sabotage(
        "training rows keep the dtype that protected cells gave their table",
        where="dpbo.search.search:DPSearch.fit",
        old="map(training.own_form, (tables.X_train, tables.y_train))",
        new="(tables.X_train, tables.y_train)",
        test=(
            "tests/integration/test_search.py"
            "::test_one_protected_cell_does_not_change_the_dtype_of_training_rows"
        ),
    ),
    Sabotage(
        "tables are taken without a public form",
        where="dpbo.records.form:require_known_form",
        old='if _is_table(part) or (numeric and kind not in f"{_NUMBERS}c"):',
        new='if numeric and kind not in f"{_NUMBERS}c":',
        test=(
            "tests/attacks/test_tables.py"
            "::test_without_public_records_no_form_that_follows_from_all_cells_is_taken"
        ),
    ),
    Sabotage(
        "a score that is not repeatable is passed over",
        where="dpbo.records.examples:examine",
        old="raise ScoreError(_NOT_REPEATABLE.format(view.count))",
        new="return",
        test="tests/unit/testing/test_per_record.py::test_what_is_not_repeatable_is_refused",
    ),
    Sabotage(
        "scores are tried while the generators run on",
        where="dpbo.records.examples:_called",
        old="with fix_generators():",
        new="if True:",
        test=(
            "tests/unit/testing/test_per_record.py"
            "::test_a_score_in_training_mode_is_tried_with_fixed_generators"
        ),
    ),
    Sabotage(
        "only the first model is tried",
        where="dpbo.curator.evaluation:Job._probe",
        old="elif self.probed or place:\n                examine_again(",
        new="elif self.probed or place:\n                (lambda *_: None)(",
        test=(
            "tests/unit/testing/test_per_record.py::test_every_model_is_tried_also_on_a_used_ledger"
        ),
    ),
    Sabotage(
        "no hostile cells are put into tables and lists",
        where="dpbo.records.examples:_put",
        old="first = ",
        new="return part\n    first = ",
        test=(
            "tests/unit/testing/test_per_record.py"
            "::test_scores_that_depend_on_the_batch_are_found_in_every_container"
        ),
    ),
    Sabotage(
        "what a score writes into its argument is there in the next call",
        where="dpbo.queries.score_evaluation:ask",
        old="score(copy_mutable(subject), records)",
        new="score(subject, records)",
        test=(
            "tests/attacks/test_holes_scores.py"
            "::test_what_a_score_writes_into_its_argument_reaches_no_other_call[score-tensor]"
        ),
    ),
    Sabotage(
        "scores that should get one record at a time get all",
        where="dpbo.queries.score_evaluation:score_records",
        old="if not view.one_at_a_time:",
        new="if True:",
        test=(
            "tests/unit/queries/test_one_at_a_time.py"
            "::test_a_score_over_the_batch_sees_no_other_record"
        ),
    ),
    Sabotage(
        "one model goes from record to record with what it kept",
        where="dpbo.queries.score_evaluation:_one_by_one",
        old="own_score, own_subject = copy.deepcopy((score, subject))",
        new="own_score, own_subject = score, subject",
        test=(
            "tests/unit/queries/test_one_at_a_time.py"
            "::test_a_model_in_training_mode_starts_anew_for_each_record"
        ),
    ),
    Sabotage(
        "a ledger of one record at a time is opened for scores of batches",
        where="dpbo.ledger.ledger:Ledger.__init__",
        old="in birth.to_json().items():",
        new='in {**birth.to_json(), "one_at_a_time": made_for["one_at_a_time"]}.items():',
        test=(
            "tests/unit/queries/test_one_at_a_time.py"
            "::test_the_statement_rests_on_less_and_a_ledger_is_for_one_way_of_scoring"
        ),
    ),
    # one record in two roles, under two budgets, or in another order
    Sabotage(
        "training records are not remembered",
        where="dpbo.dpsgd.tuning:tune",
        old="curator.protected.add(training, role=_TRAINING)",
        new="",
        test=(
            "tests/attacks/test_roles.py"
            "::test_a_second_budget_over_the_same_training_records_is_refused"
        ),
    ),
    Sabotage(
        "records of both roles are tuned on",
        where="dpbo.dpsgd.tuning:tune",
        old='require_other_rows("training", training, study.view, "validation", _TWO_ROLES)',
        new="pass",
        test=(
            "tests/attacks/test_roles.py"
            "::test_records_of_both_roles_are_refused_before_there_is_a_ledger"
        ),
    ),
    Sabotage(
        "protected rows train a model in the open",
        where="dpbo.search.search:DPSearch._curator",
        old='require_other_rows("X_train", trainer.table(), own, "validation", _IN_THE_OPEN)',
        new="pass",
        test=(
            "tests/attacks/test_roles.py"
            "::test_protected_rows_among_public_training_rows_are_refused"
        ),
    ),
    Sabotage(
        "an engine's records are not noted",
        where="dpbo.dpsgd.engine:NoisedEngine.make_private",
        old='warnings.simplefilter("always", RepeatedRecordsWarning)',
        new="",
        test="tests/attacks/test_roles.py::test_an_engine_knows_the_records_of_other_budgets",
    ),
    Sabotage(
        "an older dump of a server is continued",
        where="dpbo.ledger.kept:kept_head",
        old="if (file := file_of(storage)) is None:",
        new="if storage.file is None or (file := file_of(storage)) is None:",
        test=(
            "tests/process/ledger/test_places.py"
            "::test_a_server_that_was_restored_from_an_older_dump_is_refused_where_it_was_used"
        ),
    ),
    Sabotage(
        "plans are written without the ledger's lock",
        where="dpbo.ledger.fingerprints:_changed",
        old="with ledger.alone() as newest:\n        kept",
        new="newest = ledger.head()\n    if newest:\n        kept",
        test=(
            "tests/attacks/test_holes_fingerprints.py"
            "::test_plans_that_several_writers_begin_at_once_are_all_kept"
        ),
    ),
    Sabotage(
        "an older copy of a ledger is continued",
        where="dpbo.ledger.ledger:Ledger._transaction",
        old="if kept is not None and not self._holds(connection, kept):",
        new=(
            "if kept is not None and kept[0] < self._head.seq and not self._holds(connection,"
            " kept):"
        ),
        test=(
            "tests/attacks/test_holes_fingerprints.py"
            "::test_an_older_copy_of_the_ledger_is_refused_until_it_is_taken_on_purpose"
        ),
    ),
    Sabotage(
        "names keep their control codes",
        where="dpbo.validation:printable",
        old="letter if letter.isprintable() else letter.encode",
        new='letter if letter.isprintable() or letter == "\\x1b" else letter.encode',
        test=(
            "tests/attacks/test_printed_names.py"
            "::test_old_names_are_printed_without_a_single_control_character"
        ),
    ),
    Sabotage(
        "a copy of a ledger goes on as one that was moved",
        where="dpbo.records.charged_tables:Charged.has_moved_to",
        old="not first.is_file() or first.samefile(other.place)",
        new="True",
        test=(
            "tests/attacks/test_second_ledgers.py"
            "::test_a_ledger_that_was_moved_goes_on_and_a_copy_does_not"
        ),
    ),
    Sabotage(
        "each working folder has ledgers of its own",
        where="dpbo.places:state_folder",
        old="if not folder.is_absolute():",
        new="if not named:",
        test=(
            "tests/attacks/test_second_ledgers.py::test_a_relative_folder_of_the_state_is_refused"
        ),
    ),
    Sabotage(
        "plans on a server are compared within a process",
        where="dpbo.ledger.kept:file_of",
        old="if not storage.persistent:\n        return None",
        new="if storage.file is None:\n        return None",
        test=(
            "tests/process/ledger/test_places.py"
            "::test_a_plan_on_a_server_is_resumed_with_what_it_began_with_alone"
        ),
    ),
    Sabotage(
        "each role of a server has a ledger of its own",
        where="dpbo.ledger.storage:_named_schema",
        old='if found != "public":',
        new="if not found:",
        test="tests/process/ledger/test_places.py::test_each_role_finds_the_same_ledger_or_none",
    ),
    Sabotage(
        "a table in another order is answered anew",
        where="dpbo.curator.curator:Curator.reserve",
        old="ordered=ordered or parallel)",
        new="ordered=ordered)",
        test=(
            "tests/attacks/test_holes_fingerprints.py"
            "::test_a_table_in_another_order_does_not_answer_a_record_again"
        ),
    ),
    Sabotage(
        "the same people with another label are others",
        where="dpbo.records.digests:RowDigests.sets",
        old="if whole and len(self.parts) == 1:",
        new="if whole:",
        test=(
            "tests/attacks/test_roles.py"
            "::test_a_second_budget_over_the_same_people_is_noticed_under_any_label"
        ),
    ),
    Sabotage(
        "private scores draw from the script's generators",
        "dpbo.curator.evaluation:Job.__call__",
        old="private_generators, ",
        new="",
        test="tests/attacks/test_holes_scores.py::test_how_often_a_score_draws_moves_no_later_draw",
    ),
    Sabotage(
        "a library's warning shows a record's value",
        "dpbo.curator.evaluation:Job.__call__",
        old=", mute_warnings():",
        new=":",
        test="tests/attacks/test_holes_scores.py::test_a_warning_about_one_record_is_not_shown",
    ),
    Sabotage(
        "the first thread to leave restores the script's generators",
        "dpbo.isolation:PrivateGenerators.__exit__",
        old="if self._inside == 0 and self._before",
        new="if self._before",
        test=(
            "tests/attacks/test_holes_scores.py"
            "::test_threads_share_fresh_generators_and_the_last_restores_the_old"
        ),
    ),
    Sabotage(
        "a query answers by what it saw of the records",
        "dpbo.curator.curator:Curator._job",
        old="Job(as_it_is_now(query),",
        new="Job(query,",
        test=(
            "tests/attacks/test_holes_scores.py"
            "::test_what_a_query_keeps_of_the_records_reaches_no_release"
        ),
    ),
    Sabotage(
        "noise follows a query that changed after its evaluation",
        "dpbo.curator.curator:Curator.evaluate",
        old="asked = as_it_is_now(query)",
        new="asked = query",
        test=(
            "tests/attacks/test_holes_scores.py"
            "::test_a_query_that_changes_after_its_evaluation_changes_no_noise"
        ),
    ),
    Sabotage(
        "scores are never tried on records of one group",
        "dpbo.records.examples:_sets_of_columns",
        old="if width <= _SINGLY:",
        new="if True:\n        return\n    if width:",
        test=(
            "tests/attacks/test_tables.py"
            "::test_a_statistic_of_a_group_is_noticed_where_no_two_public_records_share_one"
        ),
    ),
    Sabotage(
        "no kept record is missing while others change",
        "dpbo.records.examples:_require_unmoved",
        old="for odd in (missing, high):",
        new="for odd in (high,):",
        test=(
            "tests/unit/testing/test_per_record.py"
            "::test_what_stands_in_for_missing_cells_is_noticed_with_few_and_many_examples"
        ),
    ),
    Sabotage(
        "made-up records are zeros",
        "dpbo.records.view:PrivateView.made_up",
        old="rng.random(shape)",
        new="np.zeros(shape)",
        test=(
            "tests/unit/testing/test_per_record.py"
            "::test_without_an_example_the_trial_is_on_made_up_rows_of_every_class[class weights]"
        ),
    ),
    Sabotage(
        "made-up labels are of one class",
        "dpbo.records.view:PrivateView.made_up",
        old="np.arange(_MADE_UP) % 2",
        new="np.zeros(_MADE_UP)",
        test=(
            "tests/unit/testing/test_per_record.py"
            "::test_without_an_example_the_trial_is_on_made_up_rows_of_every_class"
            "[the label's mean]"
        ),
    ),
    Sabotage(
        "two columns of a wide table are never told apart",
        "dpbo.records.examples:_sets_of_columns",
        old="for value in (0, 1):",
        new="for value in ():",
        test=(
            "tests/unit/testing/test_per_record.py"
            "::test_a_statistic_of_a_group_is_noticed_in_a_wide_table"
        ),
    ),
    Sabotage(
        "a stored value answers whatever is asked",
        "dpbo.curator.reservation:Reservation.release",
        old='if row["details"] != asked:',
        new="if not row:",
        test=(
            "tests/unit/curator/test_reservation.py"
            "::test_what_one_question_released_does_not_answer_another"
        ),
    ),
    Sabotage(
        "records are compared one by one where units are groups",
        "dpbo.records.digests:RowDigests.sums",
        old="if self.groups is not None:",
        new="if False:",
        test=(
            "tests/unit/curator/test_reservation.py"
            "::test_records_that_belong_together_otherwise_are_other_records"
        ),
    ),
    Sabotage(
        "records may change between evaluations",
        "dpbo.curator.curator:Curator._job",
        old=" or self.__view.versions_in_memory() != self.__versions",
        new="",
        test=("tests/unit/curator/test_curator.py::test_records_that_are_written_to_are_refused"),
    ),
    # what is saved
    Sabotage(
        "room for observations is memory as the process freed it",
        "dpbo.models.finite:FiniteGP._make_room",
        old="torch.from_numpy(np.zeros((runs, capacity, n)))",
        new="torch.from_numpy(np.empty((runs, capacity, n)))",
        test=("tests/attacks/test_unwritten.py::test_each_allocation_that_is_not_written_may_pass"),
    ),
    Sabotage(
        "a model keeps a view of the caller's tensor",
        "dpbo.models.finite:FiniteGP.__init__",
        old='require_finite("candidates", candidates).detach().clone()',
        new='require_finite("candidates", candidates).detach()',
        test="tests/attacks/test_unwritten.py::test_nothing_public_saves_what_nobody_wrote",
    ),
    Sabotage(
        "a copy of a private optimizer is begun and fails halfway",
        "dpbo.dpsgd.noise:NoisedOptimizer.__getstate__",
        old="raise OpacityError(",
        new="return super().__getstate__() or (",
        test=(
            "tests/integration/test_opacus_noise.py"
            "::test_a_copy_of_the_optimizer_is_refused_and_the_run_goes_on"
        ),
    ),
    Sabotage(
        "the longest row of a list decides for all",
        "dpbo.papers.em.estimator:_of_list",
        old="key=lambda length: (length >= 0, counts[length], length)",
        new="key=lambda length: length",
        test=(
            "tests/unit/papers/test_em_mixture.py"
            "::test_a_cell_that_is_no_number_is_not_quoted_and_one_row_refuses_no_others"
        ),
    ),
    Sabotage(
        "standard errors of a mixture take one iteration's noise for that of the average",
        "dpbo.papers.em.gaussians:Averaged.noise_variances",
        old="apart, together = 1.0 / self._averaged(), ",
        new="apart, together = 1.0, ",
        test=(
            "tests/unit/papers/test_em_mixture.py::test_estimates_lie_within_their_standard_errors"
            "[Adjacency.REPLACE_ONE-0.0]"
        ),
    ),
    Sabotage(
        "rows with a missing cell count in the number of records, though in no sum",
        "dpbo.papers.em.estimator:record_count",
        old="if public is not None and abs(released - public) <= noise:",
        new="if public is not None:",
        test=(
            "tests/unit/papers/test_em_missing.py"
            "::test_without_noise_the_estimates_are_those_of_the_complete_rows[mixture]"
        ),
    ),
    Sabotage(
        "the number of records is released beside second moments as if it cost nothing",
        "dpbo.papers.em.point_sums:SecondMoment.squared_l2",
        old="if self.counted or adjacency",
        new="if adjacency",
        test=(
            "tests/contracts/test_sensitivities.py"
            "::test_second_moments_are_rounded_up_in_every_norm"
        ),
    ),
    Sabotage(
        "private estimators score protected rows exactly",
        "dpbo.papers.em.estimator:PointEstimator._unprotected",
        old='require_unprotected("X", X)',
        new="pass",
        test=(
            "tests/unit/papers/test_em_mixture.py"
            "::test_one_exact_number_of_private_records_is_refused_and_chooses_no_model"
        ),
    ),
    Sabotage(
        "replicas share one source of noise",
        "dpbo.gibo.replicas:_Noised.__call__",
        old="for total, entropy in zip(sums.cpu(), self._sources, strict=True):",
        new="for total, entropy in zip(sums.cpu(), self._sources[:1] * len(sums), strict=True):",
        test=(
            "tests/unit/gibo/test_replicas.py::test_each_replica_is_the_single_run_with_its_noise"
        ),
    ),
    Sabotage(
        "a lower bound is rounded up where it is shown",
        "dpbo.search.recommendation:Recommendation.__str__",
        old="decimal.ROUND_DOWN",
        new="decimal.ROUND_UP",
        test=(
            "tests/integration/test_recommendation.py"
            "::test_a_bound_is_shown_rounded_down_and_names_what_its_sum_was_divided_by"
        ),
    ),
)
