"""Scores orderings of a DSPy program: which program is called for each, and with what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import dspy

from plr_dspy.orderings.space import Ordering
from plr_dspy.programs.copies import ProgramFactory, language_models
from plr_dspy.programs.evaluator import CellRunner, Variant
from plr_dspy.programs.metrics import Metric
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.programs.work import MetricWork, Work
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.scoring.cells import CellKey
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.scorer import CellScorer


class ProgramPayer:
    """Calls copies of a program, one for each ordering.

    Args:
        program: Never changed.
        slots: Its slots.
        runner: Makes the calls.
        ledger: Where the runner notes them.
    """

    def __init__(
        self, program: dspy.Module, slots: ProgramSlots, *, runner: CellRunner, ledger: Ledger
    ) -> None:
        self.ledger = ledger
        self._factory = ProgramFactory(program)
        self._slots = slots
        self._runner = runner

    def fingerprint(self, ordering: Ordering) -> str:
        """Digest of the prompts that the ordering renders to."""
        return self._slots.fingerprint(ordering)

    def pay(
        self, keys: Sequence[CellKey], orderings: Mapping[str, Ordering], *, deadline: float | None
    ) -> None:
        """Make the calls of these cells; see `CellRunner.run`."""
        variants = {
            fingerprint: Variant(self._factory.build(self._slots.demos(ordering)), self._name(ordering))
            for fingerprint, ordering in orderings.items()
        }
        self._runner.run(keys, variants, deadline=deadline)

    def _name(self, ordering: Ordering) -> str:
        permutations = self._slots.permutations(ordering)
        return ", ".join(f"{name}: {list(permutation)}" for name, permutation in permutations.items())


def program_scorer(
    program: dspy.Module,
    slots: ProgramSlots,
    *,
    metric: Metric,
    examples: Sequence[dspy.Example],
    names: Sequence[str] | None = None,
    work: Work | None = None,
    num_threads: int | None = None,
    max_errors: int | None = None,
    max_metric_calls: int | None = None,
    on_cell: Callable[[], None] | None = None,
    interrupted: threading.Event | None = None,
    ledger: Ledger | None = None,
) -> CellScorer:
    """The scorer of a program's orderings.

    Args:
        program: The program whose orderings are scored; it is never changed.
        slots: Its slots.
        metric: As in `MetricWork`.
        num_threads, max_errors, on_cell, interrupted: As in `CellRunner`.
        examples: What scores orderings; named by index.
        names: What messages call the examples; None counts them.
        work: What a call does instead, on examples of its own; None scores the answer by the metric.
        max_metric_calls: Hard limit on program calls; None for none.
        ledger: What has been paid before, with the same program and examples; None begins a new one.
    """
    ledger = Ledger() if ledger is None else ledger
    runner = CellRunner(
        work or MetricWork(metric, examples),
        names=names or [f"example {i}" for i in range(len(examples))],
        ledger=ledger,
        num_threads=num_threads,
        max_errors=max_errors,
        on_cell=on_cell,
        interrupted=interrupted,
        redact=Redactor([dspy.settings.lm, *language_models(program), *_models_of(metric)]),
    )
    payer = ProgramPayer(program, slots, runner=runner, ledger=ledger)
    return CellScorer(payer, max_metric_calls=max_metric_calls)


def _models_of(metric: Metric) -> list[dspy.BaseLM]:
    """The LMs of a judge, or that a metric object holds."""
    if isinstance(metric, dspy.Module):
        return language_models(metric)
    held = getattr(metric, "__dict__", {}).values()
    models = [value for value in held if isinstance(value, dspy.BaseLM)]
    return models + [lm for value in held if isinstance(value, dspy.Module) for lm in language_models(value)]
