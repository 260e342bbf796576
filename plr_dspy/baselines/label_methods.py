"""LocalE, GlobalE, PDO and DEmO: choose orders by their label probabilities on probing inputs."""

from __future__ import annotations

import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import dspy
import numpy as np
from pydantic import Field
from scipy.special import ndtr
from scipy.stats import entropy

from plr_dspy.compilation.choice import Decision, Outcome, Result
from plr_dspy.compilation.comparison import comparison
from plr_dspy.compilation.paper import random_plan
from plr_dspy.compilation.plan import MIN_EXAMPLES, Plan, ProblemSize
from plr_dspy.compilation.run import NOT_COMPARED, CompileRun
from plr_dspy.dspy_compat import AdapterParseError, decision_adapter, set_compiled
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram, distribution
from plr_dspy.labels.calibrated_program import PerInputOrder as PerInputOrder
from plr_dspy.labels.outputs import CONTENT_FREE, check_text_inputs, needed_output, prior_shares
from plr_dspy.labels.reader import NUM_ALTERNATIVES
from plr_dspy.labels.work import LabelWork
from plr_dspy.lm.engines import CompletionEngine
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter, title_of
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.optimizer.base import DemoOptimizer, OpenCompile
from plr_dspy.optimizer.report_builder import FinishedProgram
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.calls import MetricWork, WrongAnswer
from plr_dspy.programs.checks import Count, Number, Positive, WholeNumber, arguments
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.splits import value_key
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.evaluator import Evaluator, NothingRan
from plr_dspy.scoring.run_log import FAILED, CallRecord
from plr_dspy.search.model.ordering_model import Gain
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.calibration import Array
from plr_dspy.statistics.comparisons import paired_interval

logger = logging.getLogger(__name__)

COMPARED_SHARE = 0.2  # of a budget for the comparison with the original order, at most
OTHERS = ", or use PLReorder or TopKOrder, which need none"
ONE_DEVIATION = 2 * ndtr(1.0) - 1  # confidence of an interval of one standard error
WRITTEN_TOKENS = 128  # of a probing input and its answer, at most
WRITING = "Write one new example of the same kind as those given: like them, but none of them."

Rows = Mapping[Candidate, Mapping[int, CallRecord]]


