"""A race of whole programs, from the first examples to the outcome.

All remaining programs are scored on the same examples, so none of them gets easier examples. No
examples are held out for a final comparison, because the model corrects for selection bias.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from plr_dspy.compiling.choice import Outcome, likely
from plr_dspy.compiling.futility import FIRST_ANSWERS
from plr_dspy.compiling.run import CompileRun, FinalComparison
from plr_dspy.report.rules import USER_PROGRAM_ODDS
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.scoring.evaluator import RACE
from plr_dspy.scoring.observations import Observations
from plr_dspy.search.elimination import EliminationSearch
from plr_dspy.search.space import Candidate

FIRST_EXAMPLES = 40  # maximum number of examples in the first round
# Maximum share of all calls to spend in the first round, unless `MIN_NEW_EXAMPLES` requires more.
FIRST_SHARE = 1 / 3
FIRST_PER_PROGRAM = 5  # minimum number of replies per program before unparsable replies can end the race
MIN_NEW_EXAMPLES = 5  # minimum number of new examples in a round, if they are affordable
# While all scores are equal, the race continues with all programs up to the lower of these limits. A
# program that is better on 5% of all examples has equal scores on 59 examples with a probability of 5%.
ENOUGH_EQUAL = 59  # number of examples
ENOUGH_SHARE = 0.4  # share of all examples
GROWTH = 0.25  # number of new examples in each later round, as a fraction of the earlier examples


def calls_per_program(num_calls: int, num_programs: int, num_examples: int) -> tuple[int, int]:
    """Return the minimum and maximum number of calls per program in a race of `num_calls` calls.

    The minimum applies to programs that are dropped after the first round. The maximum is reached if
    all but two programs are dropped then.
    """
    least = min(_num_first_examples(num_calls // num_programs), num_examples)
    most = least + math.ceil((num_calls - num_programs * least) / 2)
    return least, min(most, num_examples)


def _num_first_examples(num_affordable: int) -> int:
    """Return how many of the `num_affordable` examples to use in the first round."""
    wanted = min(FIRST_EXAMPLES, round(FIRST_SHARE * num_affordable))
    return min(max(wanted, MIN_NEW_EXAMPLES), num_affordable)


@dataclass(kw_only=True)
class EliminationRun(CompileRun):
    """The state of a race of whole programs.

    `original` is the first program, and `user_programs` contains all programs.
    """

    search: EliminationSearch = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Count every program's failed calls as incorrect. Other runs ignore the original's failed calls,
        # but here this would favor a first program that often fails.
        self.observations = Observations(self.evaluator.effective_scores)
        schedule = self.schedule.examples_for([self.original], self.observations, self.num_train)
        self._examples = schedule[self.original]  # in scoring order
        # A race has its own stopping rule for equal scores, so check only whether replies can be parsed.
        self._futility = replace(self._futility, compares=False, by_program=True)
        self._num_scored = 0  # number of examples on which all remaining programs were scored

    def run(self) -> Outcome:
        """Score the programs in rounds, drop those that are unlikely to win, and choose one."""
        stop = self.reason_not_to_begin()
        if stop is not None:
            if stop.reason is StopReason.ONE_PROMPT:
                stop = replace(stop, detail="all programs are identical")
            return self.outcome(stop=stop)
        self.evaluator.begin_phase(RACE)
        while stop is None:
            stop = self.score_round(self.search.ask()) or self.check_stoppers()
        self.stop = stop
        return self.decide(self._final_comparison())

    def score_round(self, candidates: Sequence[Candidate]) -> Stop | None:
        """Score the remaining programs on the same new examples.

        Return a `Stop` if the race ends, or None if it continues.
        """
        if self._num_scored == len(self._examples):
            return Stop(StopReason.ALL_EXAMPLES)
        budget = self.evaluator.budget
        num_affordable = budget.estimated_calls_left // len(candidates)
        if not num_affordable:
            return Stop(budget.tightest_limit)
        if self._num_scored:
            num_new = max(MIN_NEW_EXAMPLES, round(GROWTH * self._num_scored))
            num_examples = min(self._num_scored + min(num_new, num_affordable), len(self._examples))
        else:
            num_examples = min(_num_first_examples(num_affordable), len(self._examples))
            num_examples = self._score_first_examples(candidates, num_examples)
        scored = self.observe(dict.fromkeys(candidates, self._examples[:num_examples]))
        is_complete = len(scored) == len(candidates)
        if self._num_scored and not is_complete:
            # All programs have scores on the examples of earlier rounds or on the first examples.
            scored = list(candidates)
        if scored:
            self._update_search(scored)
        if not is_complete:
            return Stop(budget.limit_reached or StopReason.TIME)
        self._num_scored = num_examples
        return None

    def _score_first_examples(self, candidates: Sequence[Candidate], planned: int) -> int:
        """Score the programs on a few examples, and return the number of examples for the first round.

        This number is at most `planned`. It may be smaller, because the first calls show how long
        a call takes and what it costs. The race continues if at least one program has enough
        parsable replies.

        Raises:
            UnreadableReplies: If almost all replies are unparsable.
        """
        num_examples = min(planned, max(FIRST_PER_PROGRAM, math.ceil(FIRST_ANSWERS / len(candidates))))
        scored = self.observe(dict.fromkeys(candidates, self._examples[:num_examples]))
        self._futility.check()
        if len(scored) < len(candidates):
            return num_examples
        self._num_scored = num_examples
        num_affordable = self.evaluator.budget.estimated_calls_left // len(candidates)
        return max(num_examples, min(planned, _num_first_examples(num_examples + num_affordable)))

    def check_stoppers(self) -> Stop | None:
        """Drop the programs that are unlikely to win.

        Return a `Stop` if the race ends, or None if it continues.
        """
        stop = super().check_stoppers()
        if stop is not None:
            return stop
        if self._num_scored == len(self._examples):
            return None  # The next `score_round` stops the race, because all examples are used.
        num_equal = self._num_equal()
        if num_equal is not None and num_equal < min(ENOUGH_EQUAL, ENOUGH_SHARE * len(self._examples)):
            return None
        leader = self._leader()
        if not self.search.can_change(leader, len(self._examples)):
            has_all_programs = len(self.search.alive) > len(self.search.space.programs)
            return Stop(StopReason.NO_DIFFERENCE if num_equal and has_all_programs else StopReason.DECIDED)
        num_affordable = self.evaluator.budget.estimated_calls_left // len(self.search.alive)
        if num_affordable:  # Otherwise, the next `score_round` stops the race.
            num_examples = min(self._num_scored + num_affordable, len(self._examples))
            self.search.drop(leader, num_examples)
        return None

    def _num_equal(self) -> int | None:
        """Return how many examples the remaining programs were scored on, or None if any results differ."""
        programs = self.search.alive
        examples, rows = self.observations.table(programs, self._examples[: self._num_scored])
        records = [self.observations.records[program] for program in programs]
        for number, example in enumerate(examples):
            # For a metric over a set, equal scores may belong to different answers.
            values = {repr(record[example].value) for record in records}
            if len(values) > 1 or len({row[number] for row in rows}) > 1:
                return None
        return len(examples)

    def _leader(self) -> Candidate:
        """Return the program that would be chosen if the race ended now."""
        fitted = self.search.fitted
        assert fitted is not None
        gains = fitted.gains(self.original)
        challengers = [
            program
            for program in self.search.alive[1:]
            if likely(gains[program], self.min_probability, odds=USER_PROGRAM_ODDS)
        ]
        return max([self.original, *challengers], key=lambda program: gains[program].expected)

    def _final_comparison(self) -> FinalComparison | None:
        """Return the final comparison of the programs that were scored in all complete rounds.

        Return None if there are fewer than two such programs, or if they share no examples.
        """
        min_examples = max(1, self._num_scored)
        programs = [self.original, *self.search.space.programs]
        finalists = [program for program in programs if self.observations.count(program) >= min_examples]
        self.evaluator.raise_if_all_failed(self.observations.records)
        examples, _ = self.observations.table(finalists, self._examples)
        if len(finalists) < 2 or not examples:
            return None
        return FinalComparison(finalists, examples, num_dropped=len(programs) - len(finalists))
