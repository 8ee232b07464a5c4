"""Sabotages written by somebody who knows the package and the rules, and has not seen its tests."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    # accounting
    Mutant(
        "two kinds of release that share one dominating pair are composed as the last one alone",
        "accounting/dominating.py",
        old="        pairs[pair] += event.slots\n",
        new="        pairs[pair] = event.slots\n",
    ),
    Mutant(
        "a plan is within its cap as soon as one of its events is",
        "accounting/costs.py",
        old="        return all(a <= b for a, b in zip(self.parts, other.parts, strict=True))",
        new="        return any(a <= b for a, b in zip(self.parts, other.parts, strict=True))",
    ),
    Mutant(
        "an event outside all roles is forgotten once a plan has roles",
        "accounting/composition.py",
        old="    parts = (event.of(role) if isinstance(event, RolesEvent) else (event,) for event in events)",
        new="    parts = (event.of(role) if isinstance(event, RolesEvent) else () if role else (event,) for event in events)",
    ),
    Mutant(
        "a release of several roles is charged as its last role",
        "accounting/profiles.py",
        old="    return max(sums)",
        new="    return sums[-1]",
    ),
    Mutant(
        "permute-and-flip gets the exponential mechanism's half of mu",
        "accounting/profiles.py",
        old="_mu_squared_of(one / 2 if isinstance(event, ExponentialEvent) else one)",
        new="_mu_squared_of(one / 2 if isinstance(event, (ExponentialEvent, PermuteAndFlipEvent)) else one)",
    ),
    Mutant(
        "a sampled Gaussian under replace-one is capped by the unsampled one of add-or-remove",
        "accounting/poisson.py",
        old="    return np.minimum(np.array(sampled) * _UP, unsampled)",
        new="    return np.minimum(np.array(sampled) * _UP, unsampled / shift**2)",
    ),
    Mutant(
        "of a private selection only the first event of a run is converted to replace-one",
        "accounting/relations.py",
        old="base=tuple(convert(one, given, wanted) for one in event.base))",
        new="base=(convert(event.base[0], given, wanted), *event.base[1:]))",
    ),
    Mutant(
        "the Renyi bound of a selection takes the paper's ln(1/g - 1) for ln(1/g)",
        "accounting/selected.py",
        old="(1 - 1 / inner) * base_curve(inner) - math.log(law.gamma) / inner).min()",
        new="(1 - 1 / inner) * base_curve(inner) + math.log(max(1 / law.gamma - 1, 1e-9)) / inner).min()",
    ),
    Mutant(
        "the envelope of a selection takes the lenient end of each cell",
        "accounting/selected.py",
        old="    left, right = u[:-1], base.reverse.tradeoff(u[1:])",
        new="    left, right = u[1:], base.reverse.tradeoff(u[:-1])",
    ),
    Mutant(
        "losses that are atoms are rounded down to the grid",
        "accounting/pld.py",
        old="        share = -math.expm1(cell * step - loss) / -math.expm1(-step)\n",
        new="        share = 0.0\n",
    ),
    Mutant(
        "what stands beside a selection is forgotten when its budget is checked",
        "accounting/tuning.py",
        old="            return compose([event, *beside], delta=delta).epsilon <= epsilon",
        new="            return compose([event], delta=delta).epsilon <= epsilon",
    ),
    Mutant(
        "zCDP and Renyi are read as epsilon with the order in place of the order less one",
        "accounting/rdp.py",
        old="(math.log(delta) + np.log(orders)) / (orders - 1.0)\n    return",
        new="(math.log(delta) + np.log(orders)) / orders\n    return",
    ),
    Mutant(
        "a copied DP-SGD accountant goes on as the same run, so a merge counts both copies' steps once",
        "accounting/ledger_accountant.py",
        old="        self._id = uuid.uuid4().hex\n        self._runs[self._id] = []\n",
        new="        self._runs.setdefault(self._id, [])\n",
    ),
    Mutant(
        "in what a test of membership can do delta is ignored",
        "accounting/membership.py",
        old="* false_positive_rate + guarantee.delta\n",
        new="* false_positive_rate\n",
    ),
    Mutant(
        "a private selection does not say which relation its runs are counted in",
        "events.py",
        old="        return frozenset().union(*(event.relations() for event in self.base))",
        new="        return frozenset()",
    ),
    # queries
    Mutant(
        "a sum over units forgets that their number of rows may change from one to many",
        "queries/clipped.py",
        old="                return k * (b - a) + (k - 1) * max(a, -b, Fraction(0))",
        new="                return k * (b - a)",
    ),
    Mutant(
        "the ends of a score's range are rounded outward on the lattice",
        "queries/integers.py",
        old="low, high = math.ceil(below / Fraction(quantum)), math.floor(above / Fraction(quantum))",
        new="low, high = math.floor(below / Fraction(quantum)), math.ceil(above / Fraction(quantum))",
    ),
    Mutant(
        "lattice numbers are added in float blocks too long to be exact",
        "queries/integers.py",
        old="_EXACT_BLOCK = 1 << 13  #",
        new="_EXACT_BLOCK = 1 << 16  #",
    ),
    Mutant(
        "a record named between two cells counts in both",
        "queries/cells.py",
        old="        return places.double().unsqueeze(1) == torch.arange(self.cells, dtype=torch.float64, device=places.device)",
        new="""        cells = torch.arange(self.cells, dtype=torch.float64, device=places.device)
        return (places.double().unsqueeze(1) - cells).abs() <= 0.5""",
    ),
    Mutant(
        "units left over when the calls for failing units run out count as worst",
        "queries/scoring.py",
        old="    if waiting or (failed == view.units and not view.shard):",
        new="    if failed == view.units and not view.shard:",
    ),
    Mutant(
        "a table's noise is made for the longest row of the projection and not for its spectral norm",
        "queries/rows.py",
        old="float(torch.linalg.matrix_norm(self.projection, 2)) * _UP",
        new="float(self.projection.norm(dim=1).max()) * _UP",
    ),
    Mutant(
        "every Poisson release of a curator scores the sample that the first one drew",
        "queries/sampled.py",
        old="""    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if not view.can_take:
            raise InputError("records", type(view.records).__name__, "of a kind that can be sliced, to be sampled")
        return self.query._evaluate(view.sampled(self.rate), subject)""",
        new="""    def _evaluate(self, view: View, subject: Any, _taken: dict[Any, Any] = {}) -> IntegerSum | Failure:
        if not view.can_take:
            raise InputError("records", type(view.records).__name__, "of a kind that can be sliced, to be sampled")
        held = getattr(view, "held", view)
        if (known := _taken.get((id(held), self.rate))) is None or known[0] is not held:
            known = _taken[id(held), self.rate] = held, view.sampled(self.rate)
        return self.query._evaluate(known[1], subject)""",
    ),
    Mutant(
        "in DP-GIBO every row of a unit is a gradient of its own",
        "queries/gradient.py",
        old="""        means = unit_means([losses.unsqueeze(1)], grid, view.groups, view.rows).to(torch.float64) * grid.quantum
        broken = ~losses.isfinite()
        means[broken if view.groups is None else view.groups[broken]] = torch.nan""",
        new="""        means = unit_means([losses.unsqueeze(1)], grid, None, None).to(torch.float64) * grid.quantum
        means[~losses.isfinite()] = torch.nan""",
    ),
    Mutant(
        "a gradient that is NaN is not taken for a wild one",
        "queries/vectors.py",
        old="    finite = largest.isfinite()",
        new="    finite = ~largest.isinf()",
    ),
    Mutant(
        "records are not clipped once more after they were rounded",
        "queries/ball.py",
        old='    return (k, alive) if norm == "linf" else (_shortened(k, steps), alive)',
        new="    return k, alive",
    ),
    Mutant(
        "the distance of two records' moments loses a square",
        "queries/features.py",
        old="    return 2.0 * m * (1.0 + t) + 2.0 * c * (1.0 - t * t)",
        new="    return 2.0 * m * (1.0 + t) + 2.0 * c * (1.0 - t)",
    ),
    Mutant(
        "responsibilities of a record sum to one only up to rounding",
        "queries/mixture_moments.py",
        old="""    gamma.scatter_add_(0, largest.unsqueeze(0), (whole - gamma.sum(0)).unsqueeze(0))
    sound = alive & (gamma.amin(0) >= 0.0) & (gamma.sum(0) == whole)""",
        new="    sound = alive & (gamma.amin(0) >= 0.0)",
    ),
    Mutant(
        "with two clusters or more nobody looks at a record that stays in its cluster",
        "queries/cluster_sums.py",
        old="        return max(different, 4.0 * longest * m * m)",
        new="        return different if len(self.centers) > 1 else max(different, 4.0 * longest * m * m)",
    ),
    Mutant(
        "second moments get too little noise off the diagonal",
        "queries/second_moment.py",
        old="torch.full((len(i),), math.sqrt(0.5), dtype",
        new="torch.full((len(i),), 0.5, dtype",
    ),
    Mutant(
        "points of one unit with many rows count each for itself",
        "queries/points.py",
        old="        if view.groups is not None:\n",
        new="        if view.groups is not None and view.rows is None:\n",
    ),
    # mechanisms
    Mutant(
        "all rows of a table get the same l2-Laplace noise",
        "mechanisms/l2_laplace.py",
        old="        words = _words(2 * rows.size, entropy).reshape(len(rows), -1)",
        new="        words = np.tile(_words(2 * rows.shape[1], entropy), (len(rows), 1))",
    ),
    Mutant(
        "noise never reaches its far tails",
        "mechanisms/rounding.py",
        old="    near, far = ends_of(law, k)  # near zero",
        new="    k = np.maximum(k, np.uint64(1 << 40))\n    near, far = ends_of(law, k)  # near zero",
    ),
    Mutant(
        "levels of a choice are said to move by their number rounded down",
        "mechanisms/selection.py",
        old="width, math.ceil(Fraction(most, width)), self.noise_multiplier)",
        new="width, max(most // width, 1), self.noise_multiplier)",
    ),
    Mutant(
        "the exponential mechanism draws a level without counting who is in it",
        "mechanisms/exponential.py",
        old="""        sums = np.cumsum(counts[filled] * np.exp(-float(rate) * filled))""",
        new="""        sums = np.cumsum(np.exp(-float(rate) * filled))""",
    ),
    Mutant(
        "a Poisson number of hidden runs is never zero",
        "mechanisms/run_count.py",
        old="        if high < total * (1 - slack):\n            return k\n",
        new="        if high < total * (1 - slack):\n            return max(k, 1)\n",
    ),
    # curator
    Mutant(
        "questions charged unlike are released together for the price of the first",
        "curator/curator.py",
        old="        if any(event != events[0] for event in events):\n",
        new="        if any(event.slots != events[0].slots for event in events):\n",
    ),
    Mutant(
        "of a joint release only the first question must be allowed to be conditional",
        "curator/curator.py",
        old="self._require_conditions({name for handle in handles for name in self._answer(handle)[0].data_assumptions()})",
        new="self._require_conditions(set(self._answer(handles[0])[0].data_assumptions()))",
    ),
    Mutant(
        "a question about a table may name a smaller row change than its curator's",
        "curator/curator.py",
        old="        if query.needs_row_change() not in (None, self._row_change):",
        new="        if query.needs_row_change() is not None and self._row_change is None:",
    ),
    Mutant(
        "a question may name a role that its curator's records do not have",
        "curator/curator.py",
        old='        require_own_role(getattr(query, "role", None), self.ledger.birth["role"])\n',
        new="",
    ),
    Mutant(
        "Poisson sampling takes rows where units are groups",
        "curator/records.py",
        old="""            mask = taken.to(self.groups.device)
            positions = mask[self.groups].nonzero()[:, 0]
            groups, rows = (mask.cumsum(0) - 1)[self.groups[positions]], self.rows[mask]""",
        new="""            positions = torch.from_numpy(bernoulli(self.count, rate)).to(self.groups.device).nonzero()[:, 0]
            _, groups, rows = self.groups[positions].unique(return_inverse=True, return_counts=True)""",
    ),
    Mutant(
        "a score is tried first on private records, and its error shown",
        "curator/records.py",
        old="    return part.new_zeros(shape) if isinstance(part, torch.Tensor) else np.zeros(shape, part.dtype)",
        new="    return part[: shape[0]]",
    ),
    Mutant(
        "who is in a sample follows numpy's global generator",
        "curator/entropy.py",
        old="    return np.ones(count, dtype=np.bool_) if threshold >> 64 else words < np.uint64(threshold)",
        new="    return np.ones(count, dtype=np.bool_) if threshold >> 64 else np.random.random_sample(len(words)) < rate",
    ),
    Mutant(
        "on several ranks the labels 3 and 3.0 are two units",
        "curator/shards.py",
        old="    return Fraction(float(number)) if math.isfinite(number) else float(number)",
        new="    return float(number)",
    ),
    Mutant(
        "partial sums of ranks are added in floats",
        "curator/ranks.py",
        old="""        moved = numbers.to(device, copy=True).contiguous()
        with self._watched():
            dist.reduce(moved, dst=self._members[0], group=self._data if on_device else self._control)
            return moved.cpu() if""",
        new="""        moved = numbers.to(device, torch.float64, copy=True).contiguous()
        with self._watched():
            dist.reduce(moved, dst=self._members[0], group=self._data if on_device else self._control)
            return moved.cpu().to(numbers.dtype) if""",
    ),
    Mutant(
        "a note that the ledger could not take is forgotten",
        "curator/books.py",
        old="                self.own.note(*self._owed[0])\n                self._owed.pop(0)\n",
        new="                self.own.note(*self._owed.pop(0))\n",
    ),
    Mutant(
        "a handle that was charged and lost is drawn again",
        "curator/deliveries.py",
        old="""            if handle in self._given:
                self.of(handle)
        return [handle for handle in every if handle not in self._given]
