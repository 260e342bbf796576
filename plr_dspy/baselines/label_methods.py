"""LocalE, GlobalE, PDO and DEmO: optimizers that choose orders by label probabilities on probing inputs."""

from __future__ import annotations

import itertools
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import dspy
import numpy as np
from pydantic import Field
from scipy.stats import entropy

from plr_dspy.compiling.choice import Decision, Outcome
from plr_dspy.compiling.paper import random_plan
from plr_dspy.compiling.plan import Plan, ProblemSize
from plr_dspy.compiling.run import CompileRun
from plr_dspy.dspy_compat import AdapterParseError, current_adapter, model_of, set_compiled
from plr_dspy.errors import UserError
from plr_dspy.labels.outputs import needed_output, prior_shares
from plr_dspy.labels.per_input_order import PerInputOrder, distribution
from plr_dspy.labels.work import LabelReadingWork
from plr_dspy.lm.engines import CompletionEngine
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter, Value, title_of
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.optimizer.base import DemoOptimizer
from plr_dspy.optimizer.opening import OpenCompile
from plr_dspy.optimizer.report_builder import FinishedProgram
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.calls import MetricWork, WrongAnswer
from plr_dspy.programs.checks import Count, Number, Positive, WholeNumber, arguments
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.made_with import record_settings
from plr_dspy.programs.splits import value_key
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.evaluator import SEARCH, Evaluator
from plr_dspy.scoring.run_log import FAILED, CallRecord
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.arrays import Array

logger = logging.getLogger(__name__)

CONTENT_FREE = ("[N/A]", "", "[MASK]")  # the label probabilities for these inputs reveal bias
OTHERS = ", or use PLReorder or TopKOrder, which do not have this requirement"
WRITING = 0  # index of the calls that write an input; the written inputs have the next indices
WRITTEN_TOKENS = 128  # maximum number of tokens in a probing input written with `PlainTextAdapter`
WRITING_INSTRUCTION = "Write one new example of the same kind as those given: like them, but none of them."

Rows = Mapping[Candidate, Mapping[int, CallRecord]]


