"""LocalE, GlobalE, PDO and DEmO: orders are asked for label probabilities, and those with the best criterion taken."""

from __future__ import annotations

import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError
from pydantic import Field
from scipy.special import ndtr
from scipy.stats import entropy

from plr_dspy.compilation.choice import Outcome, Result, comparison
from plr_dspy.compilation.phases import Compilation
from plr_dspy.compilation.plan import MIN_EXAMPLES, Plan, random_plan
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram, distribution
from plr_dspy.labels.calibrated_program import PerInputOrder as PerInputOrder
from plr_dspy.labels.outputs import CONTENT_FREE, check_text_inputs, needed_output, prior_shares
from plr_dspy.labels.reader import NUM_ALTERNATIVES
from plr_dspy.labels.work import LabelWork
from plr_dspy.lm.engines import CompletionEngine
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter, title_of
from plr_dspy.metrics.over_set import SetMetric
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.calls import MetricWork, WrongAnswer
from plr_dspy.programs.checks import Count, Number, Positive, WholeNumber, arguments
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.slots import decision_adapter
from plr_dspy.programs.splits import value_key
from plr_dspy.scoring.ledger import FAILED, Cell
from plr_dspy.scoring.scorer import CellScorer, NothingRan
from plr_dspy.search.model.ordering_model import Gain
from plr_dspy.search.space import Ordering
from plr_dspy.statistics.calibration import Array
from plr_dspy.statistics.comparisons import paired_interval

logger = logging.getLogger(__name__)

COMPARED_SHARE = 0.2  # of a budget for the comparison with the original order, at most
OTHERS = ", or use PLReorder or TopKOrder, which need none"  # what else can be done where a program has no such output
WRITTEN_TOKENS = 128  # of a probing input and its answer, at most
WRITING = "Write one new example of the same kind as those given: like them, but none of them."