""",
        new="            pass\n        return [handle for handle in every if self._given.get(handle) is None]\n",
    ),
    Mutant(
        "a forked process goes on with its own copy of a ledger in memory",
        "curator/storage.py",
        old="        if os.getpid() != self._home:\n",
        new="        if os.getpid() != self._home and self.persistent:\n",
    ),
    Mutant(
        "a charge may be lost with the power after its noise was drawn",
        "curator/dialects.py",
        old='"PRAGMA synchronous=EXTRA"',
        new='"PRAGMA synchronous=NORMAL"',
    ),
    Mutant(
        "the hash of a record leaves out its name, which is all that an assumption is",
        "curator/chain.py",
        old="hashlib.sha256(dump([seq, kind, name, body, previous]).encode())",
        new="hashlib.sha256(dump([seq, kind, body, previous]).encode())",
    ),
    Mutant(
        "of an expected head eight letters are compared",
        "curator/ledger.py",
        old="expect not in {record.hash for record in chain}:",
        new="expect[:8] not in {record.hash[:8] for record in chain}:",
    ),
    Mutant(
        "a row asked twice in one release of a parallel plan counts once",
        "curator/plans.py",
        old="*(taken[part] + count for part, count in parts.items()))",
        new="*(taken[part] + 1 for part in parts))",
    ),
    Mutant(
        "the assumptions of releases outside a plan are not in the statement",
        "curator/reporting.py",
        old="for holder in (*plans, *slots) for pair",
        new="for holder in (plans or slots) for pair",
    ),
    Mutant(
        "a statement is made from a chain that nobody verified",
        "curator/reporting.py",
        old="    chain, birth = ledger.verified(), ledger.birth",
        new="    chain, birth = ledger.records(), ledger.birth",
    ),
    Mutant(
        "scores of hidden runs get the noise of add-or-remove-one under every relation",
        "curator/inside.py",
        old="    law = mechanism.law(query.scale(curator.adjacency), outcome.quanta)",
        new="    law = mechanism.law(query.scale(type(curator.adjacency).ADD_OR_REMOVE_ONE), outcome.quanta)",
    ),
    Mutant(
        "records that a score changed in place are released all the same",
        "curator/evaluation.py",
        old='        return outcome if self.view.versions() == before else Failure("mutated")',
        new='        return outcome if len(self.view.versions()) == len(before) else Failure("mutated")',
    ),
    # statement and objective
    Mutant(
        "a notebook does not show that the statement is void",
        "statement.py",
        old='        return f"{opening}<table>{rows}</table>"',
        new='        return f"<table>{rows}</table>"',
    ),
    Mutant(
        "the command line shows true scores and leaves the statement standing",
        "demo.py",
        old='        statement = statement.voided("--reveal-for-demo showed true validation accuracies and a non-private search")\n',
        new="",
    ),
    Mutant(
        "the progress bar shows how long private scores take",
        "objective.py",
        old='BAR = "{desc}: {n_fmt}/{total_fmt} |{bar}|"',
        new='BAR = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed} {rate_inv_fmt}"',
    ),
    Mutant(
        "the planned noise of an evaluation is that of the whole budget, whatever its share",
        "planning.py",
        old="    multiplier = calibrate(budget, releases=evaluations, share=budget_share)\n",
        new="    multiplier = calibrate(budget, releases=evaluations)\n",
    ),
    # algorithms
    Mutant(
        "the wait that hides hidden runs begins when they are done",
        "algorithms/hidden_runs.py",
        old="""    ends = time.monotonic() + (pad_to or 0.0)
    outcome = _contained(lambda: _hidden(lambda: _runs(work, space, law, entropy, threshold, proposals or uniform(space))))
