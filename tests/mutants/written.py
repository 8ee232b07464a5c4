"""Sabotages written by somebody who has seen the tests."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "noise of seven tenths of its scale",
        "mechanisms/additive.py",
        old="scale = tuple(self.noise_multiplier * self.norm(",
        new="scale = tuple(0.7 * self.noise_multiplier * self.norm(",
    ),
    Mutant(
        "noise of seven tenths, told as if it were whole",
        "mechanisms/additive.py",
        old="np.asarray(law.scale) / np.asarray(law.grid), entropy)",
        new="0.7 * np.asarray(law.scale) / np.asarray(law.grid), entropy)",
    ),
    Mutant(
        "float noise added to a float value",
        "mechanisms/additive.py",
        old="        return whole + self.noise(fractions, np.asarray(law.scale) / np.asarray(law.grid), entropy)",
        new="        wide = np.asarray(law.scale) / np.asarray(law.grid)\n"
        "        rng = np.random.default_rng(int.from_bytes(entropy(8), 'little'))\n"
        "        return np.floor(whole + fractions + wide * rng.normal(size=fractions.shape)).astype(np.int64)",
    ),
    Mutant("scores are not clipped", "queries/integers.py", old="steps.trunc_().clamp_(grid.low, grid.high)", new="steps.trunc_()"),
    Mutant(
        "scores are rounded, not truncated, after the clip",
        "queries/integers.py",
        old="    steps.trunc_().clamp_(grid.low, grid.high)",
        new="    steps.clamp_(grid.low, grid.high).add_(1.0).trunc_()",
    ),
    Mutant(
        "NaN passes for a good score", "queries/integers.py", old="~scores.isfinite(), grid.worst)", new="~scores.isfinite(), grid.high)"
    ),
    Mutant(
        "NaN is looked for after it was clipped away",
        "queries/integers.py",
        old="if all_finite else steps.masked_fill_(~scores.isfinite(), grid.worst)",
        new="if all_finite else steps.nan_to_num_(0.0)",
    ),
    Mutant(
        "a sum in float32",
        "queries/integers.py",
        old="steps[:even].view(-1, _EXACT_BLOCK).sum(1).to(torch.int64).sum()",
        new="steps[:even].view(-1, _EXACT_BLOCK).float().sum(1).to(torch.int64).sum()",
    ),
    Mutant("one block too long to be summed exactly", "queries/integers.py", old="_EXACT_BLOCK = 1 << 13", new="_EXACT_BLOCK = 1 << 16"),
    Mutant(
        "a unit counts once a row, not once",
        "queries/clipped.py",
        old="return sum_units(pieces, grids, view.groups, view.rows, self.max_records_per_unit)",
        new="return sum_records(pieces, grids)",
    ),
    Mutant(
        "replacing is charged as adding",
        "queries/clipped.py",
        old="return k * (b - a) + (k - 1) * max(a, -b, Fraction(0))",
        new="return k * max(abs(a), abs(b))",
    ),
    Mutant(
        "the largest metric alone bounds the sum",
        "queries/clipped.py",
        old="root_up(largest**2 * sum(weight**2 for weight in weights))",
        new="root_up(largest**2 * max(weight**2 for weight in weights))",
    ),
    Mutant("2B becomes B", "queries/gradient.py", old="l2 = 2 * self.clip", new="l2 = self.clip"),
    Mutant(
        "gradients are not clipped in whole numbers",
        "queries/vectors.py",
        old="    return torch.where(squares > most**2, 0, whole)",
        new="    return whole",
    ),
    Mutant(
        "a record's NaN gradient falls to a whole clip",
        "queries/vectors.py",
        old="        k = torch.where(finite, k, 0.0)",
        new="        k = torch.where(finite, k, clip / quantum / len(g) ** 0.5)",
    ),
    Mutant(
        "a unit's broken row is averaged over the rest",
        "queries/gradient.py",
        old="        means[broken if view.groups is None else view.groups[broken]] = torch.nan\n",
        new="",
    ),
    Mutant(
        "the chunk's padding keeps the last chunk's records",
        "queries/vectors.py",
        old="        buffer[:, count:] = 0.0\n        yield by_columns(W, buffer)[:d], count",
        new="        yield by_columns(W, buffer)[:d], rows",
    ),
    Mutant(
        "permute-and-flip charged as the exponential mechanism",
        "mechanisms/permute_and_flip.py",
        old="        return PermuteAndFlipEvent(self.noise_multiplier, slots)",
        new="        from dpbo.events import ExponentialEvent\n\n        return ExponentialEvent(self.noise_multiplier, slots)",
    ),
    Mutant(
        "the exponential mechanism's rate doubled",
        "mechanisms/exponential.py",
        old="rate: Fraction, entropy: Entropy) -> int:\n",
        new="rate: Fraction, entropy: Entropy) -> int:\n        rate = 2 * rate\n",
    ),
    Mutant(
        "the number of runs is one more than drawn",
        "algorithms/hidden_runs.py",
        old="for _ in range(count):",
        new="for _ in range(count + 1):",
    ),
    Mutant(
        "the number of runs goes to the log",
        "algorithms/hidden_runs.py",
        old="_unheard(), apart(system_entropy), _collected()",
        new="apart(system_entropy), _collected()",
    ),
    Mutant(
        "how many runs there were shows in torch's generator",
        "algorithms/hidden_runs.py",
        old="_unheard(), apart(system_entropy), _collected()",
        new="_unheard(), _collected()",
    ),
    Mutant(
        "how many runs there were shows in what their outputs say once the process is heard again",
        "algorithms/hidden_runs.py",
        old="_unheard(), apart(system_entropy), _collected()",
        new="_unheard(), apart(system_entropy)",
    ),
    Mutant(
        "an error between hidden runs keeps their outputs until the process is heard again",
        "algorithms/hidden_runs.py",
        old="        return _contained(runs)\n",
        new="        return runs()\n",
    ),
    Mutant(
        "how many runs looked at earlier ones shows in the count of public seeds",
        "algorithms/hypo.py",
        old="            with quiet(), apart(entropy), torch.no_grad():\n",
        new="""            from dpbo.seeding import seeded

            with quiet(), seeded(len(known)), torch.no_grad():
