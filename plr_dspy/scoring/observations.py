"""The calls made for each candidate, the resulting scores, and the schedule of examples."""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from plr_dspy.scoring.effective_scores import EffectiveScores
from plr_dspy.scoring.run_log import FAILED, CallRecord
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate, Scores, WholeProgram

# Nothing predicts the score of a new whole program, so score it on at least this many examples.
MIN_FIRST_OF_PROGRAM = 4

CallRecords: TypeAlias = dict[Candidate, dict[int, CallRecord]]  # each candidate's calls, keyed by example


class Observations:
    """The calls made for each candidate, and the resulting scores.

    An unparsable reply or a failed call gets the lowest known score, or 0 if that is lower.
    With a metric over a set, both are instead scored as answers without a label.
    Examples on which all candidates failed are ignored, unless a candidate has no other examples.

    Args:
        effective_scores: The conversion of single calls to scores.
        favored: A candidate whose failed calls are ignored unless all failed, so that random
            failures do not make other candidates look better.
    """

    def __init__(self, effective_scores: EffectiveScores, *, favored: Candidate | None = None) -> None:
        self.effective_scores = effective_scores
        self.records: CallRecords = {}
        self._favored = favored

    def add(self, records: CallRecords) -> None:
        for candidate, row in records.items():
            self.records.setdefault(candidate, {}).update(row)

    def with_records(self, records: CallRecords) -> "Observations":
        joined = Observations(self.effective_scores, favored=self._favored)
        joined.add(self.records)
        joined.add(records)
        return joined

    def count(self, candidate: Candidate) -> int:
        """Return the number of examples on which a candidate was called."""
        return len(self.records.get(candidate, ()))

    def flat_records(self) -> list[CallRecord]:
        """Return the records of all calls as one list."""
        return list(itertools.chain.from_iterable(row.values() for row in self.records.values()))

    def answered(self) -> set[int]:
        """Return the examples on which at least one candidate's call did not fail."""
        return set[int]().union(*map(_answered, self.records.values()))

    def counted_failures(self, candidate: Candidate) -> set[int]:
        """Return the examples on which a candidate's failed calls count as incorrect answers."""
        return self._counted_examples(candidate, self.answered()) - _answered(self.records[candidate])

    def _counted_examples(self, candidate: Candidate, answered: set[int]) -> set[int]:
        """Return the examples on which a candidate's calls count.

        `answered` contains the examples on which at least one candidate's call did not fail.
        """
        row = self.records[candidate]
        if candidate == self._favored and _answered(row):
            return _answered(row)
        # Examples on which all candidates failed count only for candidates without other examples.
        return answered & row.keys() or set(row)

    def scores(self) -> dict[Candidate, dict[int, float]]:
        """Return the scores of each candidate, keyed by example index."""
        answered = self.answered()
        scores: dict[Candidate, dict[int, float]] = {}
        for candidate, row in self.records.items():
            counted_examples = self._counted_examples(candidate, answered)
            new = {
                example: self._score(example, record)
                for example, record in row.items()
                if example in counted_examples
            }
            if new:
                scores[candidate] = new
        known = itertools.chain.from_iterable(by_example.values() for by_example in scores.values())
        worst = min(0.0, min(itertools.filterfalse(math.isnan, known), default=0.0))
        for by_example in scores.values():
            for example, score in by_example.items():
                if math.isnan(score):
                    by_example[example] = worst
        return scores

    def counted(self) -> Scores:
        """Return the scores, corrected by `effective_scores` for the labels of each candidate's examples."""
        return self.effective_scores.counted(self.scores())

    def table(
        self, candidates: Sequence[Candidate], examples: Iterable[int]
    ) -> tuple[list[int], list[list[float]]]:
        """Return the examples on which all candidates have scores, and a row of scores for each candidate."""
        scores = self.scores()
        rows = [scores.get(candidate, {}) for candidate in candidates]
        shared = set(examples).intersection(*rows)
        common = [example for example in examples if example in shared]
        return common, [list(map(row.__getitem__, common)) for row in rows]

    def set_reference(
        self, best_first: Iterable[Candidate], fitted: FittedModel | None, *, min_candidates: int = 1
    ) -> None:
        """Use the best candidates' answers as the reference for later scores of a metric over a set.

        Use at least `min_candidates` candidates. The reference is stored in `effective_scores`, so
        it applies to all observations that share this object.
        """
        known = [candidate for candidate in best_first if candidate in self.records]
        labels = (fitted.revised_labels(candidate) if fitted is not None else {} for candidate in known)
        records = (self.records[candidate] for candidate in known)
        failures = (self.counted_failures(candidate) for candidate in known)
        self.effective_scores.set_reference(
            zip(records, labels, failures, strict=True), min_candidates=min_candidates
        )

    def _score(self, example: int, record: CallRecord) -> float:
        score = self.effective_scores.score_of(example, record)
        return math.nan if score is None else score


