"""Methods that choose by label probabilities alone: all orders are asked, and a criterion names the best."""

from __future__ import annotations

import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError
from pydantic import Field
from scipy.special import ndtr

from plr_dspy.compilation.choice import Outcome, Result, comparison
from plr_dspy.compilation.path import calls_by_phase
from plr_dspy.compilation.plan import MIN_EXAMPLES, Plan, random_plan
from plr_dspy.labels.calibrated_program import CalibratedProgram, Calibration
from plr_dspy.labels.outputs import LabelOutput, check_text_inputs, needed_output
from plr_dspy.labels.reader import LogprobRequests, Reading, asking_for_probabilities, labels_read
from plr_dspy.labels.tokens import positions_of
from plr_dspy.lm.engines import CompletionEngine
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter, title_of
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.arguments import Count, arguments
from plr_dspy.programs.calls import WRONG_ANSWERS, MetricWork, WrongAnswer, own_copy
from plr_dspy.programs.prompts import decision_adapter
from plr_dspy.programs.splits import value_key
from plr_dspy.scoring.budget import MARGIN
from plr_dspy.scoring.cells import FAILED, Cell
from plr_dspy.scoring.scorer import CellScorer, NothingRan
from plr_dspy.search.model.ordering_model import Gain
from plr_dspy.search.search import Search
from plr_dspy.search.space import Ordering
from plr_dspy.statistics.calibration import Array
from plr_dspy.statistics.comparisons import paired_interval

logger = logging.getLogger(__name__)

Criterion = Callable[[Array], float]
"""Of a table ``[E, L]`` of label probabilities; larger is better."""

COMPARED_SHARE = 0.2
"""Of a budget for the comparison with the original order, at most."""

OTHERS = ", or use PLReorder or TopKOrder, which need none"
"""What else can be done where a program has no such output."""

WRITTEN_TOKENS = 128
"""Of a probing input and its answer, at most."""

WRITING = "Write one new example of the same kind as those given: like them, but none of them."


