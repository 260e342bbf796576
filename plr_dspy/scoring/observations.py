"""Candidates' calls by example, the resulting scores, and which examples come next."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from plr_dspy.scoring.effective_scores import EffectiveScores
from plr_dspy.scoring.run_log import FAILED, CallRecord
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate, Scores, WholeProgram

FIRST_OF_PROGRAM = 4  # minimum examples in a whole program's first score, which nothing else predicts

CallRecords: TypeAlias = dict[Candidate, dict[int, CallRecord]]  # calls by candidate and example


class Observations:
    """A growing collection of candidates' calls by example, and their scores.

    An answer that cannot be parsed gets the worst score, at most 0; in a metric over a set, it counts as having no
    label. A failed call gets the worst score, unless the example failed for all candidates.

    Args:
        effective: Scores calls.
        favoured: A candidate whose failed calls do not count, so that none beats it by luck.
    """

    def __init__(self, effective: EffectiveScores, *, favoured: Candidate | None = None) -> None:
        self.effective = effective
        self.records: CallRecords = {}
        self._favoured = favoured

    def add(self, records: CallRecords) -> None:
        """Add candidates' calls."""
        for candidate, row in records.items():
            self.records.setdefault(candidate, {}).update(row)

    def with_records(self, records: CallRecords) -> "Observations":
        """Return a copy with more calls added."""
        joined = Observations(self.effective, favoured=self._favoured)
        joined.add(self.records)
        joined.add(records)
        return joined

    def count(self, candidate: Candidate) -> int:
        """Count the examples that a candidate was called on."""
        return len(self.records.get(candidate, ()))

    def every_record(self) -> list[CallRecord]:
        """Return all calls."""
        return list(itertools.chain.from_iterable(row.values() for row in self.records.values()))

    def answered(self) -> set[int]:
        """Return the examples that any candidate answered."""
        return set[int]().union(*map(_answered, self.records.values()))

    def scores(self) -> dict[Candidate, dict[int, float]]:
        """Return all candidates' scores by example."""
        answered = self.answered()
        scores: dict[Candidate, dict[int, float]] = {}
        for candidate, row in self.records.items():
            # Examples that failed for all candidates count only if a candidate has no others.
            counted = answered & row.keys() or row.keys()
            if candidate == self._favoured:
                counted = _answered(row) or counted
            rated = {example: self._score(example, record) for example, record in row.items() if example in counted}
            if rated:
                scores[candidate] = rated
        known = itertools.chain.from_iterable(rated.values() for rated in scores.values())
        worst = min(0.0, min(itertools.filterfalse(math.isnan, known), default=0.0))
        for rated in scores.values():
            for example, score in rated.items():
                if math.isnan(score):
                    rated[example] = worst
        return scores

    def counted(self) -> Scores:
        """Return the scores with the same label shares for all candidates."""
        return self.effective.counted(self.scores())

    def table(self, candidates: Sequence[Candidate], examples: Iterable[int]) -> tuple[list[int], list[list[float]]]:
        """Return the examples scored for all candidates, and each candidate's row of scores on them."""
        scores = self.scores()
        rows = [scores.get(candidate, {}) for candidate in candidates]
        everywhere = set(examples).intersection(*rows)
        common = [example for example in examples if example in everywhere]
        return common, [list(map(row.__getitem__, common)) for row in rows]

    def refer_to(self, best_first: Iterable[Candidate], fitted: FittedModel | None, *, least: int = 1) -> None:
        """Make the answers of the best candidates (at least `least`) the reference for scores."""
        known = [candidate for candidate in best_first if candidate in self.records]
        labels = (fitted.revised_labels(candidate) if fitted is not None else {} for candidate in known)
        records = (self.records[candidate] for candidate in known)
        self.effective.refer_to(zip(records, labels, strict=True), least=least)

    def _score(self, example: int, record: CallRecord) -> float:
        """Return a call's score, or NaN."""
        score = None if record.outcome == FAILED else self.effective.score_of(example, record)
        return math.nan if score is None else score


def _answered(row: dict[int, CallRecord]) -> set[int]:
    """Return a candidate's answered examples."""
    return {example for example, record in row.items() if record.outcome != FAILED}


@dataclass
class ExampleSchedule:
    """Chooses the next examples, so that a search learns about the whole train split.

    Candidates start at different examples. They are scored on a few at first, and on more each time they are asked
    for again.

    Attributes:
        strata: Groups of examples that take turns.
        num_first, num_more: Number of examples for a candidate's first score, and to add each time.
        shifted: Whether candidates start one example later after each pass. Otherwise, the effects of groups of
            orderings and of groups of examples might be confounded.
    """

    strata: Sequence[Sequence[int]]
    num_first: int
    num_more: int = 0
    shifted: bool = False
    _cycle: list[int] = field(init=False)

    def __post_init__(self) -> None:
        longest = max(map(len, self.strata))
        turns = zip(*(itertools.islice(itertools.cycle(group), longest) for group in self.strata), strict=True)
        self._cycle = list(itertools.chain.from_iterable(turns))

    def examples_for(
        self, candidates: Sequence[Candidate], observations: Observations, num_examples: int | None = None
    ) -> dict[Candidate, list[int]]:
        """Return the examples to score each candidate on, earlier ones included.

        Args:
            candidates: The candidates.
            observations: Their calls so far.
            num_examples: Total examples per candidate; by default, `num_first` or `num_more` new ones.
        """
        num_seen = len(observations.records)
        wanted: dict[Candidate, list[int]] = {}
        for candidate in dict.fromkeys(candidates):
            known = list(observations.records.get(candidate, ()))
            count = self.num_more if known else self.num_first
            if num_examples is not None:
                count = num_examples - len(known)
            if known:
                place = self._cycle.index(known[0])
            else:
                place = self._first_place(num_seen)
                num_seen += 1
                if isinstance(candidate, WholeProgram):
                    count = max(count, FIRST_OF_PROGRAM)
            turn = dict.fromkeys(self._cycle[place:] + self._cycle[:place])
            new = [example for example in turn if example not in observations.records.get(candidate, ())]
            wanted[candidate] = known + new[: max(count, 0)]
        return wanted

    def _first_place(self, num_seen: int) -> int:
        """Return a candidate's start in the cycle, after `num_seen` earlier candidates."""
        place = num_seen * self.num_first
        if self.shifted and len(self._cycle) % self.num_first == 0:
            place += place // len(self._cycle)
        return place % len(self._cycle)