@arguments
class LabelReorderer(Reorderer):
    """What the methods that look at label probabilities share: each has a criterion and probing inputs.

    The metric does not choose the order: the report says how the order chosen does by it beside the original one.
    """

    scored_on = "probing inputs"
    chooses_by_score = False
    fillers: ClassVar[tuple[str, ...]] = ()  # texts that each make a probing input
    # At which the LM writes the probing inputs; None where it writes none. With neither, these are train inputs.
    temperature: ClassVar[float | None] = None

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 24

    @abstractmethod
    def criterion(self, table: Array) -> float:
        """What the order chosen has most of, by its distributions over labels for all inputs, ``[E, L]``."""

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the program has one predictor with one finite output, and inputs that can be made."""
        predictors = program.predictors()
        if isinstance(self.metric, SetMetric):
            raise UserError(f"metric must be one by example for {self.name}; got {self.metric!r}: use PLReorder")
        if isinstance(program, CalibratedProgram):
            raise UserError(
                f"{self.name} reads the probabilities of labels itself, and the student is calibrated: pass "
                "student.program, and calibrate what comes of it"
            )
        if len(predictors) != 1:
            needs = f"{self.name} needs a program with one predictor"
            raise UserError(f"{needs}; this one has {len(predictors)}: use PLReorder or TopKOrder")
        if decision_adapter(predictors[0]) is not None:
            raise UserError(
                f"{self.name} reads the tokens of labels, and replies to the student state probabilities in their "
                f"place: declare a Literal alone, and use a dspy.LM{OTHERS}"
            )
        needed_output(program, self.name, cure=OTHERS)
        if self.fillers or self.temperature:
            for example in trainset:
                cure = f"use PDO(setting='unlabelled'){OTHERS}"
                check_text_inputs(self.name, dict(example.inputs().items()), cure=cure)

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Each order on as many probing inputs as the budget pays for; then the winner beside the original."""
        num_orders, budget = min(self.num_candidates, num_distinct), self.max_metric_calls
        most, least = len(self.fillers) or num_train, len(self.fillers) or 1
        if self.temperature:  # A call writes an input, and one each is for those that were written.
            most, least = 1 + num_orders, 2

        def affordable(budget: int) -> tuple[int, int]:
            """Program calls for each order, and examples of the comparison."""
            compared = min(num_selection, max(MIN_EXAMPLES, int(COMPARED_SHARE * budget) // 2))
            return min(most, (budget - 2 * compared) // num_orders), compared

        num_calls, num_compared = (most, num_selection) if budget is None else affordable(budget)
        if num_calls < least:
            enough = next(b for b in itertools.count(num_orders) if affordable(b)[0] >= least)
            raise UserError(
                f"max_metric_calls must be at least {enough} for {num_orders} orders; got {budget}: raise it, or lower "
                "num_candidates"
            )
        return random_plan(num_orders, num_examples=num_calls, num_best=1, num_compared=num_compared, budget=budget)

    def work(self, job: Job) -> ProbingWork:
        return ProbingWork(self, job)

    def _examples(self, job: Job, work: Any) -> tuple[list[str], list[str]]:
        probing = ["the writing of a probing input"] * work.first
        keys = [f"{each} at temperature {self.temperature}" for each in probing]
        keys += [f"probing by {digest(each)}" for each in work.asked]
        keys += ["not written yet"] * (work.num_probing - len(keys))
        probing += [f"probing input {i}" for i in range(work.first, work.num_probing)]
        names, others = (each[len(job.splits.train) :] for each in super()._examples(job, work))
        return probing + names, keys + others

    def _compilation(self, job: Job, work: Any, scorer: CellScorer, *options: Any) -> Any:
        return LabelCompilation(self, job, work, scorer)


class LabelCompilation(Compilation):
    """One compile, with the mean distribution ``[L]`` over the inputs of each order asked as `means`."""

    def __init__(self, optimizer: LabelReorderer, job: Job, work: ProbingWork, scorer: CellScorer) -> None:
        shape: dict[str, Any] = {"plan": job.plan, "num_train": work.num_probing, "original": job.original}
        super().__init__(optimizer.search(job), scorer, **shape)
        self.means: dict[Ordering, Array] = {}
        self._optimizer, self._job, self._work, self._winner = optimizer, job, work, job.original

    def run(self) -> Outcome:
        """Ask all orders, and compare the best; the original order wins ties."""
        if self.search.space.num_distinct < 2:
            return super().run()
        self._begin("search", calls_to_come=self.plan.final_calls)
        orderings, scorer, work = self.search.ask(), self.scorer, self._work
        # The first one alone: if the LM gives no log-probabilities, no other call is made.
        scorer.cells({ordering: range(1) for ordering in orderings[:1]})
        rows: Mapping[Ordering, Mapping[int, Cell]] = {}
        if work.first and len(written := scorer.cells(dict.fromkeys(orderings, range(1)))) == len(orderings):
            cells = [row[0] for row in written.values()]
            if all(cell.outcome == FAILED for cell in cells):
                raise scorer.nothing_ran(cells)
            work.take([cell.value for cell in cells])
            scorer.ledger.number_examples(self._optimizer._examples(self._job, work)[1])
        if work.asked:  # Else time or money is up.
            scorer.ledger.settle()  # An input that is written later would move the others.
            rows = scorer.cells(dict.fromkeys(orderings, work.probing))
        scores = self._scores(rows) if rows else {}
        scorer.ledger.settle()
        self.stopped = "all orders asked" if len(rows) == len(orderings) else scorer.budget.refused
        table, reason = list[list[float]](), ""
        if scores:
            self._winner = max(scores, key=scores.__getitem__)
            try:
                table, *_ = self._compare([self.original, self._winner])
            except NothingRan as error:
                logger.warning("what was chosen could not be compared with the original: %s", error)
                reason = f": {error}"
        if len(table) < 2:
            return self._outcome(ordering=self._winner, stopped=f"{self.stopped}, nothing compared{reason}")
        before, after = table
        low, high = paired_interval([b - a for a, b in zip(before, after, strict=True)], 2 * ndtr(1.0) - 1)
        mean, deviation = (low + high) / 2, (high - low) / 2
        gain = Gain(mean, float(ndtr(mean / deviation)) if deviation else 0.5, deviation=deviation)
        results = [Result("original", self.original, math.fsum(before) / len(before), Gain(0.0, 0.0))]
        if self._winner != self.original:
            results.append(Result("best seen", self._winner, math.fsum(after) / len(after), gain))
        return self._outcome(
            ordering=self._winner,
            comparison=comparison(before, after, num_candidates=2, gain=results[-1].gain),
            candidates=results,
            chosen=len(results) - 1,
        )

    def _best(self, count: int | None = None) -> list[Ordering]:
        return [self._winner]

    def _scores(self, rows: Mapping[Ordering, Mapping[int, Cell]]) -> dict[Ordering, float]:
        """The criterion of each order, from its cells; sets `means`."""
        cells, probing = [cell for row in rows.values() for cell in row.values()], self._work.probing
        # Inputs that failed for an order count for none, unless that leaves no input: then such an order is the worst.
        inputs = [e for e in probing if all(row[e].outcome != FAILED for row in rows.values())] or probing
        tables = {
            ordering: [row[example].value for example in inputs]
            for ordering, row in rows.items()
            if all(row[example].outcome != FAILED for example in inputs)
        }
        if not tables:
            raise self.scorer.nothing_ran(cells)
        if all(value is None for values in tables.values() for value in values):
            cell = next(cell for cell in cells if cell.outcome != FAILED)
            raise RuntimeError(
                f"none of {len(cells)} calls gave any label a probability, so no order can be told from another; one "
                f"said: {cell.error}: {cell.message}"
            )
        uniform, scores = self._work.uniform, {}
        for ordering, values in tables.items():
            table = np.array([uniform if value is None else value for value in values])
            self.means[ordering] = table.mean(axis=0)
            scores[ordering] = self._optimizer.criterion(table)
        return {ordering: scores.get(ordering, min(scores.values())) for ordering in rows}


class ProbingWork(MetricWork):
    """Finds label probabilities of probing inputs, and has answers to the selection split, which follow, scored.

    Where the LM writes the inputs, one from each order's demos (Lu et al., ACL 2022, Section 3.1), that is the `first`
    "example". `num_probing` counts all before those that are scored, and `asked` are the probing inputs known.
    """

    def __init__(self, optimizer: LabelReorderer, job: Job) -> None:
        super().__init__(optimizer.metric, job.splits.selection)
        self._temperature, self.first = optimizer.temperature, int(optimizer.temperature is not None)
        inputs = [dict(example.inputs().items()) for example in job.splits.train]
        if optimizer.fillers:
            inputs = [dict.fromkeys(fields, text) for fields in inputs[:1] for text in optimizer.fillers]
        known = [] if self.first else inputs[: job.plan.num_train_examples]
        self.asked = [dspy.Example(fields).with_inputs(*fields) for fields in known]
        output = needed_output(job.program, optimizer.name, cure=OTHERS)
        self.uniform = [1.0 / len(output.labels)] * len(output.labels)  # where a reply says nothing of labels
        self._labels = LabelWork(None, self.asked, output=output, purpose=optimizer.name, calibrating=True)
        self.num_probing = max(1, job.plan.num_train_examples) if self.first else len(self.asked)

    @property
    def probing(self) -> range:
        return range(self.first, self.first + len(self.asked))

    def take(self, written: Sequence[Any]) -> None:
        """Take the inputs that the LM has written, None for failures: those that differ and came first."""
        distinct = {value_key(fields): fields for fields in reversed(written) if fields}
        kept = list(reversed(distinct.values()))[: self.num_probing - 1]
        self.asked[:] = [dspy.Example(fields).with_inputs(*fields) for fields in kept]
        if not kept:
            raise RuntimeError(
                f"none of {len(written)} probing inputs that the LM wrote could be used: lower `temperature`, or use a "
                "method that needs none, such as PDO"
            )
        logger.info("%d distinct probing inputs were written", len(kept))

    def __call__(self, program: dspy.Module, example: int) -> Cell:
        """Return a cell with a distribution over labels, with the fields of an input, or with a score."""
        if example >= self.num_probing:
            return super().__call__(program, example - self.num_probing)
        if example < self.first:
            return Cell(None, value=self._written_input(program))
        found = self._labels(program, example - self.first)
        if found.label_logprobs is None:
            raise WrongAnswer(LookupError("no label is among the likeliest tokens of the reply"))
        return Cell(None, value=distribution(found.label_logprobs, found.unseen_labels).tolist())

    def _written_input(self, program: dspy.Module) -> dict[str, str]:
        """A new input like the program's demos: plain completions go on after the last, other models are asked for one
        more. As long as no call had log-probabilities, this one must have them."""
        predictor, plain, requests = program.predictors()[0], PlainTextAdapter(), self._labels.requests
        signature, lm = predictor.signature, predictor.lm or dspy.settings.lm
        demos = "\n\n".join(each["content"] for each in plain.format_demos(signature, predictor.demos))
        outputs = {name: (str, dspy.OutputField()) for name in signature.input_fields}
        options: dict[str, Any] = {"temperature": self._temperature}
        if isinstance(lm, dspy.LM) and isinstance(lm.engine, CompletionEngine):
            adapter, inputs, asks = plain, {}, dspy.Signature(outputs, demos)
            for name, field in signature.input_fields.items():
                asks.output_fields[name].json_schema_extra["prefix"] = title_of(name, field)
            answer_title = title_of(*next(iter(signature.output_fields.items())))
            options |= {"max_tokens": WRITTEN_TOKENS, "stop": ["\n\n", f"\n{answer_title}"]}
        else:
            adapter, inputs = dspy.settings.adapter or dspy.ChatAdapter(), {"examples": demos}
            asks = dspy.Signature({"examples": (str, dspy.InputField()), **outputs}, WRITING)
        if telling := not requests.given:
            options |= {"logprobs": True, "top_logprobs": NUM_ALTERNATIVES}
        try:
            written = adapter(lm, options, asks, [], inputs)[0]
        except AdapterParseError as error:
            raise WrongAnswer(error) from error
        except Exception as error:
            requests.note_error(lm, error)
            requests.check(error)
            raise
        if telling:
            requests.note_reply(lm, given=bool(getattr(written.get("logprobs"), "content", None)))
            requests.check()
        fields = {name: str(written.get(name) or "").strip() for name in signature.input_fields}
        if not all(fields.values()):
            raise WrongAnswer(ValueError(f"an input without text was written: {fields}"))
        return fields


@arguments
class LocalE(LabelReorderer):
    """The order whose label distributions are least over-confident: highest mean entropy over probing inputs.

    The LM writes the probing inputs itself, one from each candidate's demos; no label is used. It needs a program
    with one predictor, one finite output (Literal, enum or bool) and text inputs, and an LM that gives
    log-probabilities. It makes ``num_candidates * (1 + inputs)`` program calls, with at most as many inputs as
    candidates, and 2 on each selection example.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them", ACL 2022, Eq. 4 to 6.

    Args:
        metric: Only says in the report how the order does beside the original one, on the selection split.
        variant: "lu", the original; "plr", as arXiv:2603.21373 words it: lowest mean entropy.
        num_candidates: Random orders, the original one among them; of fewer orders, all.
        temperature: At which probing inputs are written.
        all others: As in `PLReorder`; with max_metric_calls fewer probing inputs, so that it is never exceeded.
    """

    name = "LocalE"

    variant: Literal["lu", "plr"] = "lu"
    temperature: Positive = 2.0  # type: ignore[misc]

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the LM can write inputs: text, and those of the predictor itself."""
        super().check(program, trainset)
        taken = set(program.predictors()[0].signature.input_fields)
        for example in trainset:
            if (given := set(example.inputs().keys())) != taken:
                raise UserError(
                    f"{self.name} has the LM write inputs like those of the demos, so the predictor must take the "
                    f"program's own inputs {sorted(given)}; it takes {sorted(taken)}: use PDO, PLReorder or TopKOrder"
                )

    def criterion(self, table: Array) -> float:
        mean = float(entropy(table, axis=1).mean())
        return mean if self.variant == "lu" else -mean


@arguments
class GlobalE(LocalE):
    """The order whose predicted labels are most evenly spread: highest entropy of their shares over probing inputs.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them", ACL 2022, Eq. 2 and 3.

    Args:
        variant: "lu", the original; "plr", as arXiv:2603.21373 words it: lowest entropy of any probing input.
        metric, num_candidates, temperature, all others: As in `LocalE`.
    """

    name = "GlobalE"

    def criterion(self, table: Array) -> float:
        if self.variant == "plr":
            return -float(entropy(table, axis=1).min())
        return float(entropy(np.bincount(table.argmax(axis=1))))


@arguments
class PDO(LabelReorderer):
    """The order whose mean label distribution is nearest to a prior, by Kullback-Leibler divergence.

    Program and LM must be as for `LocalE`; inputs need be text for "few-shot" alone. It makes a program call for each
    order and input, and 2 on each selection example.

    Source: Z. Xu et al., "In-context example ordering guided by label distributions", NAACL Findings 2024.

    Args:
        setting: "few-shot": an empty input, and the uniform distribution. "unlabelled": the train split without its
            labels, and the uniform distribution. "prior": the same, and `prior`.
        prior: Probability of each label, for ``setting="prior"``; None takes the shares in the trainset.
        metric, num_candidates, all others: As in `LocalE`.
    """

    name = "PDO"

    setting: Literal["few-shot", "unlabelled", "prior"] = "few-shot"
    prior: Mapping[Any, Number] | None = None

    def check_together(self) -> None:
        if self.prior is not None and self.setting != "prior":
            raise UserError(f"prior needs setting='prior'; got setting={self.setting!r}")

    @property
    def fillers(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("",) if self.setting == "few-shot" else ()

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        super().check(program, trainset)
        output, prior, name = needed_output(program, self.name, cure=OTHERS), self.prior, "prior"
        if prior is None:
            counts = output.counts(trainset) if self.setting == "prior" and trainset else np.ones(len(output.labels))
            prior = dict(zip(output.labels, (counts / max(1.0, counts.sum())).tolist(), strict=True))
            name = "the trainset, or the prior that you pass instead,"
        self._shares = prior_shares(prior, output.labels, name=name)

    def criterion(self, table: Array) -> float:
        return -float(entropy(table.mean(axis=0), self._shares))


@arguments
class DEmO(LabelReorderer):
    """Returns a program that orders its demos for each input (`PerInputOrder`).

    The orders whose mean label distribution over content-free inputs ("[N/A]", "", "[MASK]") is nearest to uniform
    are kept; for each input, the program takes the one under which the input adds most to the probability of the
    label predicted. It makes ``3 * num_candidates`` program calls, none of them on the trainset, and the program it
    returns `num_kept` LM calls for each input. Program and LM must be as for `LocalE`.

    Source: Q. Guo et al., "What makes a good order of examples in in-context learning", ACL Findings 2024.

    Args:
        metric: By example; checked, but not used: there is no one order to compare with the original one.
        num_kept: Orders to choose from for each input. The one in the report is the fairest.
        num_candidates, all others: As in `LocalE`.
    """

    name = "DEmO"
    fillers = CONTENT_FREE

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 100
    num_kept: Count = 4

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Each order on the content-free inputs; nothing is compared, as there is no one order."""
        return super().plan(num_train=num_train, num_selection=0, num_distinct=num_distinct)

    def criterion(self, table: Array) -> float:
        return float(entropy(table.mean(axis=0)))

    def _made(self, job: Job, compilation: Any, *others: Any) -> tuple[dspy.Module, dict[str, Any]]:
        """The program that orders its demos for each input."""
        means = sorted(compilation.means.items(), key=lambda known: -float(entropy(known[1])))
        kept = [
            {"permutations": job.slots.permutations(ordering), "content_free": mean.tolist()}
            for ordering, mean in means[: self.num_kept]
        ]
        program = PerInputOrder(job.program, kept)
        program._compiled = True
        return program, {}