@arguments
class LabelReorderer(Reorderer):
    """What the methods that look at label probabilities share: each has a criterion and probing inputs.

    Args:
        metric: Does not choose the order: it says in the report how the order chosen does beside the original
            one, on the selection split.
        num_candidates: Random orders, the original one among them.
        all others: As in `PLReorder`.
    """

    scored_on = "probing inputs"
    judges = False
    fillers: ClassVar[tuple[str, ...]] = ()
    """Texts that each make a probing input; without any, these are the inputs of the train split."""
    temperature: ClassVar[float | None] = None
    """At which the LM writes the probing inputs; None where it writes none."""

    num_candidates: Annotated[Count, Field(ge=2)] = 24

    @abstractmethod
    def criterion(self, job: Job) -> Criterion:
        """Return what the order chosen has most of."""

    def inputs(self, job: Job) -> list[dict[str, Any]]:
        """The probing inputs, at most as many as the plan has examples; none where the LM writes them."""
        examples = [dict(example.inputs().items()) for example in job.splits.train]
        if self.fillers:
            return [dict.fromkeys(fields, text) for fields in examples[:1] for text in self.fillers]
        return [] if self.temperature else examples[: job.plan.num_train_examples]

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the program has one predictor with one finite output, and inputs that can be made."""
        predictors = program.predictors()
        if isinstance(program, CalibratedProgram):
            raise ValueError(
                f"{self.name} reads the probabilities of labels itself, and the student is calibrated: pass "
                "student.program, and calibrate what comes of it"
            )
        if len(predictors) != 1:
            needs = f"{self.name} needs a program with one predictor"
            raise ValueError(f"{needs}; this one has {len(predictors)}: use PLReorder or TopKOrder")
        if (decisions := decision_adapter(predictors[0])) is not None:
            client = type(predictors[0].lm or dspy.settings.lm).__name__
            cure = f"use an LM in place of {client}" if decisions.system_one else "declare a Literal alone"
            raise ValueError(
                f"{self.name} reads the tokens of labels, and replies to the student state probabilities in their "
                f"place: {cure}{OTHERS}"
            )
        self.output(program)
        for example in trainset if self.fillers or self.temperature else ():
            cure = f"use PDO(setting='unlabelled'){OTHERS}"
            check_text_inputs(self.name, dict(example.inputs().items()), cure=cure)

    def output(self, program: dspy.Module) -> LabelOutput:
        """The finite output."""
        return needed_output(program, self.name, cure=OTHERS)

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
        if budget is not None and num_calls < least:
            enough = next(b for b in itertools.count(num_orders) if affordable(b)[0] >= least)
            fewer = (budget - 2 * num_compared) // least
            lower = f", or lower num_candidates to {fewer}" if fewer > 1 else ""
            raise ValueError(
                f"max_metric_calls must be at least {enough} for {num_orders} orders; got {budget}: raise it{lower}"
            )
        return random_plan(
            num_orders,
            batch=num_orders,
            num_examples=num_calls,
            num_best=1,
            num_compared=num_compared,
            max_metric_calls=budget,
        )

    def work(self, job: Job) -> ProbingWork:
        """Return what makes a call: on a probing input, or on an example of the selection split."""
        return ProbingWork(self, job)

    def _examples(self, job: Job, work: Any) -> tuple[list[str], list[str]]:
        names, keys = super()._examples(job, work)
        probing = ["the writing of a probing input"][: work.first]
        probing += [f"probing input {i}" for i in range(work.first, work.num_probing)]
        return [*probing, *names[len(job.splits.train) :]], [*probing, *keys[len(job.splits.train) :]]

    def _compilation(self, job: Job, work: Any, scorer: CellScorer, *options: Any) -> Any:
        """Make the compile of a job."""
        return LabelCompilation(
            job, work, scorer, search=self.search(job, job.plan), criterion=self.criterion(job)
        )


class LabelCompilation:
    """One compile: all orders are asked for label probabilities, and the best one is compared with the original.

    Attributes:
        means: Mean distribution ``[L]`` over the inputs, of each order asked.
    """

    def __init__(
        self, job: Job, work: ProbingWork, scorer: CellScorer, *, search: Search, criterion: Criterion
    ) -> None:
        self.means: dict[Ordering, Array] = {}
        self.scorer, self.plan, self.search = scorer, job.plan, search
        self._work, self._criterion = work, criterion
        self._original = self._best = job.original
        self._selection = range(work.num_probing, work.num_probing + job.plan.num_selection_examples)

    def run(self) -> Outcome:
        """Ask all orders, and compare the best; the original order wins ties."""
        scorer, plan = self.scorer, self.plan
        if self.search.space.num_distinct < 2:
            logger.warning("all choices of demos and order give the same prompt: there is nothing to compare")
            return self._outcome("all choices give the same prompt")
        scorer.phase = "search"
        scorer.budget.allow(1.0 - min(0.5, MARGIN * plan.final_calls / max(1, plan.program_calls)))
        orderings = self.search.ask()
        rows = self._ask(orderings)
        scores = self._scores(rows) if rows else {}
        scorer.ledger.settle()
        stopped = "all orders asked" if len(rows) == len(orderings) else scorer.budget.refused
        if not rows:
            return self._outcome(f"{stopped}, nothing compared")
        self._best = max(scores, key=scores.__getitem__)
        entries = list(dict.fromkeys([self._original, self._best]))
        scorer.phase, count = "final", len(self._selection)
        scorer.budget.allow(1.0)
        while count and not scorer.fits(dict.fromkeys(entries, self._selection[:count])):
            count -= 1
        try:
            _, table = scorer.table(entries, self._selection[:count], favoured=0) if count else ([], [])
        except NothingRan as error:
            logger.warning("what was chosen could not be compared with the original: %s", error)
            return self._outcome(f"{stopped}, nothing compared: {error}")
        if len(table) < len(entries):
            return self._outcome(f"{scorer.budget.refused or stopped}, nothing compared")
        gains = [Gain(0.0, 0.0), _gain(table[0], table[-1])]
        named = zip(("original", "best seen"), entries, table, gains, strict=False)
        candidates = [
            Result(name, order, math.fsum(row) / len(row), gain) for name, order, row, gain in named
        ]
        return self._outcome(
            stopped,
            comparison=comparison(table[0], table[-1], num_candidates=2, gain=candidates[-1].gain),
            candidates=candidates,
            chosen=len(candidates) - 1,
        )

    def unfinished(self, error: BaseException) -> Outcome:
        """What is known where the compile ended in an exception."""
        ended = "interrupted" if isinstance(error, KeyboardInterrupt) else f"ended by {type(error).__name__}"
        return self._outcome(ended + " in the final comparison" * (self.scorer.phase == "final"))

    def _ask(self, orderings: Sequence[Ordering]) -> dict[Ordering, dict[int, Cell]]:
        """The cells of orders on the probing inputs; of the first orders only when time or money is up."""
        scorer, work = self.scorer, self._work
        # The first one alone: if the LM gives no log-probabilities, no other call is made.
        scorer.cells({ordering: range(1) for ordering in orderings[:1]})
        if work.first:
            written = scorer.cells(dict.fromkeys(orderings, range(1)))
            if len(written) < len(orderings):
                return {}
            work.take([row[0].value for row in written.values()])
        scorer.ledger.settle()  # An input that is written later would move the others.
        return scorer.cells(dict.fromkeys(orderings, work.probing))

    def _scores(self, rows: Mapping[Ordering, Mapping[int, Cell]]) -> dict[Ordering, float]:
        """The criterion of each order, from its cells; sets `means`.

        Inputs that failed for an order count for none, unless that leaves no input: then such an order is the worst.
        Where no label is among the likeliest tokens, the probabilities are taken for equal.
        """
        cells = [cell for row in rows.values() for cell in row.values()]
        probing = self._work.probing
        inputs = [e for e in probing if all(row[e].outcome != FAILED for row in rows.values())] or probing
        tables = {
            ordering: [row[example].value for example in inputs]
            for ordering, row in rows.items()
            if all(row[example].outcome != FAILED for example in inputs)
        }
        if not tables:
            raise self.scorer.nothing_ran(cells, len(rows))
        told = next((value for values in tables.values() for value in values if value is not None), None)
        if told is None:
            cell = next(cell for cell in cells if cell.outcome != FAILED)
            raise RuntimeError(
                f"none of {len(cells)} calls gave any label a probability, so no order can be told from another; one "
                f"said: {cell.error}: {cell.message}"
            )
        uniform, scores = [1.0 / len(told)] * len(told), {}
        for ordering, values in tables.items():
            table = np.array([uniform if value is None else value for value in values])
            self.means[ordering] = table.mean(axis=0)
            scores[ordering] = float(self._criterion(table))
        return {ordering: scores.get(ordering, min(scores.values())) for ordering in rows}

    def _outcome(self, stopped: str, **compared: Any) -> Outcome:
        """The outcome; without what was compared, nothing was."""
        found: dict[str, Any] = {"comparison": None, "candidates": [], **compared}
        return Outcome(
            ordering=self._best,
            distributions=self.search.distributions,
            evidence=None,
            history=[],
            program_calls=calls_by_phase(self.scorer, self._original, self._selection),
            stopped=stopped,
            **found,
        )


def _gain(original: Sequence[float], chosen: Sequence[float]) -> Gain:
    """What the scores of an order beside the original one let one expect on new examples."""
    low, high = paired_interval([b - a for a, b in zip(original, chosen, strict=True)], 2 * ndtr(1.0) - 1)
    mean, deviation = (low + high) / 2, (high - low) / 2
    return Gain(mean, float(ndtr(mean / deviation)) if deviation else 0.5, deviation)


class NoLabel(Exception):
    """No label is among the likeliest tokens."""


class ProbingWork(MetricWork):
    """Finds label probabilities of probing inputs, and has answers to the selection split, which follow, scored.

    Where the LM writes the inputs, one from each order's demos (Lu et al., ACL 2022, Section 3.1), that is the first
    "example".

    Attributes:
        first: Number of the first probing input among the examples.
        num_probing: Examples before those that are scored.
    """

    def __init__(self, optimizer: LabelReorderer, job: Job) -> None:
        super().__init__(optimizer.metric, job.splits.selection)
        self._temperature, self._output = optimizer.temperature, optimizer.output(job.program)
        self._inputs = [dspy.Example(fields).with_inputs(*fields) for fields in optimizer.inputs(job)]
        self._requests = LogprobRequests(optimizer.name)
        self.first = 0 if self._temperature is None else 1
        self.num_probing = max(1, job.plan.num_train_examples) if self.first else len(self._inputs)

    @property
    def probing(self) -> range:
        """The numbers of the probing inputs."""
        return range(self.first, self.first + len(self._inputs))

    def take(self, written: Sequence[Any]) -> None:
        """Take the inputs that the LM has written, None for failures: those that differ and came first."""
        distinct = {value_key(fields): fields for fields in reversed(written) if fields}
        kept = list(reversed(distinct.values()))[: self.num_probing - 1]
        self._inputs = [dspy.Example(fields).with_inputs(*fields) for fields in kept]
        if not kept:
            raise RuntimeError(
                f"none of {len(written)} probing inputs that the LM wrote could be used: lower `temperature`, or use a "
                "method that needs none, such as PDO"
            )
        logger.info("%d distinct probing inputs were written", len(kept))

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """Return a cell with a distribution over labels, with the fields of an input, or with a score."""
        if example >= self.num_probing:
            return super().__call__(program, example - self.num_probing, usage)
        if self._temperature is not None and example < self.first:
            text = written_input(program, temperature=self._temperature, requests=self._requests)
            return Cell(None, value=text)
        shown = own_copy(self._inputs[example - self.first])
        found, _ = likely_labels(program, shown, self._output, self._requests)
        if found is None:
            labels = list(self._output.labels)
            raise WrongAnswer(
                NoLabel(f"none of the labels {labels} is among the likeliest tokens of the reply")
            )
        return Cell(None, value=distribution(found).tolist())


def likely_labels(
    program: dspy.Module, example: dspy.Example, output: LabelOutput, requests: LogprobRequests
) -> tuple[Reading | None, Any]:
    """Make one program call, which answers the likeliest label.

    Returns:
        What the reply says of labels, None for nothing; and the answer, None for one that could not be read.
    """
    given, likeliest = None, Calibration.none(output.labels).applied
    with labels_read(program, output, requests, decision=likeliest) as reader, suppress(*WRONG_ANSWERS):
        given = program(**example.inputs())
    return reader.behind(given), given


def distribution(found: Reading) -> Array:
    """Return the probabilities ``[L]`` of labels, 0 for those that are not among the likeliest tokens."""
    probabilities = np.exp(np.array(found.log_probabilities))
    probabilities[list(found.unseen)] = 0.0
    normalised: Array = probabilities / probabilities.sum()
    return normalised


def written_input(program: dspy.Module, *, temperature: float, requests: LogprobRequests) -> dict[str, str]:
    """Return a new input in the manner of a program's demos, in their order.

    Plain completions go on after the last demo; other models are asked for one more example. As long as no call had
    log-probabilities, this one must have them.
    """
    predictor = program.predictors()[0]
    lm, adapter = predictor.lm or dspy.settings.lm, dspy.settings.adapter or dspy.ChatAdapter()
    signature, plain = predictor.signature, PlainTextAdapter()
    demos = "\n\n".join(each["content"] for each in plain.format_demos(signature, predictor.demos))
    outputs = {name: (str, dspy.OutputField()) for name in signature.input_fields}
    inputs, options = {"examples": demos}, dict[str, Any](temperature=temperature)
    asks = dspy.Signature({"examples": (str, dspy.InputField()), **outputs}, WRITING)
    if isinstance(lm, dspy.LM) and isinstance(lm.engine, CompletionEngine):
        adapter, inputs, asks = plain, {}, dspy.Signature(outputs, demos)
        for name, field in signature.input_fields.items():
            asks.output_fields[name].json_schema_extra["prefix"] = title_of(name, field)
        answer_title = title_of(*next(iter(signature.output_fields.items())))
        options |= {"max_tokens": WRITTEN_TOKENS, "stop": ["\n\n", f"\n{answer_title}"]}
    telling = not requests.given
    try:
        written = adapter(
            lm, asking_for_probabilities(lm, options) if telling else options, asks, [], inputs
        )[0]
    except AdapterParseError as error:
        raise WrongAnswer(error) from error
    except Exception as error:
        requests.note_error(lm, error)
        requests.check(error)
        raise
    if telling:
        requests.note_reply(lm, given=bool(positions_of(written.get("logprobs"))))
        requests.check()
    fields = {name: str(written.get(name) or "").strip() for name in signature.input_fields}
    if not all(fields.values()):
        raise WrongAnswer(ValueError(f"an input without text was written: {fields}"))
    return fields