""",
        new="""    outcome = _contained(lambda: _hidden(lambda: _runs(work, space, law, entropy, threshold, proposals or uniform(space))))
    ends = time.monotonic() + (pad_to or 0.0)
""",
    ),
    Mutant(
        "the global generators stand afterwards where hidden runs left them",
        "algorithms/hidden_runs.py",
        old="    with _unheard(), apart(system_entropy), _collected():",
        new="    with _unheard(), _collected():",
    ),
    Mutant(
        "what hidden runs write to stderr is seen",
        "algorithms/hidden_runs.py",
        old="        contextlib.redirect_stderr(nowhere),\n",
        new="",
    ),
    Mutant(
        "the noise on scores of hidden runs is not charged where training is",
        "algorithms/selection.py",
        old="    if not isinstance(base, Mapping):\n        return _selection([*base, *scored], law, spread)",
        new="    if not isinstance(base, Mapping):\n        return _selection([*base] or scored, law, spread)",
    ),
    Mutant(
        "adaptive hidden runs may leave half of the promised density out",
        "algorithms/hypo.py",
        old="    least, most = math.ceil(spread[0] * _ONE), math.floor(spread[1] * _ONE)\n",
        new="    spread = spread[0] / 2, spread[1]\n    least, most = math.ceil(spread[0] * _ONE), math.floor(spread[1] * _ONE)\n",
    ),
    Mutant(
        "an ordered search releases as its jobs finish and does not say so",
        "algorithms/asynchronous.py",
        old="wait([oldest] if self._ordered else [job.future for job in self._jobs], return_when=FIRST_COMPLETED)",
        new="wait([oldest, *(job.future for job in self._jobs)], return_when=FIRST_COMPLETED)",
    ),
    Mutant(
        "one release of another worker in between is not noticed",
        "objective.py",
        old="self.remaining < left:",
        new="self.remaining < left - 1:",
    ),
    Mutant(
        "what the user of DP-GIBO declared about box, start and kernel is not in the ledger",
        "algorithms/gibo.py",
        old='        shown = {"budget": str(budget), **query.public_inputs(), **terms}',
        new='        shown = {"budget": str(budget), **query.public_inputs(), "seed": terms["seed"]}',
    ),
    Mutant(
        "Theorem 1's sensitivity is bounded at one candidate and used at all",
        "algorithms/kusner/bounds.py",
        old="    return 2.0 * math.sqrt(2.0 * math.log(3.0 * count / delta)) + c",
        new="    return 2.0 * math.sqrt(2.0 * math.log(3.0 / delta)) + c",
    ),
    Mutant(
        "the best regularised model gets noise for the narrowest range of a loss",
        "algorithms/kusner/regularised.py",
        old="        widest = max(upper - lower for lower, upper in map(self._range, self.grid))",
        new="        widest = min(upper - lower for lower, upper in map(self._range, self.grid))",
    ),
    Mutant(
        "an adaptive search of regularisations passes for unconditional",
        "algorithms/kusner/regularised.py",
        old="        return {} if self.adaptive is None else _LIPSCHITZ",
        new='        return {} if self.adaptive is None or self.constants == "corrected" else _LIPSCHITZ',
    ),
    Mutant(
        "private k-means keeps the exact inertia of the records",
        "algorithms/em/kmeans.py",
        old="        self.cluster_centers_ = ball.outward(centers).numpy()\n",
        new="""        self.cluster_centers_ = ball.outward(centers).numpy()
        if isinstance(X, np.ndarray) and X.dtype.kind == "f":
            self.inertia_ = float(np.square(np.nan_to_num(X)[:, None, :] - self.cluster_centers_).sum(2).min(1).sum())