@arguments
class LabelOptimizer(DemoOptimizer):
    """The base class of optimizers that choose an order by label probabilities on probing inputs.

    The metric is not used. Subclasses define the criterion and the probing inputs.
    """

    scored_on = "probing inputs"
    chooses_by_score = False
    # Each string in `fillers` fills all fields of one probing input. Without fillers, the LM writes
    # the probing inputs at `temperature`. If `temperature` is also None, the train inputs are used.
    fillers: ClassVar[tuple[str, ...]] = ()
    temperature: ClassVar[float | None] = None

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 24

    @abstractmethod
    def criterion(self, table: Array) -> float:
        """Return the score of an order, given its label distributions on the probing inputs, ``[E, L]``.

        The order with the highest score is chosen.
        """

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise a ValueError if the method cannot be applied to this program and these examples."""
        if isinstance(self.metric, SetMetric):
            raise UserError(
                f"{self.name} needs a metric that scores single examples; got {self.metric!r}: use PLReorder instead"
            )
        num_predictors = len(program.predictors())
        if num_predictors != 1:
            raise UserError(
                f"{self.name} needs a program with exactly one predictor; got {num_predictors}: use PLReorder or "
                "TopKOrder instead"
            )
        needed_output(program, self.name, fix=OTHERS)
        if not (self.fillers or self.temperature):
            return
        for example in trainset:
            for name, value in example.inputs().items():
                if not isinstance(value, str):
                    raise UserError(
                        f"{self.name} needs inputs that are strings, like its probing inputs; got type "
                        f"{type(value).__name__} for input {name!r}: use PDO(setting='unlabelled'){OTHERS}"
                    )

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        """Return a plan that scores each order on as many probing inputs as the budget allows."""
        num_orders = min(self.num_candidates, size.num_distinct)
        least = len(self.fillers) or 1
        num_calls = len(self.fillers) or size.num_train
        if self.temperature:
            # With each order, the LM writes one input, and later answers the inputs written with all orders.
            least = 2
            num_calls = 1 + num_orders
        budget = self.max_metric_calls
        if budget is not None:
            num_calls = min(num_calls, budget // num_orders)
        if num_calls < least:
            raise UserError(
                f"max_metric_calls must be at least {least * num_orders} to score {num_orders} orders; got {budget}: "
                "increase max_metric_calls, or reduce num_candidates"
            )
        return random_plan(num_orders, num_examples=num_calls, num_best=1, num_compared=0, budget=budget)

    def work(self, setup: CompileSetup) -> ProbingWork:
        return ProbingWork(self, setup)

    def _examples(self, setup: CompileSetup, work: MetricWork) -> tuple[list[str], list[str]]:
        assert isinstance(work, ProbingWork)
        names = [f"probing input {i}" for i in work.indices]
        keys = [f"probing by {digest(example)}" for example in work.examples]
        keys += ["not written yet"] * (len(names) - len(keys))
        if work.writes_inputs:
            writing = "the writing of a probing input"
            names.insert(WRITING, writing)
            keys.insert(WRITING, f"{writing} at temperature {self.temperature}")
        return names, keys

    def _make_run(self, open_compile: OpenCompile) -> LabelRun:
        assert isinstance(open_compile.work, ProbingWork)
        return LabelRun(self, open_compile.setup, open_compile.work, open_compile.evaluator)


class LabelRun(CompileRun):
    """A compile run of a `LabelOptimizer`.

    Attributes:
        means: A dict that maps each order to its mean label distribution, ``[L]``.
    """

    def __init__(
        self, optimizer: LabelOptimizer, setup: CompileSetup, work: ProbingWork, evaluator: Evaluator
    ) -> None:
        super().__init__(
            optimizer.search(setup),
            evaluator,
            plan=setup.plan,
            num_train=work.indices.stop,
            original=setup.original,
        )
        self.means: dict[Candidate, Array] = {}
        self._optimizer = optimizer
        self._setup = setup
        self._work = work
        self._winner = setup.original

    def run(self) -> Outcome:
        """Call the program with the demos in each order, and return an outcome with the best order.

        The original order wins ties.
        """
        if self.search.space.num_distinct < 2:
            return super().run()
        self.evaluator.begin_phase(SEARCH)
        orderings = self.search.ask()
        rows = self._probe(orderings)
        scores = self._scores(rows)
        if scores:
            self._winner = max(scores, key=scores.__getitem__)
        reason = self.evaluator.budget.limit_reached
        if len(rows) == len(orderings):
            reason = StopReason.ALL_ASKED
        return self.outcome(Decision(self._winner), Stop(reason or StopReason.TIME))

    def _probe(self, orderings: Sequence[Candidate]) -> Rows:
        """Call the program with the demos in each order. Return each order's records, keyed by probing input.

        Return an empty dict if a limit is reached before the LM has written all probing inputs.
        """
        evaluator = self.evaluator
        if self._work.writes_inputs:
            rows = evaluator.evaluate({ordering: [WRITING] for ordering in orderings})
            if len(rows) < len(orderings):
                return {}
            cells = [row[WRITING] for row in rows.values()]
            if all(cell.outcome == FAILED for cell in cells):
                raise evaluator.nothing_ran_error(cells)
            self._work.take([cell.value for cell in cells])
            _, keys = self._optimizer._examples(self._setup, self._work)
            evaluator.log.number_examples(keys)
        # Make one call first, so that an error is raised at once if the LM returns no log-probabilities.
        evaluator.evaluate({orderings[0]: self._work.probing[:1]})
        return evaluator.evaluate(dict.fromkeys(orderings, self._work.probing))

    def best(self) -> list[Candidate]:
        return [self._winner]

    def _scores(self, rows: Rows) -> dict[Candidate, float]:
        """Return the scores of the orders, and store their mean label distributions in `means`."""
        if not rows:
            return {}
        cells = list(itertools.chain.from_iterable(row.values() for row in rows.values()))
        answered = [cell for cell in cells if cell.outcome != FAILED]
        if answered and all(cell.value is None for cell in answered):
            raise RuntimeError(
                f"None of the {len(cells)} calls returned a label probability, so orders cannot be compared. Use "
                f"another model or adapter. The first error was {answered[0].error}: {answered[0].message}"
            )
        # Orders can be compared only on the same inputs, so ignore each input on which any call failed.
        # If this leaves no inputs, ignore the orders with failed calls instead.
        failed_inputs: set[int] = set()
        for row in rows.values():
            failed_inputs |= {i for i, cell in row.items() if cell.outcome == FAILED}
        inputs = [i for i in self._work.probing if i not in failed_inputs] or self._work.probing
        scores = {}
        for ordering, row in rows.items():
            if any(row[i].outcome == FAILED for i in inputs):
                continue
            table = np.array([row[i].value or self._work.uniform for i in inputs])
            self.means[ordering] = table.mean(axis=0)
            scores[ordering] = self._optimizer.criterion(table)
        if not scores:
            raise self.evaluator.nothing_ran_error(cells)
        return scores


class ProbingWork(LabelReadingWork):
    """Program calls on probing inputs. Each record holds the label probabilities in the reply.

    If the LM writes the inputs, each call with the index `WRITING` writes one input in the style of
    the program's demos. Source: Lu et al., ACL 2022, Section 3.1.

    Attributes:
        writes_inputs: Whether the LM writes the probing inputs.
        indices: The indices of all possible probing inputs.
        examples: The probing inputs. If the LM writes them, the list is empty before `take()`.
    """

    def __init__(self, optimizer: LabelOptimizer, setup: CompileSetup) -> None:
        output = needed_output(setup.program, optimizer.name)
        self.writes_inputs = optimizer.temperature is not None
        examples = [] if self.writes_inputs else _known_inputs(optimizer, setup)
        super().__init__(examples, output, purpose=optimizer.name)
        self.indices = range(len(examples))
        if self.writes_inputs:
            self.indices = range(WRITING + 1, max(WRITING + 1, setup.plan.num_train_examples))
        self.uniform = [1.0 / len(output.labels) for _ in output.labels]
        self._temperature = optimizer.temperature

    @property
    def probing(self) -> range:
        """The indices of the probing inputs in `examples`."""
        return self.indices[: len(self.examples)]

    def take(self, written: Sequence[dict[str, str] | None]) -> None:
        """Set `examples` to the distinct inputs in `written`. None stands for a call that wrote no input."""
        distinct: dict[bytes, dict[str, str]] = {}
        for fields in written:
            if fields:
                distinct.setdefault(value_key(fields), fields)
        self.examples = [_example(fields) for fields in distinct.values()][: len(self.indices)]
        if not self.examples:
            raise RuntimeError(
                f"the LM must write at least one usable probing input; got none from {len(written)} calls: "
                "reduce temperature, or use a method that generates no inputs, such as PDO"
            )
        logger.info("the LM wrote %d distinct probing inputs", len(self.examples))

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Make a call, and return its record.

        The record's value is a list of label probabilities, or the fields of an input if the LM
        wrote one.
        """
        if self.writes_inputs and example == WRITING:
            return CallRecord(None, value=self._write_input(program))
        cell = super().__call__(program, self.indices.index(example))
        if cell.label_logprobs is None:
            raise WrongAnswer(LookupError("no label is among the likeliest tokens of the reply"))
        return CallRecord(None, value=distribution(cell.label_logprobs, cell.unseen_labels).tolist())

    def _write_input(self, program: dspy.Module) -> dict[str, str]:
        """Let the LM write an input in the style of the program's demos, and return the input's fields."""
        predictor = program.predictors()[0]
        lm = model_of(predictor)
        adapter, signature, inputs = _writing_prompt(predictor, lm)
        options: dict[str, object] = {"temperature": self._temperature}
        if isinstance(adapter, PlainTextAdapter):
            answer_title = title_of(*next(iter(predictor.signature.output_fields.items())))
            options |= {"max_tokens": WRITTEN_TOKENS, "stop": ["\n\n", f"\n{answer_title}"]}
        try:
            reply = adapter(lm, options, signature, [], inputs)[0]
        except AdapterParseError as error:
            raise WrongAnswer(error) from error
        fields = {name: str(reply.get(name) or "").strip() for name in predictor.signature.input_fields}
        if not all(fields.values()):
            raise WrongAnswer(ValueError(f"the LM must write text for each input field; got {fields!r}"))
        return fields


