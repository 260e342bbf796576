"""What stands open while a job's program calls are made: the log_dir, the progress bar, the signal handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from plr_dspy.optimizer.identity import identity
from plr_dspy.optimizer.job import Job
from plr_dspy.optimizer.money import make_purse
from plr_dspy.programs.evaluator import ProgramEvaluator
from plr_dspy.programs.validation import check_log_dir
from plr_dspy.runtime.progress_bar import ProgressBar
from plr_dspy.runtime.signals import Interrupts
from plr_dspy.scoring.checkpoint import Checkpoint
from plr_dspy.scoring.purse import Purse
from plr_dspy.scoring.scorer import CellScorer


@dataclass(frozen=True)
class Session:
    """A job whose calls can be made.

    Attributes:
        purse: Pays for the calls.
        scorer: Of the program's orderings, on the examples of the search followed by the selection split.
        checkpoint: Opened.
        bar: Shows how far it is.
    """

    purse: Purse
    scorer: CellScorer
    checkpoint: Checkpoint
    bar: ProgressBar


@contextmanager
def session(
    job: Job,
    *,
    num_threads: int | None,
    max_errors: int | None,
    log_dir: Path | None,
    accept_changes: bool,
    display_progress: bool,
    max_cost: float | None = None,
    at_end: Callable[[], None] | None = None,
) -> Iterator[Session]:
    """Open what a job needs to make calls, and close it at the end.

    Args:
        job: What is paid for.
        num_threads, max_errors, log_dir, accept_changes, display_progress, max_cost: As in `PLReorder`.
        at_end: Called when the bar has ended, with what it displayed still standing.

    Raises:
        ValueError: when the folder cannot be written to, or belongs to another compile, or when the money is too
            little.
        RuntimeError: when another compile is using it.
    """
    if log_dir is not None:
        check_log_dir(log_dir)
    with (
        torch.device("cpu"),  # wherever the caller's own tensors go
        Checkpoint(log_dir, partial(identity, job), accept_changes=accept_changes) as checkpoint,
        ProgressBar(
            job.plan.program_calls, display=display_progress, title=job.optimizer.name, at_end=at_end
        ) as bar,
        Interrupts() as interrupts,
    ):
        bar.advance(checkpoint.ledger.num_resumed)
        purse = make_purse(job, max_cost, checkpoint.ledger)
        evaluator = ProgramEvaluator(
            job.program,
            job.slots,
            job.setup.work,
            names=job.names,
            ledger=checkpoint.ledger,
            num_threads=num_threads,
            max_errors=max_errors,
            on_cell=bar.advance,
            purse=purse,
            interrupted=interrupts.received,
        )
        yield Session(purse, CellScorer(evaluator, max_metric_calls=job.plan.call_limit), checkpoint, bar)
