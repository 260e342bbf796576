"""The resources that a compile run needs for calls: log, budget, progress bar and interrupt handler."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from plr_dspy.errors import UserError
from plr_dspy.optimizer.estimate import make_budget, num_revisions
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.prefixes import PromptPrefixes
from plr_dspy.programs.tokens import token_counter
from plr_dspy.report.report import Report
from plr_dspy.runtime import interrupts, progress_bar
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import RunLog, open_log
from plr_dspy.search.model.responses import LabelResponses

logger = logging.getLogger(__name__)


@dataclass
class OpenCompile:
    """A compile run that is ready to make calls.

    Attributes:
        setup: The setup of the run. The search may add instructions to it.
        work: The object that runs a program on an example and scores the answer.
        names: Names of the scored examples, for messages.
        payer: The object that makes calls with `work`, within the budget.
        evaluator: The evaluator that makes calls through `payer` and stores the scores.
        make_payer: A function that creates payers for other kinds of calls, such as proposals.
            All payers share the log and the budget of this run.
    """

    setup: CompileSetup
    work: MetricWork
    names: Sequence[str]
    payer: ProgramEvaluator
    evaluator: Evaluator
    make_payer: Callable[..., ProgramEvaluator]
    # The log-probabilities of labels, or None if the search learns only from scores.
    responses: LabelResponses | None = None

    @cached_property
    def prefixes(self) -> PromptPrefixes:
        """Counts of the tokens that candidates' prompts share, including candidates that the search adds."""
        # `payer` gets new slots if the search adds instructions, so look up the slots for each call.
        return PromptPrefixes(lambda candidate: self.payer.slots.build(candidate))


@contextlib.contextmanager
def open_calls(
    setup: CompileSetup, *, identity: Callable[[], dict[str, Any]], at_end: Callable[[], None]
) -> Iterator[tuple[RunLog, Callable[..., ProgramEvaluator]]]:
    """Yield the log, and a function that creates payers. On exit, close the log and other resources.

    Args:
        setup: The setup of the compile run.
        identity: A function that returns a description of everything that determines the scores.
        at_end: A function to call after the progress bar is closed.
    """
    options = setup.options
    folder = None if options.log_dir is None else Path(options.log_dir)
    if options.max_seconds is not None:
        # Load the token counter now, because loading takes seconds, and the report may need the
        # counter when no time is left.
        token_counter()([{"role": "user", "content": "a"}])
    # Bootstrapping attempts and results of the prompt model also move the progress bar.
    num_results = (
        setup.plan.program_calls + len(setup.attempts) + len(setup.proposals) + num_revisions(setup)
    )
    with (
        _new_tensors_on_cpu(),
        open_log(folder, identity, accept_changes=options.accept_changes) as log,
        progress_bar(
            num_results, display=options.display_progress, title=options.name, at_end=at_end
        ) as bar,
        interrupts() as interrupted,
    ):
        make_payer = partial(
            ProgramEvaluator,
            log=log,
            max_errors=options.max_errors,
            on_cell=lambda: bar.update(log.num_calls - bar.n),
            budget=make_budget(setup, log),
            interrupted=interrupted,
            num_threads=options.num_threads,
        )
        if folder is not None:
            _warn_of_larger_run(folder / "report.json", num_results)
        yield log, make_payer


def _warn_of_larger_run(path: Path, num_results: int) -> None:
    """Warn if the report at `path` describes a finished run with more calls than this run may make."""
    try:
        earlier = Report.load(path)
    except (OSError, UserError):  # There is no report, or it cannot be read.
        return
    num_calls = earlier.program_calls["total"]
    if num_calls > num_results and not earlier.is_unfinished:
        logger.warning(
            "%s holds a finished run of %d calls, but this run may make only %d, so it plans a new search, makes new "
            "calls and replaces the report. To get the earlier result without new calls, pass the earlier budget.",
            path.parent,
            num_calls,
            num_results,
        )


def _new_tensors_on_cpu() -> contextlib.AbstractContextManager[object]:
    """Return a context that puts new tensors on the CPU, regardless of the caller's default device."""
    cpu = torch.device("cpu")
    # A device used as a context slows down every torch operation, so use it only if necessary.
    return contextlib.nullcontext() if torch.empty(0).device == cpu else cpu
