"""Inputs that an ordering is asked for label probabilities of: without labels, without content, or self-written."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from dspy import lm15
from dspy.utils.exceptions import AdapterParseError

from plr_dspy.label_probabilities.adapter import LabelProbe, NoLabel
from plr_dspy.label_probabilities.servers import TokenServers, refusals_told, without_probabilities
from plr_dspy.lm.engines import CompletionEngine
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter, title_of
from plr_dspy.programs.calls import Metric, MetricWork, WrongAnswer, answer
from plr_dspy.programs.splits import value_key
from plr_dspy.scoring.cells import Cell

logger = logging.getLogger(__name__)

WRITTEN_TOKENS = 128
"""Of a probing input and its answer, at most."""

WRITING = "Write one new example of the same kind as those given: like them, but none of them."


class FixedInputs:
    """Inputs that are known from the start.

    Args:
        inputs: Fields and values of each.

    Attributes:
        inputs: The same.
        num_written, most: As in `ProbingInputs`.
    """

    num_written = 0

    def __init__(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        self.inputs = [dict(fields) for fields in inputs]
        self.most = len(self.inputs)

    def read(self, written: Sequence[Any]) -> int:
        """The number of inputs."""
        return len(self.inputs)


class WrittenInputs:
    """Inputs that the LM writes itself, one from each ordering's demos (Lu et al., ACL 2022, Section 3.1).

    Args:
        most: Inputs, at most: those that differ from one another and have come first.
        temperature: At which they are written.

    Attributes:
        temperature: The same.
        inputs: What has been written.
        num_written, most: As in `ProbingInputs`.
    """

    num_written = 1

    def __init__(self, most: int, *, temperature: float = 2.0) -> None:
        self.inputs: list[dict[str, Any]] = []
        self.most = 1 + most
        self.temperature = temperature

    def read(self, written: Sequence[Any]) -> int:
        """Keep what differs; returns its number."""
        distinct = {value_key(fields): dict(fields) for fields in reversed(written) if fields}
        self.inputs = list(reversed(distinct.values()))[: self.most - 1]
        if not self.inputs:
            raise RuntimeError(
                f"none of {len(written)} probing inputs that the LM wrote could be used: lower `temperature`, or use a "
                "method that needs none, such as PDO"
            )
        logger.info("%d distinct probing inputs were written", len(self.inputs))
        return len(self.inputs)


class ProbingWork:
    """Writes probing inputs, and finds label probabilities; on later examples, scores answers by a metric.

    Args:
        inputs: The probing inputs, which are its first examples.
        purpose: What needs the probabilities, for messages.
        metric, examples: As in `MetricWork`: of the examples that follow.
    """

    def __init__(
        self,
        inputs: FixedInputs | WrittenInputs,
        *,
        purpose: str,
        metric: Metric,
        examples: Sequence[dspy.Example],
    ) -> None:
        self._inputs = inputs
        self._purpose = purpose
        self._scored = MetricWork(metric, examples)
        self.models = self._scored.models
        self._servers = TokenServers(purpose)
        self._gives_probabilities = False  # as far as is known

    @property
    def sample(self) -> str:
        """The start of the program's first answer that the metric scored."""
        return self._scored.sample

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """A cell with a distribution over labels, with the fields of an input, or with a score."""
        if example >= self._inputs.most:
            return self._scored(program, example - self._inputs.most, usage)
        if isinstance(self._inputs, WrittenInputs) and example < self._inputs.num_written:
            purpose = None if self._gives_probabilities else self._purpose
            text = written_input(program, temperature=self._inputs.temperature, purpose=purpose)
            self._gives_probabilities = True
            return Cell(None, value=text)
        fields = self._inputs.inputs[example - self._inputs.num_written]
        found, _ = probed(program, fields, purpose=self._purpose, servers=self._servers)
        return Cell(None, value=found)