""",
    ),
    Mutant(
        "of equal scores the first run wins",
        "algorithms/hidden_runs.py",
        old="(run.score, tie) > highest",
        new="(run.score, 0) > highest",
    ),
    Mutant(
        "a tuned model is handed out, and kept, with what Opacus left on it",
        "integrations/opacus/tuning.py",
        old="released(fit(given, Session(training, plan.terms)))",
        new="fit(given, Session(training, plan.terms))",
    ),
    Mutant(
        "a tuned model remembers the records that it was scored on",
        "integrations/opacus/tuning.py",
        old="copy.deepcopy(model)",
        new="model",
    ),
    Mutant(
        "Opacus' hooks, and the wrapped module behind them, are released with a layer",
        "integrations/opacus/releasing.py",
        old=" if _is_opacus(hook)]",
        new=" if not key]",
    ),
    Mutant(
        "records of a last forward pass are released with the layers that they went through",
        "integrations/opacus/releasing.py",
        old='("activations", "max_batch_len", ',
        new='("max_batch_len", ',
    ),
    Mutant(
        "a hidden run's score is not noised",
        "curator/inside.py",
        old="        drawn = mechanism._sample(outcome.numerators, outcome.quanta, law, curator._entropy)",
        new="        steps = outcome.numerators.double() * torch.tensor(outcome.quanta) / torch.tensor(law.grid).double()\n"
        "        drawn = steps.round().long().numpy()",
    ),
    Mutant(
        "noise before the charge",
        "curator/curator.py",
        old="        entry = self._charge(handles, name, event, plan, used)\n"
        "        releases = [self._draw(*pair, mechanism, event, entry) for pair in zip(handles, laws, strict=True)]",
        new="        releases = [self._draw(*pair, mechanism, event, 0) for pair in zip(handles, laws, strict=True)]\n"
        "        entry = self._charge(handles, name, event, plan, used)",
    ),
    Mutant(
        "a charge that failed to be answered is taken for none",
        "curator/curator.py",
        old="            if refused or not self._may_be_charged(handles[0]):\n",
        new="            if True:\n",
    ),
    Mutant(
        "an interrupt after the commit leaves the handle free to be charged again",
        "curator/curator.py",
        old='refused = isinstance(error, PrivacyError) and not getattr(error, "uncertain", False)',
        new='refused = not getattr(error, "uncertain", False)',
    ),
    Mutant(
        "beside a lost handle others are charged before it is refused",
        "curator/deliveries.py",
        old="            if handle in self._given:\n",
        new="            if self._given.get(handle) is not None:\n",
    ),
    Mutant(
        "a batch is charged as one release",
        "curator/curator.py",
        old="plain = mechanism.event(len(handles))",
        new="plain = mechanism.event(1)",
    ),
    Mutant("a charge that the next process overwrites", "curator/dialects.py", old='"BEGIN IMMEDIATE" if', new='"BEGIN" if'),
    Mutant("a ledger that the power may empty", "curator/dialects.py", old="PRAGMA synchronous=EXTRA", new="PRAGMA synchronous=OFF"),
    Mutant(
        "a charge beyond the cap by one",
        "curator/ledger.py",
        old="        if not total <= self.cap:\n",
        new="        if not head.total <= self.cap:\n",
    ),
    Mutant(
        "the chain forgets its predecessor",
        "curator/chain.py",
        old="dump([seq, kind, name, body, previous])",
        new="dump([seq, kind, name, body])",
    ),
    Mutant(
        "verification believes the totals it is told",
        "curator/chain.py",
        old='and books.after(record) == record.body["state"]',
        new="and books.after(record) is not None",
    ),
    Mutant(
        "the statement prints what was spent",
        "curator/reporting.py",
        old="    protected = _guarantee(ledger, ledger.cap, at)\n",
        new="    protected = _spent(ledger, chain, at)\n",
    ),
    Mutant(
        "seeded noise leaves the statement standing",
        "curator/curator.py",
        old="lambda: entropy is not system_entropy):",
        new="lambda: False):",
    ),
    Mutant(
        "a checkpoint takes steps back",
        "accounting/ledger_accountant.py",
        old="self._runs[run] = _longer(self._runs.get(run, []), steps)",
        new="self._runs[run] = list(steps)",
    ),
    Mutant(
        "a sampled release is charged under adding alone",
        "queries/sampled.py",
        old="rate=self.rate, relation=adjacency.value)",
        new='rate=self.rate, relation="add-or-remove-one")',
    ),
    Mutant(
        "samples of one fixed size",
        "curator/entropy.py",
        old='    words = np.frombuffer(system_entropy(8 * count), dtype="<u8")\n',
        new='    words = np.frombuffer(system_entropy(8 * count), dtype="<u8")\n'
        "    if count:\n        return words.argsort().argsort() < round(count * rate)\n",
    ),
    Mutant(
        "relations are mixed: unsampled events pass as either",
        "curator/ledger.py",
        old="    if not event.relations() <= {adjacency}:\n",
        new="    if False:\n",
    ),
    Mutant(
        "adding converts to replacing at no price",
        "accounting/relations.py",
        old="noise_multiplier=event.noise_multiplier / 2)",
        new="noise_multiplier=event.noise_multiplier)",
    ),
    Mutant(
        "trials may be pruned on raw values",
        "integrations/optuna/trials.py",
        old="    if not isinstance(study.pruner, optuna.pruners.NopPruner):",
        new="    if False:",
    ),
    Mutant(
        "the raw value goes to the study",
        "integrations/optuna/trials.py",
        old="        return Y.item()\n",
        new="        _, answer = self.objective.curator._answer(handle)\n"
        "        return float(answer.numerators[0]) * answer.quanta[0] / (self.objective.curator.units or 1)\n",
    ),
    Mutant(
        "the search looks at raw scores",
        "algorithms/asynchronous.py",
        old="        x = self._propose(X, Y, Yvar,",
        new="        for job in self._jobs:\n            if job.future.done():\n"
        "                Y = Y + 1e-3 * float(self.objective.curator._answer(job.future.result())[1].numerators[0])\n"
        "        x = self._propose(X, Y, Yvar,",
    ),
    Mutant(
        "DP-GIBO steps along the raw gradient",
        "algorithms/gibo.py",
        old="        self._advance(release.value, self._telling)\n",
        new="        answer = self.curator._answer(self._telling)[1]\n"
        "        raw = answer.numerators.double() * answer.quanta[0] / (self.curator.units or 1)\n"
        "        self._advance(raw, self._telling)\n",
    ),
    Mutant(
        "a unit's rows on two ranks pass",
        "curator/shards.py",
        old="    if any(row[0] for row in lines.exchange(bytes([_has_equals(came)]))):",
        new="    if False:",
    ),
    Mutant(
        "a plan is resumed without the terms that it was made with",
        "curator/plans.py",
        old='for term in {**wanted["terms"], **stored["terms"]}}',
        new='for term in wanted["terms"]}',
    ),
    Mutant(
        "what a caller says of a plan stands for what dpbo knows of it",
        "curator/terms.py",
        old="    if taken := sorted(reserved & {*map(str, given)}):\n",
        new="    if taken := list[str]():\n",
    ),
    Mutant(
        "what other questions under a plan declared is not in the statement",
        "curator/reporting.py",
        old="if name not in terms or terms[name] != value}:",
        new="if False}:",
    ),
    Mutant(
        "conditional releases need no leave", "curator/curator.py", old="if conditions and not self._allow_conditional:", new="if False:"
    ),
    Mutant(
        "conditional releases are told as unconditional",
        "curator/reporting.py",
        old="    if not conditions and guarantee == protected:",
        new="    if guarantee == protected:",
    ),
    Mutant(
        "rows move by half of what they do",
        "queries/rows.py",
        old="return self.spectral_norm() * 2 * self.radius",
        new="return self.spectral_norm() * self.radius",
    ),
    Mutant(
        "a projection's norm is left out", "queries/rows.py", old="float(torch.linalg.matrix_norm(self.projection, 2)) * _UP", new="1.0"
    ),
    Mutant(
        "mixture moments as if replacing moved one component alone",
        "queries/mixture_moments.py",
        old="both = alone if self.components == 1 else 2.0 * alone",
        new="both = alone",
    ),
    Mutant(
        "a choice among candidates reads its caller's range anew",
        "queries/candidates.py",
        old='        object.__setattr__(self, "score_range", require_range("score_range", self.score_range))\n',
        new="",
    ),
    Mutant(
        "the best regularised model reads its caller's grid anew",
        "algorithms/kusner/regularised.py",
        old='        object.__setattr__(self, "grid", grid)\n',
        new="",
    ),
    Mutant(
        "who noted a void forgets it with the ledger's last record",
        "curator/ledger.py",
        old="        self._saw(noted)\n",
        new="",
    ),
    Mutant(
        "an older copy under an open ledger is read without a word",
        "curator/ledger.py",
        old="        with self._knowing(self.storage.reading()) as connection:\n"
        "            return _read(connection, sa.true() if after is None else table.c.seq > after)",
        new="        with self.storage.reading() as connection:\n"
        "            return _read(connection, sa.true() if after is None else table.c.seq > after)",
    ),
    Mutant(
        "an answer that waits for the ledger passes for lost",
        "algorithms/outsourced/curating.py",
        old="        self.curator.deliver()\n",
        new="",
    ),
    Mutant("epsilon printed to the nearest digit", "statement.py", old="rounding=ROUND_CEILING", new='rounding="ROUND_HALF_EVEN"'),
)