@arguments
class LabelOptimizer(DemoOptimizer):
    """Base of the methods, which differ in their criterion and their probing inputs.

    The metric does not choose the order; it compares the choice with the original.
    """

    scored_on = "probing inputs"
    chooses_by_score = False
    # Probing inputs are the fillers, or written by the LM at this temperature.
    # If there is neither, they are inputs of the train split.
    fillers: ClassVar[tuple[str, ...]] = ()
    temperature: ClassVar[float | None] = None

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 24

    @abstractmethod
    def criterion(self, table: Array) -> float:
        """Return what to maximise, from an order's distributions over labels ``[E, L]``."""

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the program has one predictor with one finite output."""
        if isinstance(self.metric, SetMetric):
            raise UserError(f"metric must be one by example for {self.name}; got {self.metric!r}: use PLReorder")
        if isinstance(program, CalibratedProgram):
            raise UserError(
                f"{self.name} reads the probabilities of labels itself, and the student is calibrated: pass "
                "student.program, and calibrate the result"
            )
        predictors = program.predictors()
        if len(predictors) != 1:
            raise UserError(
                f"{self.name} needs a program with one predictor; this one has {len(predictors)}: "
                "use PLReorder or TopKOrder"
            )
        if decision_adapter(predictors[0]) is not None:
            raise UserError(
                f"{self.name} reads the tokens of labels, and replies to the student state probabilities "
                f"instead: declare a Literal alone, and use a dspy.LM{OTHERS}"
            )
        needed_output(program, self.name, cure=OTHERS)
        if self.fillers or self.temperature:
            cure = f"use PDO(setting='unlabelled'){OTHERS}"
            for example in trainset:
                check_text_inputs(self.name, dict(example.inputs().items()), cure=cure)

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        """Plan each order on as many probing inputs as affordable, then a comparison."""
        num_orders = min(self.num_candidates, size.num_distinct)
        least = len(self.fillers) or 1
        most = len(self.fillers) or size.num_train
        if self.temperature:  # Each order writes an input, and answers those of all.
            least = 2
            most = 1 + num_orders

        def affordable(budget: int) -> tuple[int, int]:
            """Return the calls for each order, and the examples of the comparison."""
            share = int(COMPARED_SHARE * budget) // 2
            num_compared = min(size.num_selection, max(MIN_EXAMPLES, share))
            return min(most, (budget - 2 * num_compared) // num_orders), num_compared

        budget = self.max_metric_calls
        num_calls = most
        num_compared = size.num_selection
        if budget is not None:
            num_calls, num_compared = affordable(budget)
        if num_calls < least:
            enough = next(b for b in itertools.count(num_orders) if affordable(b)[0] >= least)
            raise UserError(
                f"max_metric_calls must be at least {enough} for {num_orders} orders; got {budget}: "
                "raise it, or lower num_candidates"
            )
        return random_plan(num_orders, num_examples=num_calls, num_best=1, num_compared=num_compared, budget=budget)

    def work(self, setup: CompileSetup) -> ProbingWork:
        return ProbingWork(self, setup)

    def _examples(self, setup: CompileSetup, work: Any) -> tuple[list[str], list[str]]:
        names = [f"probing input {i}" for i in range(work.first, work.num_probing)]
        keys = [f"probing by {digest(example)}" for example in work.inputs]
        keys += ["not written yet"] * (len(names) - len(keys))
        if work.first:
            writing = "the writing of a probing input"
            names.insert(0, writing)
            keys.insert(0, f"{writing} at temperature {self.temperature}")
        all_names, all_keys = super()._examples(setup, work)
        num_train = len(setup.splits.train)
        return names + all_names[num_train:], keys + all_keys[num_train:]

    def _make_run(self, opened: OpenCompile) -> LabelRun:
        work = opened.work
        assert isinstance(work, ProbingWork)
        return LabelRun(self, opened.setup, work, opened.scorer)


class LabelRun(CompileRun):
    """One compile; `means` holds each order's mean distribution ``[L]`` over the inputs."""

    def __init__(self, optimizer: LabelOptimizer, setup: CompileSetup, work: ProbingWork, scorer: Evaluator) -> None:
        super().__init__(
            optimizer.search(setup), scorer, plan=setup.plan, num_train=work.num_probing, original=setup.original
        )
        self.means: dict[Candidate, Array] = {}
        self._optimizer = optimizer
        self._setup = setup
        self._work = work
        self._winner = setup.original

    def run(self) -> Outcome:
        """Probe all orders, and compare the best with the original, which wins ties."""
        if self.search.space.num_distinct < 2:
            return super().run()
        self.begin_phase("search", to_come=self.plan.final_calls)
        orderings = self.search.ask()
        rows = self._probe(orderings)
        scores = self._scores(rows)
        reason = self.evaluator.budget.refused
        if len(rows) == len(orderings):
            reason = StopReason.ALL_ASKED
        self.stop = Stop(reason or StopReason.TIME)
        error_text = ""
        table: list[list[float]] = []
        if scores:
            self._winner = max(scores, key=scores.__getitem__)
            try:
                table = self._table()
            except NothingRan as error:
                logger.warning("the chosen order could not be compared with the original: %s", error)
                error_text = f": {error}"
        if len(table) < 2:
            stop = replace(self.stop, addition=f"{NOT_COMPARED}{error_text}")
            return self.outcome(Decision(self._winner), stop)
        return self._compared(*table)

    def _probe(self, orderings: Sequence[Candidate]) -> Rows:
        """Return the cells of the probing inputs; empty if time or money is up."""
        scorer = self.evaluator
        # Call once first: if the LM gives no log-probabilities, no other call is made.
        scorer.evaluate({ordering: range(1) for ordering in orderings[:1]})
        if self._work.first:
            written = scorer.evaluate(dict.fromkeys(orderings, range(1)))
            if len(written) < len(orderings):
                return {}
            cells = [row[0] for row in written.values()]
            if all(cell.outcome == FAILED for cell in cells):
                raise scorer.nothing_ran(cells)
            self._work.take([cell.value for cell in cells])
            scorer.log.number_examples(self._optimizer._examples(self._setup, self._work)[1])
        return scorer.evaluate(dict.fromkeys(orderings, self._work.probing))

    def _compared(self, before: Sequence[float], after: Sequence[float]) -> Outcome:
        differences = [b - a for a, b in zip(before, after, strict=True)]
        low, high = paired_interval(differences, ONE_DEVIATION)
        mean = (low + high) / 2
        deviation = (high - low) / 2
        probability = 0.5
        if deviation:
            probability = float(ndtr(mean / deviation))
        gain = Gain(0.0, 0.0)
        candidates = [Result("original", self.original, math.fsum(before) / len(before), gain)]
        if self._winner != self.original:
            gain = Gain(mean, probability, deviation=deviation)
            candidates.append(Result("best seen", self._winner, math.fsum(after) / len(after), gain))
        decision = Decision(
            self._winner,
            comparison=comparison(before, after, num_candidates=2, gain=gain),
            candidates=candidates,
            chosen=len(candidates) - 1,
        )
        return self.outcome(decision)

    def _table(self) -> list[list[float]]:
        """Return the scores of the original and the chosen order in the final comparison; empty without one."""
        finalists = {self.original: "original", self._winner: "best seen"}
        compared = self.compare(finalists, min_finalists=1)
        _, rows = self.observations.with_records(compared.records).table(list(finalists), compared.examples)
        return [rows[0], rows[-1]] if compared.finalists.keys() == finalists.keys() else []

    def best(self) -> list[Candidate]:
        return [self._winner]

    def _scores(self, rows: Rows) -> dict[Candidate, float]:
        """Return the criterion of each order; also fill `means`."""
        if not rows:
            return {}
        # Leave out inputs that failed for an order. If that leaves none, the orders
        # with failures are the worst.
        failed: set[int] = set()
        for row in rows.values():
            failed |= {i for i, cell in row.items() if cell.outcome == FAILED}
        inputs = [i for i in self._work.probing if i not in failed] or self._work.probing
        tables: dict[Candidate, list[list[float] | None]] = {}
        for ordering, row in rows.items():
            if all(row[i].outcome != FAILED for i in inputs):
                tables[ordering] = [row[i].value for i in inputs]
        cells = list(itertools.chain.from_iterable(row.values() for row in rows.values()))
        if not tables:
            raise self.evaluator.nothing_ran(cells)
        if all(value is None for value in itertools.chain(*tables.values())):
            cell = next(cell for cell in cells if cell.outcome != FAILED)
            raise RuntimeError(
                f"none of {len(cells)} calls gave any label a probability, so the orders cannot be compared; "
                f"one said: {cell.error}: {cell.message}"
            )
        scores = {}
        for ordering, values in tables.items():
            table = np.array([self._work.uniform if value is None else value for value in values])
            self.means[ordering] = table.mean(axis=0)
            scores[ordering] = self._optimizer.criterion(table)
        worst = min(scores.values())
        return {ordering: scores.get(ordering, worst) for ordering in rows}


