"""What is known of candidates: their calls by example, the scores of these, and which examples come next."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from plr_dspy.scoring.effective_scores import EffectiveScores
from plr_dspy.scoring.run_log import FAILED, CallRecord
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate, Scores, WholeProgram

FIRST_OF_PROGRAM = 4  # fewest examples that a whole program is first scored on: nothing else tells of its score

CallRecords: TypeAlias = dict[Candidate, dict[int, CallRecord]]  # calls by candidate and example


class Observations:
    """The calls of candidates by example, which are appended to, and their scores.

    An answer that cannot be parsed counts as the worst score, at most 0, but for a metric over a set as one without a
    label. A failed call counts as the worst, unless the example failed for all candidates.

    Args:
        effective: Says what a call scores.
        favoured: A candidate whose failed calls do not count: no other one is to win by its bad luck.
    """

    def __init__(self, effective: EffectiveScores, *, favoured: Candidate | None = None) -> None:
        self.effective = effective
        self.records: CallRecords = {}
        self._favoured = favoured

    def add(self, records: CallRecords) -> None:
        """Add calls of candidates."""
        for candidate, row in records.items():
            self.records.setdefault(candidate, {}).update(row)

    def with_records(self, records: CallRecords) -> "Observations":
        """Return these observations and further calls."""
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
        """Return the examples with a call that ended with an answer."""
        return set[int]().union(*map(_answered, self.records.values()))

    def scores(self) -> dict[Candidate, dict[int, float]]:
        """Return the scores of all candidates by example."""
        answered = self.answered()
        scores: dict[Candidate, dict[int, float]] = {}
        for candidate, row in self.records.items():
            # Examples that ran for no candidate do not count, unless a candidate has no others.
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
        """Return the scores so that labels have equal shares in all candidates."""
        return self.effective.counted(self.scores())

    def table(self, candidates: Sequence[Candidate], examples: Iterable[int]) -> tuple[list[int], list[list[float]]]:
        """Return the examples on which all these candidates have scores, and a row of these for each."""
        scores = self.scores()
        rows = [scores.get(candidate, {}) for candidate in candidates]
        everywhere = set(examples).intersection(*rows)
        common = [example for example in examples if example in everywhere]
        return common, [list(map(row.__getitem__, common)) for row in rows]

    def refer_to(self, best_first: Iterable[Candidate], fitted: FittedModel | None, *, least: int = 1) -> None:
        """Take the answers of the best candidates, of the `least` first ones at least, as the reference of scores."""
        known = [candidate for candidate in best_first if candidate in self.records]
        labels = (fitted.answers(candidate) if fitted is not None else {} for candidate in known)
        records = (self.records[candidate] for candidate in known)
        self.effective.refer_to(zip(records, labels, strict=True), least=least)

    def _score(self, example: int, record: CallRecord) -> float:
        """Return the score of a call; NaN without one."""
        score = None if record.outcome == FAILED else self.effective.score_of(example, record)
        return math.nan if score is None else score


def _answered(row: dict[int, CallRecord]) -> set[int]:
    """Return the examples with a call that ended with an answer."""
    return {example for example, record in row.items() if record.outcome != FAILED}


@dataclass
class ExampleSchedule:
    """Says which examples come next, so that a search learns about the whole train split.

    Candidates begin at different examples. They are scored on a few of them at first, and on further ones each time
    they are asked for again.

    Attributes:
        strata: Groups of examples that take turns.
        num_first, num_more: Examples of the first score of a candidate, and of each further one.
        shifted: Whether candidates begin one example later after each pass. Otherwise two groups of orderings might
            meet two groups of examples, whose effects nobody could tell apart.
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
            observations: What is known of them.
            num_examples: Number of examples in all; by default, as many as for a first or further score.
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
        """Return where in the cycle a candidate begins before which so many have begun."""
        place = num_seen * self.num_first
        if self.shifted and len(self._cycle) % self.num_first == 0:
            place += place // len(self._cycle)
        return place % len(self._cycle)