def _known_inputs(optimizer: LabelOptimizer, setup: CompileSetup) -> list[dspy.Example]:
    """Return the probing inputs of an optimizer that does not let the LM write them."""
    inputs = [dict(example.inputs().items()) for example in setup.splits.train]
    if inputs and optimizer.fillers:
        inputs = [dict.fromkeys(inputs[0], text) for text in optimizer.fillers]
    return [_example(fields) for fields in inputs[: setup.plan.num_train_examples]]


def _example(fields: Mapping[str, object]) -> dspy.Example:
    return dspy.Example(fields).with_inputs(*fields)


def _writing_prompt(
    predictor: dspy.Predict, lm: dspy.BaseLM
) -> tuple[dspy.Adapter, type[dspy.Signature], dict[str, str]]:
    """Return the adapter, signature and inputs of a call that lets the LM write a probing input.

    A completion LM continues a list of demos, whereas a chat LM follows an instruction.
    """
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
    adapter = current_adapter()
    signature = dspy.Signature({"examples": (str, dspy.InputField()), **outputs}, WRITING_INSTRUCTION)
    return adapter, signature, {"examples": demos}


@arguments
class LocalE(LabelOptimizer):
    """An optimizer that chooses the order whose label distributions have the highest mean entropy.

    A label distribution consists of the label probabilities in the reply to a probing input. For
    each order, the LM writes one probing input in the style of the demos. These inputs need no
    correct labels. The program must have exactly one predictor. Its inputs must be text, and
    exactly one output must be a Literal, an enum or a bool. The LM must return log-probabilities.
    Compiling makes at most ``num_candidates * (1 + num_candidates)`` program calls.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them",
    ACL 2022, Eq. 4 to 6.

    Args:
        metric: A metric that scores single examples. It has no effect, because the choice
            depends only on label probabilities.
        variant: "lu" chooses the highest mean entropy, as published. "plr" chooses the lowest
            mean entropy, as in arXiv:2603.21373.
        num_candidates: Maximum number of orders to try: the original order and random orders.
        temperature: Sampling temperature at which the LM writes probing inputs.
        all others: As in `PLReorder`. `max_metric_calls` limits the number of probing inputs.
    """

    name = "LocalE"

    variant: Literal["lu", "plr"] = "lu"
    temperature: Positive = 2.0  # type: ignore[misc]

    def criterion(self, table: Array) -> float:
        mean = float(entropy(table, axis=1).mean())  # Lu et al., Eq. 6
        return mean if self.variant == "lu" else -mean


