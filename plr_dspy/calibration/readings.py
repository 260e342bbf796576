"""The probabilities of labels that calibration starts from: one program call for each input."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import dspy

from plr_dspy.calibration.outputs import PURPOSE, output_reader, reading_of_answer
from plr_dspy.calibration.program import Calibration
from plr_dspy.label_probabilities.reader import Reading
from plr_dspy.label_probabilities.requests import LogprobRequests
from plr_dspy.label_probabilities.servers import without_probabilities
from plr_dspy.lm.finite_outputs import label_text
from plr_dspy.programs.calls import WrongAnswer, answer, own_copy
from plr_dspy.programs.evaluator import ProgramEvaluator
from plr_dspy.programs.label_scores import LabelOutput
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.runtime.progress_bar import ProgressBar
from plr_dspy.runtime.signals import Interrupts
from plr_dspy.scoring.cells import FAILED, Cell
from plr_dspy.scoring.scorer import CellScorer

logger = logging.getLogger(__name__)


def readings(
    program: dspy.Module,
    examples: Sequence[dspy.Example],
    output: LabelOutput,
    *,
    as_it_is: bool,
    num_threads: int | None,
    max_errors: int | None,
    display_progress: bool,
) -> list[Reading | None]:
    """Run a program on the inputs of examples; return what each reply says of labels, None where it says nothing.

    Args:
        program: It has the output.
        examples: Only their inputs are used.
        output: The output whose labels are read.
        as_it_is: Whether readings have the label that the program answers, None where that is none. Otherwise the
            likeliest label is its answer, so that a reply that cannot be read costs no second call, as in use.
        num_threads, max_errors, display_progress: As in `BatchCalibration`.

    Raises:
        NoProbabilities: when the LM gives no log-probabilities.
        RuntimeError: when no call ended with an answer.
        Exception: of the program, see `max_errors`.
    """
    slots = ProgramSlots(program)
    with (
        ProgressBar(len(examples), display=display_progress, title="BatchCalibration") as bar,
        Interrupts() as interrupts,
    ):
        evaluator = ProgramEvaluator(
            program,
            slots,
            ReadingWork(examples, output, as_it_is=as_it_is),
            names=[f"calibration input {i}" for i in range(len(examples))],
            num_threads=num_threads,
            max_errors=max_errors,
            on_cell=bar.advance,
            interrupted=interrupts.received,
        )
        scorer = CellScorer(evaluator)
        cells = scorer.cells_each({slots.space.identity: range(len(examples))})[0]
    failed = [cell for cell in cells.values() if cell.outcome == FAILED]
    if len(failed) == len(cells):
        raise scorer.nothing_ran(failed, 1)
    if failed:
        logger.warning(
            "%d of %d calls failed, the first by %s: %s",
            len(failed),
            len(cells),
            failed[0].error,
            failed[0].message,
        )
    return [
        None if cell.label_logprobs is None else Reading(cell.value, cell.label_logprobs, cell.unseen_labels)
        for cell in cells.values()
    ]


class ReadingWork:
    """Makes program calls for what their replies say of labels.

    Args:
        examples: What cells name by index.
        output: The output whose labels are read.
        as_it_is: As in `readings`.
    """

    sample = ""
    models: Sequence[dspy.BaseLM] = ()

    def __init__(self, examples: Sequence[dspy.Example], output: LabelOutput, *, as_it_is: bool) -> None:
        self._examples = examples
        self._output = output
        self._requests = LogprobRequests(required=True)
        self._decision = None if as_it_is else Calibration.none(output.labels).applied

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """Return a cell with log-probabilities, if the reply has any; answers that cannot be read may have some.

        Raises:
            NoProbabilities: when the LM gives none.
            Exception: of the program.
        """
        reader = output_reader(program, self._output, requests=self._requests, decision=self._decision)
        given = None
        try:
            with dspy.context(adapter=reader):
                given = answer(program, own_copy(self._examples[example]))
        except WrongAnswer:
            pass
        except Exception as error:
            if not self._requests.reason:
                raise
            raise without_probabilities(reader.asked, PURPOSE) from error
        if self._requests.reason:
            raise without_probabilities(reader.asked, PURPOSE)
        found = reader.unread or reading_of_answer(reader, self._output, given)
        if found is None:
            return Cell(0.0)
        said = given.get(self._output.name) if isinstance(given, dspy.Prediction) else None
        label = label_text(self._output.labels, said)
        return Cell(0.0, value=label, label_logprobs=found.log_probabilities, unseen_labels=found.unseen)
