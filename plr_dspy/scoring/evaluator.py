"""Evaluation of candidates on examples. Each call is paid for only once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from plr_dspy.report.formats import count
from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.causes import fix_for
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.effective_scores import EffectiveScores
from plr_dspy.scoring.observations import CallRecords, Observations
from plr_dspy.scoring.run_log import FAILED, CallKey, CallRecord, RunLog, Tokens
from plr_dspy.search.space import Candidate, WholeProgram

Wanted: TypeAlias = dict[Candidate, list[int]]  # the examples on which to evaluate each candidate

# Phases to which calls belong. Their names are keys of `ReportData.program_calls`.
BOOTSTRAP = "bootstrap"
SEARCH = "search"
RACE = "race"
COMPARISON = "final"
PHASES = (BOOTSTRAP, SEARCH, RACE, COMPARISON)


class Payer(Protocol):
    """An interface for making program calls within the budget and logging each call when it ends."""

    log: RunLog
    budget: Budget

    def fingerprint(self, ordering: Candidate, example: int | None) -> str:
        """Return an ID for an ordering's prompt, or for a whole program's prompt on an example."""

    def pay(self, cells: Mapping[CallKey, Candidate | None]) -> None:
        """Make the calls in `cells`. Stop when the budget allows no more calls."""


class NothingRan(RuntimeError):
    """An error raised if a run or a phase cannot continue because all or too many of its calls failed."""


class Evaluator:
    """An evaluator that calls candidates on examples and never repeats an answered call.

    A call belongs to the first phase that requests it, even if the call was already logged. So a
    resumed run makes the same decisions as an uninterrupted run.

    Args:
        payer: The object that makes the calls.
        bootstrapped: Keys of the calls from which demos were bootstrapped.
        confusion_scores: Scores of answers for a metric over a set, or None for other metrics.

    Attributes:
        phase: The phase to which new calls belong.
        unscored: Keys of the calls that scored no candidate.
    """

    def __init__(
        self,
        payer: Payer,
        *,
        bootstrapped: Iterable[Any] = (),
        confusion_scores: ConfusionScores | None = None,
    ) -> None:
        self.payer = payer
        self.log = payer.log
        self.budget = payer.budget
        self.effective_scores = confusion_scores or EffectiveScores()
        self.confusion_scores = confusion_scores
        self.phase = SEARCH
        self._num_reserved = 0
        self._fingerprints: dict[tuple[Candidate, int | None], str] = {}
        self._candidates: dict[str, Candidate] = {}  # the first candidate with each fingerprint
        self._phases: dict[CallKey, str] = dict.fromkeys(bootstrapped, BOOTSTRAP)
        # The examples requested for each candidate, in order.
        self._examples: dict[Candidate, dict[int, None]] = {}
        self.unscored: set[CallKey] = set()

    def begin_phase(self, phase: str, *, reserved: int = 0, planned: int = 0) -> None:
        """Begin a phase, and reserve calls for later phases.

        Args:
            phase: One of `PHASES`.
            reserved: Number of calls to leave for later phases. The budget also reserves money and
                time for these calls.
            planned: Number of calls planned for this phase and all later phases, as in
                `Budget.reserve`.
        """
        self.phase = phase
        self._num_reserved = reserved
        self.budget.reserve(reserved, planned=planned)

    @property
    def unreserved_calls(self) -> int:
        """The number of new calls that `max_calls` allows in the current phase."""
        # Unlike `num_calls()`, `log.num_calls` includes the calls that propose instructions.
        return max(0, self.budget.max_calls - self.log.num_calls - self._num_reserved)

    def key(self, candidate: Candidate, example: int) -> CallKey:
        """Return the key of a candidate's call on an example.

        The key depends only on the prompt and the example, so candidates with the same prompt share
        calls.
        """
        # Only a whole program's prompt may depend on the example.
        shown_example = example if isinstance(candidate, WholeProgram) else None
        prompt = (candidate, shown_example)
        if prompt not in self._fingerprints:
            self._fingerprints[prompt] = self.payer.fingerprint(*prompt)
            self._candidates.setdefault(self._fingerprints[prompt], candidate)
        return self._fingerprints[prompt], example

    def candidate_with(self, prompt: str) -> Candidate | None:
        """Return the first candidate whose prompt has this fingerprint, or None."""
        return self._candidates.get(prompt)

    def num_calls(self, phase: str = "") -> int:
        """Return the number of calls that `phase` was the first to request. By default, count all calls."""
        if not phase:
            return len(self._phases)
        return list(self._phases.values()).count(phase)

    def affordable(self, wanted: Wanted) -> Wanted:
        """Return the first candidates in `wanted`, as many as the unreserved calls allow.

        Calls that this run has already made or recalled are free.
        """
        new: set[CallKey] = set()
        affordable: Wanted = {}
        for candidate, examples in wanted.items():
            new |= {self.key(candidate, example) for example in examples} - self.log.records.keys()
            if len(new) > self.unreserved_calls:
                break
            affordable[candidate] = examples
        return affordable

    def evaluate(self, wanted: Mapping[Candidate, Sequence[int]]) -> CallRecords:
        """Make the wanted calls that are not in the log.

        Return the records of the candidates in `wanted` before the first one with a missing call.
        """
        requested: dict[CallKey, Candidate] = {}
        for candidate, examples in wanted.items():
            self._examples.setdefault(candidate, {}).update(dict.fromkeys(examples))
            for example in examples:
                requested.setdefault(self.key(candidate, example), candidate)
        self._pay(requested, self.payer)
        complete: CallRecords = {}
        for candidate, row in self.known(wanted).items():
            if len(row) < len(set(wanted[candidate])):
                break
            complete[candidate] = row
        return complete

    def call_unscored(self, payer: Payer, cells: Mapping[CallKey, Candidate]) -> list[CallRecord]:
        """Make calls that score no candidate, and return the records of the calls that were made.

        `payer` must use the same log and budget as the evaluator.
        """
        self.unscored.update(cells)
        self._pay(cells, payer)
        return [self.log.records[key] for key in cells if key in self.log.records]

    def _pay(self, requested: Mapping[CallKey, Candidate], payer: Payer) -> None:
        """Recall or make the requested calls, and count those new to the run towards the current phase."""
        new = {key: candidate for key, candidate in requested.items() if key not in self.log.records}
        unpaid = {
            key: candidate for key, candidate in new.items() if not self.budget.recall(key, example=key[1])
        }
        try:
            if unpaid:
                payer.pay(unpaid)
                # If a limit prevents a failed call from being repeated, reuse the earlier failure.
                for key in unpaid:
                    if key not in self.log.records:
                        self.budget.recall(key, example=key[1], last_failures=True)
        finally:
            # Count only the calls that were made before the budget ran out.
            for key in requested:
                if key in self.log.records:
                    self._phases.setdefault(key, self.phase)

    def known(self, wanted: Mapping[Candidate, Sequence[int]]) -> CallRecords:
        """Return the records of the calls in `wanted` that have been made."""
        known: CallRecords = {}
        for candidate, examples in wanted.items():
            keys = {example: self.key(candidate, example) for example in examples}
            known[candidate] = {
                ex: self.log.records[key] for ex, key in keys.items() if key in self.log.records
            }
        return known

    def records_of(self, candidate: Candidate) -> dict[int, CallRecord]:
        """Return the records of a candidate's calls, keyed by example index."""
        return self.known({candidate: list(self._examples.get(candidate, ()))})[candidate]

    def records_asked(self) -> dict[CallKey, CallRecord]:
        """Return the records of this run's calls, except those that score no candidate."""
        keys = [key for key in self._phases if key not in self.unscored]
        return {key: self.log.records[key] for key in keys if key in self.log.records}

    def tokens_in_order(self) -> Iterator[tuple[Candidate, Tokens]]:
        """Yield the candidate and the token counts of each scoring call, in the order of the requests."""
        for key in self._phases:
            if key in self.log.records and key[0] in self._candidates:
                yield self._candidates[key[0]], self.log.tokens_of(key)

    def table(
        self, candidates: Sequence[Candidate], examples: Sequence[int]
    ) -> tuple[list[int], list[list[float]]]:
        """Evaluate candidates, and return the examples on which all have scores, with these scores.

        Raise `NothingRan` if all calls failed.
        """
        records = self.evaluate(dict.fromkeys(candidates, examples))
        self.raise_if_all_failed(records)
        observations = Observations(self.effective_scores)
        observations.add(records)
        return observations.table(candidates, examples)

    def raise_if_all_failed(self, rows: CallRecords, *, phase: str = "") -> None:
        """Raise `NothingRan` if calls were made and all of them failed. The message names any `phase`."""
        records = [record for row in rows.values() for record in row.values()]
        if records and all(record.outcome == FAILED for record in records):
            raise self.nothing_ran_error(records, phase=phase)

    def nothing_ran_error(self, records: Sequence[CallRecord], *, phase: str = "") -> NothingRan:
        """Return an error for a run or a phase in which too many calls failed. The message includes a fix."""
        failed = [record for record in records if record.outcome == FAILED]
        check = "check that the program runs, and that its model answers"
        calls = count(len(records), "call")
        if phase:
            check = f"check the program and the metric on the examples of {phase}"
            calls += f" of {phase}"
        fix = fix_for((record.error for record in failed), otherwise=check)
        first = f"{failed[0].error}: {failed[0].message}"
        return NothingRan(f"{len(failed)} of {calls} failed (the first with {first}): {fix}, and try again")
