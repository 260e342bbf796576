"""Program calls for the label probabilities of inputs whose labels nobody need know; the LM may write these itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import dspy
import numpy as np
from dspy.utils.exceptions import AdapterParseError

from plr_dspy.labels.calibrated_program import Calibration
from plr_dspy.labels.outputs import LabelOutput
from plr_dspy.labels.reader import LogprobRequests, Reading, asking_for_probabilities, labels_read
from plr_dspy.labels.tokens import positions_of
from plr_dspy.lm.engines import CompletionEngine
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter, title_of
from plr_dspy.programs.calls import WRONG_ANSWERS, Metric, MetricWork, WrongAnswer, own_copy
from plr_dspy.programs.splits import value_key
from plr_dspy.scoring.cells import Cell
from plr_dspy.statistics.calibration import Array

logger = logging.getLogger(__name__)

WRITTEN_TOKENS = 128
"""Of a probing input and its answer, at most."""

WRITING = "Write one new example of the same kind as those given: like them, but none of them."


class NoLabel(Exception):
    """No label is among the likeliest tokens."""


class ProbingWork(MetricWork):
    """Finds label probabilities of probing inputs, and has answers to the examples that follow them scored.

    Args:
        metric, examples: Score the answers, as in `MetricWork`.
        inputs: The probing inputs; none where the LM writes them.
        output: The program's output.
        purpose: What needs the probabilities, for messages.
        temperature: At which the LM writes an input from each order's demos (Lu et al., ACL 2022, Section 3.1), as
            the first example; None where it writes none.
        most: Inputs that are written, at most.

    Attributes:
        first: Number of the first probing input among the examples.
        num_probing: Examples before those that are scored.
        names: What messages call these.
    """

    def __init__(
        self,
        metric: Metric,
        examples: Sequence[dspy.Example],
        *,
        inputs: Sequence[dspy.Example],
        output: LabelOutput,
        purpose: str,
        temperature: float | None = None,
        most: int = 0,
    ) -> None:
        super().__init__(metric, examples)
        self.first = 0 if temperature is None else 1
        self.num_probing = self.first + (most or len(inputs))
        numbered = [f"probing input {i}" for i in range(self.first, self.num_probing)]
        self.names = ["the writing of a probing input"][: self.first] + numbered
        self._inputs, self._output, self._temperature = inputs, output, temperature
        self._requests = LogprobRequests(purpose)

    @property
    def probing(self) -> range:
        """The numbers of the probing inputs."""
        return range(self.first, self.first + len(self._inputs))

    def take(self, written: Sequence[Any]) -> None:
        """Take the inputs that the LM has written, None for failures: those that differ and came first.

        Raises:
            RuntimeError: when none can be used.
        """
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
        """Return a cell with a distribution over labels, with the fields of an input, or with a score.

        Raises:
            NoProbabilities: when the LM gives none.
            WrongAnswer: when no label is likely, or there is no answer.
            Exception: of the program.
        """
        if example >= self.num_probing:
            return super().__call__(program, example - self.num_probing, usage)
        if self._temperature is not None and example < self.first:
            text = written_input(program, temperature=self._temperature, requests=self._requests)
            return Cell(None, value=text)
        found, _ = likely_labels(
            program, own_copy(self._inputs[example - self.first]), self._output, self._requests
        )
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

    Raises:
        NoProbabilities: when the LM gives none.
        Exception: of the program.
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

    Plain completions go on after the last demo; other models are asked for one more example.

    Args:
        program: With its demos.
        temperature: At which it is written.
        requests: Knows whether any call had log-probabilities: as long as none had, this one must have them.

    Raises:
        NoProbabilities: when the LM gives none.
        WrongAnswer: when the reply cannot be read, or is empty.
        Exception: of the LM.
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