def probed(
    program: dspy.Module, fields: Mapping[str, Any], *, purpose: str, servers: TokenServers
) -> tuple[list[float], Any]:
    """The distribution ``[L]`` over labels that a program gives to an input, and what it answers with it.

    Raises:
        WrongAnswer: when no label is likely, or there is no answer.
        ValueError: when the program does not make one LM call.
        Exception: of the program.
    """
    probe = LabelProbe(dspy.settings.adapter or dspy.ChatAdapter(), purpose=purpose, servers=servers)
    with dspy.context(adapter=probe, disable_history=True):  # it would hold thousands of lists of tokens
        try:
            prediction = answer(program, dspy.Example(**fields).with_inputs(*fields))
        except NoLabel as error:
            raise WrongAnswer(error) from error
    if len(probe.found) != 1:
        raise ValueError(
            f"{purpose} needs a program that makes one LM call for each input; this one made {len(probe.found)}: use "
            "PLReorder or TopKOrder"
        )
    return [float(p) for p in probe.found[0]], prediction


def written_input(program: dspy.Module, *, temperature: float, purpose: str | None = None) -> dict[str, str]:
    """A new input in the manner of a program's demos, in their order.

    Plain completions go on after the last demo; other models are asked for one more example.

    Args:
        program: With its demos.
        temperature: At which it is written.
        purpose: What will need log-probabilities: the LM must give them for this input. None does not ask.

    Raises:
        NoProbabilities: when it gives none.
        WrongAnswer: when the reply cannot be read, or is empty.
        Exception: of the LM.
    """
    predictor = program.predictors()[0]
    lm, adapter = predictor.lm or dspy.settings.lm, dspy.settings.adapter or dspy.ChatAdapter()
    signature = predictor.signature
    plain = PlainTextAdapter()
    shown = [message["content"] for message in plain.format_demos(signature, predictor.demos)]
    outputs = {name: (str, dspy.OutputField()) for name in signature.input_fields}
    try:
        if isinstance(lm, dspy.LM) and isinstance(lm.engine, CompletionEngine):
            asks = dspy.Signature(outputs)
            for name, field in signature.input_fields.items():
                asks.output_fields[name].json_schema_extra["prefix"] = title_of(name, field)
            prompt = "\n\n".join([*shown, plain.format(asks, [], {})[0]["content"]])
            text = _complete_prompt(lm, prompt, temperature=temperature, purpose=purpose)
            answers = "|".join(re.escape(title_of(*output)) for output in signature.output_fields.items())
            written = plain.parse(asks, re.split(rf"\n(?:{answers})", text, maxsplit=1)[0])
        else:
            asks = dspy.Signature({"examples": (str, dspy.InputField()), **outputs}, WRITING)
            wanted = {"temperature": temperature, **({"logprobs": True} if purpose else {})}
            with refusals_told(lm, purpose):
                replies = adapter(lm, wanted, asks, [], {"examples": "\n\n".join(shown)})
            written = dict(replies[0])
            if purpose and not getattr(written.get("logprobs"), "content", None):
                raise without_probabilities(lm, purpose)
    except AdapterParseError as error:
        raise WrongAnswer(error) from error
    fields = {name: str(written.get(name) or "").strip() for name in signature.input_fields}
    if not all(fields.values()):
        raise WrongAnswer(ValueError(f"an input without text was written: {fields}"))
    return fields


def _complete_prompt(lm: dspy.LM, prompt: str, *, temperature: float, purpose: str | None) -> str:
    """What a model of plain completions writes after a prompt, up to a blank line."""
    logprobs = 1 if purpose else None
    config = lm15.Config(
        max_tokens=WRITTEN_TOKENS, temperature=temperature, stop=("\n\n",), logprobs=logprobs
    )
    with refusals_told(lm, purpose):
        reply = lm(lm15.Request(model=lm.model, messages=(lm15.Message.user(prompt),), config=config))
    if purpose and not reply.logprobs:
        raise without_probabilities(lm, purpose)
    return str(reply.message.text or "")