@arguments
class GlobalE(LocalE):
    """An optimizer that chooses the order whose predicted labels have the highest entropy.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them",
    ACL 2022, Eq. 2 and 3.

    Args:
        variant: "lu" is the published method. "plr", from arXiv:2603.21373, chooses the order
            whose label distribution on any single input has the lowest entropy.
        metric, num_candidates, temperature, all others: As in `LocalE`.
    """

    name = "GlobalE"

    def criterion(self, table: Array) -> float:
        if self.variant == "plr":
            return -float(entropy(table, axis=1).min())
        return float(entropy(np.bincount(table.argmax(axis=1))))  # Lu et al., Eq. 3


@arguments
class PDO(LabelOptimizer):
    """An optimizer that chooses the order whose mean label distribution is closest to a prior.

    The distance is the Kullback-Leibler divergence. The requirements are the same as for
    `LocalE`, except that only the setting "few-shot" requires text inputs. Compiling makes one
    program call for each order and probing input.

    Source: Z. Xu et al., "In-context example ordering guided by label distributions",
    NAACL Findings 2024.

    Args:
        setting: The probing inputs and the prior. "few-shot" uses an empty input and a uniform
            prior. "unlabelled" uses the train inputs and a uniform prior. "prior" uses the train
            inputs and the argument `prior`.
        prior: A dict that maps each label to its share, for the setting "prior". None means the
            shares in the trainset.
        metric, num_candidates, all others: As in `LocalE`.
    """

    name = "PDO"

    setting: Literal["few-shot", "unlabelled", "prior"] = "few-shot"
    prior: Mapping[Value, Number] | None = None

    def check_together(self) -> None:
        if self.prior is not None and self.setting != "prior":
            raise UserError(
                f"prior requires setting='prior'; got setting={self.setting!r}: omit prior, or pass setting='prior'"
            )

    @property
    def fillers(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("",) if self.setting == "few-shot" else ()

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        super().check(program, trainset)
        output = needed_output(program, self.name, fix=OTHERS)
        if self.prior is not None:
            self._shares = prior_shares(self.prior, output.labels)
            return
        counts = np.ones(len(output.labels))
        if self.setting == "prior" and trainset:
            counts = output.counts(trainset)
        if not counts.all():
            missing = [label for label, count in zip(output.labels, counts, strict=True) if not count]
            raise UserError(
                f"trainset must contain an example of each label if setting='prior' and prior is None; got no example "
                f"of {' or '.join(map(repr, missing))}: add such examples, or pass prior"
            )
        self._shares = counts / counts.sum()

    def criterion(self, table: Array) -> float:
        return -float(entropy(table.mean(axis=0), self._shares))


@arguments
class DEmO(LabelOptimizer):
    """An optimizer whose compiled program chooses an order of demos for each input.

    Compiling keeps the orders whose mean label distributions on content-free inputs are closest
    to uniform. The content-free inputs are "[N/A]", "" and "[MASK]". The returned program is a
    `PerInputOrder`. For each input, this program calls the LM with each kept order. It compares the
    likeliest label's probability with this label's mean probability on content-free inputs. The
    order with the largest increase over this mean determines the answer. Compiling makes at most
    ``3 * num_candidates`` program calls. The requirements are the same as for `LocalE`.

    Source: Q. Guo et al., "What makes a good order of examples in in-context
    learning", ACL Findings 2024.

    Args:
        num_kept: Number of orders from which the returned program can choose. The report shows
            the order whose mean label distribution is closest to uniform.
        metric, num_candidates, all others: As in `LocalE`.
    """

    name = "DEmO"
    fillers = CONTENT_FREE

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 100
    num_kept: Count = 4

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
        record_settings(program)
        set_compiled(program, True)
        return FinishedProgram(program)