""",
    ),
    Mutant(
        "private factor analysis divides by the exact private number of records",
        "algorithms/em/factor_analysis.py",
        old="count = float(public) if public is not None else max(float(answer.value[0]), 1.0 + 3.0 * float(answer.std[0]))",
        new="count = float(plan.curator._Curator__view.units)",
    ),
    Mutant(
        "a question asked again under its name is answered and charged anew",
        "algorithms/outsourced/curating.py",
        old="""            if request not in self._known:
                self._known[request] = self._answered(row, request)
""",
        new="""            if request not in self._known or self.repeats > 1:
                self._known[request] = self._fresh(row, request)
""",
    ),
    # integrations
    Mutant(
        "slow answers leave the server when they are ready",
        "integrations/serving.py",
        old="                await asyncio.sleep(math.ceil(elapsed / self._every) * self._every - elapsed)",
        new="                await asyncio.sleep(max(self._every - elapsed, 0.0))",
    ),
    Mutant(
        "a question that fails inside is answered with the error's own words",
        "integrations/serving.py",
        old='return _error(500, "Failed", "the question failed inside; the operator\'s log has the kind of failure")',
        new='return _error(500, "Failed", f"the question failed inside: {error}")',
    ),
    Mutant(
        "a table without a given centre is centred at its own mean",
        "integrations/outsourcing.py",
        old="    values = torch.tensor(given if given is not None else [default] * X.shape[1], dtype=torch.float64)\n",
        new="""    mean = X.nan_to_num().mean(0) if default == 0.0 else torch.full(X.shape[1:], default, dtype=torch.float64)
    values = torch.tensor(given if given is not None else mean.tolist(), dtype=torch.float64)