class ProbingWork(MetricWork):
    """Reads label probabilities of probing inputs; scores the selection split after them.

    If the LM writes the inputs, "example" 0 is to write one from an order's demos
    (Lu et al., ACL 2022, Section 3.1).

    Attributes:
        first: Number of the first probing input, 0 or 1.
        num_probing: Number of examples before the selection split.
        inputs: Probing inputs that are known.
    """

    def __init__(self, optimizer: LabelOptimizer, setup: CompileSetup) -> None:
        super().__init__(optimizer.metric, setup.splits.selection)
        output = needed_output(setup.program, optimizer.name, cure=OTHERS)
        self.uniform = [1.0 / len(output.labels) for _ in output.labels]
        self._temperature = optimizer.temperature
        self.first = int(optimizer.temperature is not None)
        num_inputs = setup.plan.num_train_examples
        self.num_probing = max(1, num_inputs)
        self.inputs: list[dspy.Example] = []
        if not self.first:
            inputs = [dict(example.inputs().items()) for example in setup.splits.train]
            if inputs and optimizer.fillers:
                inputs = [dict.fromkeys(inputs[0], text) for text in optimizer.fillers]
            self._add(inputs[:num_inputs])
            self.num_probing = len(self.inputs)
        self._labels = LabelWork(None, self.inputs, output=output, purpose=optimizer.name, calibrating=True)

    @property
    def probing(self) -> range:
        return range(self.first, self.first + len(self.inputs))

    def take(self, written: Sequence[dict[str, str] | None]) -> None:
        """Take the first distinct inputs that the LM has written, None for failures."""
        distinct: dict[bytes, dict[str, str]] = {}
        for fields in written:
            if fields:
                distinct.setdefault(value_key(fields), fields)
        self.inputs.clear()
        self._add(list(distinct.values())[: self.num_probing - 1])
        if not self.inputs:
            raise RuntimeError(
                f"none of {len(written)} probing inputs that the LM wrote could be used: lower `temperature`, "
                "or use a method that needs none, such as PDO"
            )
        logger.info("%d distinct probing inputs were written", len(self.inputs))

    def _add(self, inputs: Sequence[Mapping[str, object]]) -> None:
        self.inputs += [dspy.Example(fields).with_inputs(*fields) for fields in inputs]

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Return a cell with label probabilities, a written input, or a score."""
        if example >= self.num_probing:
            return super().__call__(program, example - self.num_probing)
        if example < self.first:
            return CallRecord(None, value=self._written_input(program))
        cell = self._labels(program, example - self.first)
        if cell.label_logprobs is None:
            raise WrongAnswer(LookupError("no label is among the likeliest tokens of the reply"))
        return CallRecord(None, value=distribution(cell.label_logprobs, cell.unseen_labels).tolist())

    def _written_input(self, program: dspy.Module) -> dict[str, str]:
        """Write a new input like the program's demos.

        The first call asks for log-probabilities, to find out if the LM has any.
        """
        predictor = program.predictors()[0]
        lm = predictor.lm or dspy.settings.lm
        adapter, signature, inputs = self._writing_prompt(predictor, lm)
        options: dict[str, object] = {"temperature": self._temperature}
        if isinstance(adapter, PlainTextAdapter):
            answer_title = title_of(*next(iter(predictor.signature.output_fields.items())))
            options |= {"max_tokens": WRITTEN_TOKENS, "stop": ["\n\n", f"\n{answer_title}"]}
        requests = self._labels.requests
        asks_logprobs = not requests.given
        if asks_logprobs:
            options |= {"logprobs": True, "top_logprobs": NUM_ALTERNATIVES}
        try:
            reply = adapter(lm, options, signature, [], inputs)[0]
        except AdapterParseError as error:
            raise WrongAnswer(error) from error
        except Exception as error:
            requests.note_error(lm, error)
            requests.check(error)
            raise
        if asks_logprobs:
            requests.note_reply(lm, given=bool(getattr(reply.get("logprobs"), "content", None)))
            requests.check()
        fields = {name: str(reply.get(name) or "").strip() for name in predictor.signature.input_fields}
        if not all(fields.values()):
            raise WrongAnswer(ValueError(f"an input without text was written: {fields}"))
        return fields

    def _writing_prompt(
        self, predictor: dspy.Predict, lm: dspy.BaseLM
    ) -> tuple[dspy.Adapter, type[dspy.Signature], dict[str, str]]:
        """Return adapter, signature and inputs: completions continue after the demos, chats are asked."""
        plain = PlainTextAdapter()
        input_fields = predictor.signature.input_fields
        messages = plain.format_demos(predictor.signature, predictor.demos)
        demos = "\n\n".join(message["content"] for message in messages)
        outputs = {name: (str, dspy.OutputField()) for name in input_fields}
        if isinstance(lm, dspy.LM) and isinstance(lm.engine, CompletionEngine):
            signature = dspy.Signature(outputs, demos)
            for name, field in input_fields.items():
                signature.output_fields[name].json_schema_extra["prefix"] = title_of(name, field)
            return plain, signature, {}
        adapter = dspy.settings.adapter or dspy.ChatAdapter()
        signature = dspy.Signature({"examples": (str, dspy.InputField()), **outputs}, WRITING)
        return adapter, signature, {"examples": demos}


@arguments
class LocalE(LabelOptimizer):
    """Choose the order with the highest mean entropy of its label distributions.

    The LM writes the probing inputs from each candidate's demos; no label is used.
    The program must have one predictor, one finite output (Literal, enum or bool)
    and text inputs. The LM must give log-probabilities. It makes
    ``num_candidates * (1 + inputs)`` program calls, with at most as many inputs as
    candidates, and 2 on each selection example.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them",
    ACL 2022, Eq. 4 to 6.

    Args:
        metric: Compares the order with the original one, on the selection split.
        variant: "lu", the original; "plr", as arXiv:2603.21373 words it: lowest mean entropy.
        num_candidates: Number of random orders, the original one included.
        temperature: Temperature at which probing inputs are written.
        all others: As in `PLReorder`; max_metric_calls reduces the probing inputs.
    """

    name = "LocalE"

    variant: Literal["lu", "plr"] = "lu"
    temperature: Positive = 2.0  # type: ignore[misc]

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the LM can write inputs: text, and those of the predictor itself."""
        super().check(program, trainset)
        predictor_inputs = set(program.predictors()[0].signature.input_fields)
        for example in trainset:
            inputs = set(example.inputs().keys())
            if inputs != predictor_inputs:
                raise UserError(
                    f"{self.name} has the LM write inputs like those of the demos, so the predictor must take the "
                    f"program's own inputs {sorted(inputs)}; it takes {sorted(predictor_inputs)}: "
                    "use PDO, PLReorder or TopKOrder"
                )

    def criterion(self, table: Array) -> float:
        mean = float(entropy(table, axis=1).mean())  # Lu et al., Eq. 6
        return mean if self.variant == "lu" else -mean