def _answered(row: dict[int, CallRecord]) -> set[int]:
    return {example for example, record in row.items() if record.outcome != FAILED}


@dataclass
class ExampleSchedule:
    """The order in which examples are assigned to candidates.

    All candidates go through the same cycle of examples, but start at different points. A candidate
    is "known" if it has a call record, even of a failed call, and "new" otherwise.

    Attributes:
        strata: Groups of examples. The cycle takes one example from each group in turn. A group
            that is shorter than the longest group starts again, so its examples repeat.
        num_first: Number of examples for a new candidate.
        num_more: Number of additional examples for a known candidate.
        shifted: Whether each pass through the cycle starts one example later. Without this shift,
            if `num_first` divides the cycle's length, two new candidates share either all of their
            examples or none.
        retired: Examples that are no longer assigned. Earlier calls on these examples are still
            used.
        paired: Candidates that start at the first example of the cycle, so that their scores can be
            compared.
        num_paired: Minimum number of examples for a new candidate in `paired`.
    """

    strata: Sequence[Sequence[int]]
    num_first: int
    num_more: int = 0
    shifted: bool = False
    retired: set[int] = field(default_factory=set)
    paired: Collection[Candidate] = ()
    num_paired: int = 0
    _cycle: list[int] = field(init=False)

    def __post_init__(self) -> None:
        longest = max(map(len, self.strata))
        turns = zip(
            *(itertools.islice(itertools.cycle(group), longest) for group in self.strata), strict=True
        )
        self._cycle = list(itertools.chain.from_iterable(turns))

    def examples_for(
        self,
        candidates: Sequence[Candidate],
        observations: Observations,
        num_examples: int | None = None,
        min_new: Mapping[Candidate, int] = MappingProxyType({}),
    ) -> dict[Candidate, list[int]]:
        """Return the examples on which to score each candidate, including those it was already called on.

        A candidate's examples are distinct. Those it was already called on come first, in the order of
        its records. Further examples are taken from the cycle. For a known candidate, the cycle starts
        at the first example in its records. For a new candidate in `paired`, it starts at the
        beginning. For any other candidate, the start depends on how many candidates came before it. If
        too few examples are left, a candidate gets fewer than requested.

        Args:
            candidates: The candidates to score.
            observations: All calls so far.
            num_examples: Total number of examples for each candidate, including those it was already
                called on. By default, a new candidate gets `num_first` examples, but at least
                `num_paired` if it is paired. A known candidate gets `num_more` additional
                examples. A new `WholeProgram` gets at least `MIN_FIRST_OF_PROGRAM` examples, even
                if fewer are requested.
            min_new: Minimum number of examples to add for some candidates. Ignored if
                `num_examples` is passed.
        """
        num_seen = len(observations.records)
        wanted: dict[Candidate, list[int]] = {}
        for candidate in dict.fromkeys(candidates):
            known = list(observations.records.get(candidate, ()))
            if num_examples is not None:
                count = num_examples - len(known)
            else:
                count = max(self._default_count(candidate, known), min_new.get(candidate, 0))
            if known:
                start = self._cycle.index(known[0])
            else:
                start = 0 if candidate in self.paired else self._start(num_seen)
                num_seen += 1
                if isinstance(candidate, WholeProgram):
                    count = max(count, MIN_FIRST_OF_PROGRAM)
            upcoming = dict.fromkeys(self._cycle[start:] + self._cycle[:start])
            unavailable = self.retired.union(known)
            new = [example for example in upcoming if example not in unavailable]
            wanted[candidate] = known + new[: max(count, 0)]
        return wanted

    def _default_count(self, candidate: Candidate, known: Sequence[int]) -> int:
        """Return how many examples to add by default for a candidate with calls on `known` examples."""
        if known:
            return self.num_more
        if candidate in self.paired:
            return max(self.num_first, self.num_paired)
        return self.num_first

    def _start(self, num_seen: int) -> int:
        """Return the position in the cycle at which a new candidate starts after `num_seen` candidates."""
        start = num_seen * self.num_first
        if self.shifted and len(self._cycle) % self.num_first == 0:
            start += start // len(self._cycle)
        return start % len(self._cycle)