""",
    ),
    Mutant(
        "one table is split so that labels are spread evenly",
        "integrations/tuning/tables.py",
        old="train_test_split(X, y, test_size=test_size, random_state=seed)",
        new="""train_test_split(
        X, y, test_size=test_size, random_state=seed, stratify=y if len(set(np.asarray(y).tolist())) < 10 else None
    )""",
    ),
    Mutant(
        "DPSearch recommends a model that was fitted again on the validation records",
        "integrations/tuning/estimator.py",
        old="        self.statement_ = _explained(curator.statement(), split, self.test_size, self.random_state)\n",
        new="""        self.statement_ = _explained(curator.statement(), split, self.test_size, self.random_state)
        if self.best_estimator_ is not None and y_val is not None and type(X_val).__name__ == "ndarray":
            self.best_estimator_.fit(X_val, y_val)
""",
    ),
    Mutant(
        "the model that scored private records is the one that is handed on",
        "integrations/tuning/training.py",
        old="""        twin = _twin(model)
        if twin is model:
            self._newest = ([], None)  # there is but one, so the next is fitted anew
        return twin""",
        new="        return model",
    ),
    Mutant(
        "DP-SGD on a CPU draws its noise from a seed of 32 bits",
        "integrations/opacus/training.py",
        old='    if device.type == "cpu":\n',
        new='    if device.type not in ("cpu", "cuda"):\n',
    ),
    Mutant(
        "a record may be in two samples of one step of DP-SGD",
        "integrations/opacus/training.py",
        old="        prepared[0].forbid_grad_accumulation()  # a record in two samples of one step would count twice;"
        " Opacus forbids it where it samples\n",
        new="",
    ),
    Mutant(
        "DP-SGD divides by the private number of records",
        "integrations/opacus/training.py",
        old="        noised.expected_batch_size = self.terms.batch_size\n",
        new="",
    ),
    Mutant(
        "a DP-SGD run is paid for after it was trained, and one that fails is not",
        "integrations/opacus/tuning.py",
        old="""        self._curator.ledger.charge(_TRAINING, self._event, paid, _TRAINING)
        try:
            model = self._train(self._space.decode(x))
        except Exception:
            return None
""",
        new="""        try:
            model = self._train(self._space.decode(x))
        except Exception:
            return None
        self._curator.ledger.charge(_TRAINING, self._event, paid, _TRAINING)
""",
    ),
    Mutant(
        "an Optuna trial keeps the exact sum beside its released value",
        "integrations/optuna/trials.py",
        old="        trial.set_user_attr(YVAR, Yvar.item())\n",
        new="""        trial.set_user_attr(YVAR, Yvar.item())
        trial.set_user_attr("lattice", self.objective.curator._answer(handle)[1].numerators.tolist())
""",
    ),
    Mutant(
        "an Ax experiment that stops trials early is taken",
        "integrations/ax/experiments.py",
        old="        if self.client._maybe_early_stopping_strategy is not None:\n",
        new="        if self.client._maybe_early_stopping_strategy is not None and not names:\n",
    ),
)