@arguments
class GlobalE(LocalE):
    """Choose the order whose predicted labels have the highest entropy of their shares.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them",
    ACL 2022, Eq. 2 and 3.

    Args:
        variant: "lu", the original; "plr", as arXiv:2603.21373 words it: lowest entropy of any input.
        metric, num_candidates, temperature, all others: As in `LocalE`.
    """

    name = "GlobalE"

    def criterion(self, table: Array) -> float:
        if self.variant == "plr":
            return -float(entropy(table, axis=1).min())
        return float(entropy(np.bincount(table.argmax(axis=1))))  # Lu et al., Eq. 3


@arguments
class PDO(LabelOptimizer):
    """Choose the order whose mean label distribution is nearest to a prior, by KL divergence.

    Program and LM must be as for `LocalE`, but only "few-shot" needs text inputs. It
    makes a program call for each order and input, and 2 on each selection example.

    Source: Z. Xu et al., "In-context example ordering guided by label distributions",
    NAACL Findings 2024.

    Args:
        setting: "few-shot": an empty input, and even shares. "unlabelled": the train
            split without its labels, and even shares. "prior": the same, and `prior`.
        prior: Probability of each label; None takes the shares in the trainset.
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
        output = needed_output(program, self.name, cure=OTHERS)
        if self.prior is not None:
            self._shares = prior_shares(self.prior, output.labels, name="prior")
            return
        counts = np.ones(len(output.labels))
        if self.setting == "prior" and trainset:
            counts = output.counts(trainset)
        shares = (counts / max(1.0, counts.sum())).tolist()
        prior = dict(zip(output.labels, shares, strict=True))
        name = "the trainset, or the prior that you pass instead,"
        self._shares = prior_shares(prior, output.labels, name=name)

    def criterion(self, table: Array) -> float:
        return -float(entropy(table.mean(axis=0), self._shares))


@arguments
class DEmO(LabelOptimizer):
    """Return a program that orders its demos for each input (`PerInputOrder`).

    It keeps the orders whose mean label distribution over content-free inputs
    ("[N/A]", "", "[MASK]") is nearest to even. For each input, the program takes the
    one under which the input adds most to the probability of the predicted label.
    It makes ``3 * num_candidates`` program calls, none of them on the trainset. The
    program makes `num_kept` LM calls for each input. Program and LM must be as for
    `LocalE`.

    Source: Q. Guo et al., "What makes a good order of examples in in-context
    learning", ACL Findings 2024.

    Args:
        metric: By example; checked, but not used, as there is no single order to compare.
        num_kept: Orders to choose from for each input. The report has the fairest.
        num_candidates, all others: As in `LocalE`.
    """

    name = "DEmO"
    fillers = CONTENT_FREE

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 100
    num_kept: Count = 4

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        """Plan each order on the content-free inputs, and no comparison."""
        return super().plan(replace(size, num_selection=0))

    def criterion(self, table: Array) -> float:
        return float(entropy(table.mean(axis=0)))

    def _finish(self, setup: CompileSetup, run: CompileRun, *others: object) -> FinishedProgram:
        assert isinstance(run, LabelRun)
        fairest_first = sorted(run.means.items(), key=lambda item: -float(entropy(item[1])))
        orders = [
            {"permutations": setup.slots.permutations(ordering), "content_free": mean.tolist()}
            for ordering, mean in fairest_first[: self.num_kept]
        ]
        program = PerInputOrder(setup.program, orders)
        set_compiled(program, True)
        return FinishedProgram(program)
