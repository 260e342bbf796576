"""Programs that choose the order of their demos for each input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

import dspy
import numpy as np
from numpy.typing import ArrayLike

from plr_dspy.dspy_compat import Parameter, set_compiled
from plr_dspy.labels.calibration import Calibration
from plr_dspy.labels.outputs import needed_output
from plr_dspy.labels.reader import LogprobRequests, Reading, labels_read
from plr_dspy.lm.plain_text_adapter import Value
from plr_dspy.metrics.copies import own_value
from plr_dspy.programs.calls import WRONG_ANSWERS
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.statistics.arrays import Array


class PerInputOrder(dspy.Module):
    """A program that chooses the order of its demos separately for each input.

    The LM is called once per order. For each order, the likeliest label's probability is
    compared with that label's mean probability on content-free inputs. The order with the
    largest increase over this mean determines the answer. If `orders` is empty, or no reply has
    label probabilities, the demos keep their original order.

    Args:
        program: A program that makes one LM call and has one output that is a Literal, an enum
            or a bool.
        orders: One dict per order. "permutations" maps predictor names to demo indices.
            "content_free" holds the mean label distribution ``[L]`` on content-free inputs.
    """

    passes_inputs_on: ClassVar[bool] = True  # lets `unwrapped` find the wrapped program

    def __init__(self, program: dspy.Module, orders: Sequence[Mapping[str, Value]] = ()) -> None:
        super().__init__()
        self.program = ProgramFactory(program).build({})
        set_compiled(self.program, False)  # Otherwise, DSPy would not save the wrapped program.
        self.orders = tuple(orders)

    def forward(self, *args: Value, **inputs: Value) -> Value:
        requests = LogprobRequests("DEmO")
        answers = []
        for order in self.orders:
            answer, reading = self._answer_in(order["permutations"], requests, args, inputs)
            if reading is not None:
                probabilities = distribution(reading.log_probabilities, reading.unseen)
                label = int(probabilities.argmax())
                answers.append((probabilities[label] - order["content_free"][label], answer))
        if not answers:
            return self.program(*args, **inputs)
        return max(answers, key=lambda pair: pair[0])[1]

    def _answer_in(
        self,
        permutations: Mapping[str, Sequence[int]],
        requests: LogprobRequests,
        args: Sequence[Value],
        inputs: Mapping[str, Value],
    ) -> tuple[Value, Reading | None]:
        """Return the program's answer with permuted demos, and the reading of the reply.

        The answer is None if the reply cannot be parsed or the prompt exceeds the context window.
        The reading is None if the answer is None or the reply has no label probabilities.
        """
        predictors = dict(self.program.named_predictors())
        demos = {}
        for name, permutation in permutations.items():
            demos[name] = [predictors[name].demos[i] for i in permutation]
        program = ProgramFactory(self.program).build(demos)
        output = needed_output(program, "DEmO")
        likeliest = Calibration.none(output.labels).applied
        # Copy the inputs for each order, because a program may modify them.
        own_args = [own_value(value) for value in args]
        own_inputs = {name: own_value(value) for name, value in inputs.items()}
        answer = None
        with labels_read(program, output, requests, decision=likeliest) as reader, suppress(*WRONG_ANSWERS):
            answer = program(*own_args, **own_inputs)
        return answer, None if answer is None else reader.reading_for(answer)

    async def aforward(self, *args: Value, **inputs: Value) -> Value:
        return await dspy.asyncify(self.forward)(*args, **inputs)

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        # DSPy saves and loads these parameters, so include the orders.
        return [("orders", _SavedOrders(self)), *super().named_parameters()]


class _SavedOrders(Parameter):  # type: ignore[misc]
    """The orders of a `PerInputOrder`, as a parameter that DSPy saves and loads."""

    def __init__(self, program: PerInputOrder) -> None:
        self._program = program

    def reset(self) -> None:
        """Do nothing, because optimizers call `reset()` only to remove demos."""

    def dump_state(self, json_mode: bool = True) -> list[Mapping[str, Value]]:
        return list(self._program.orders)

    def load_state(self, state: Sequence[Mapping[str, Value]]) -> None:
        self._program.orders = tuple(state)


def distribution(log_probabilities: ArrayLike, unseen: Sequence[int]) -> Array:
    """Return label probabilities that sum to 1, ``[L]``, with 0 for unseen labels."""
    probabilities = np.exp(np.array(log_probabilities))
    probabilities[list(unseen)] = 0.0
    return np.asarray(probabilities / probabilities.sum())
