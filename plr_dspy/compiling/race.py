"""The race of a search's best orderings; its winners are compared on held-out examples."""

import math
from collections.abc import Callable, Mapping, Sequence

from plr_dspy.compiling.plan import Plan
from plr_dspy.scoring.evaluator import Wanted
from plr_dspy.scoring.observations import ExampleSchedule, Observations
from plr_dspy.search.space import Candidate, WholeProgram

KEPT_SHARE = 0.4  # share of the orderings that reach the next heat of a race


def run_race(
    entrants: Sequence[Candidate],
    *,
    original: Candidate,
    observations: Observations,
    schedule: ExampleSchedule,
    score: Callable[[Wanted], Sequence[Candidate]],
    estimate: Callable[[], Mapping[Candidate, float]],
    plan: Plan,
    num_calls: int,
) -> list[Candidate]:
    """Score ever fewer entrants on ever more examples (Z. Karnin, T. Koren and O. Somekh, ICML 2013).

    The original is scored first, with its share of the calls, and in the last heat on as many examples
    as the others. Neither it nor an entrant without an estimate can win.

    Args:
        entrants: Candidates that race, best first.
        original: The student's own candidate.
        observations: All scores so far.
        schedule: Decides which examples come next.
        score: Adds calls to the observations, and returns the candidates within the time and cost limits.
        estimate: Returns the model's estimate of each candidate's score, given all scores so far.
        plan: Sets the number of winners and of examples.
        num_calls: Program calls of the race, shared equally among the heats.

    Returns:
        The winners, best first; among them the best whole program and the best ordering.
    """
    # Unscored entrants first catch up with the least scored one, using at most half of the calls.
    level = min(filter(None, map(observations.count, entrants)), default=schedule.num_first)
    new = [entrant for entrant in entrants if not observations.count(entrant)]
    wanted = schedule.examples_for(new, observations, level)
    while sum(map(len, wanted.values())) > num_calls // 2:
        wanted.popitem()
    spent = sum(map(len, wanted.values()))
    score(wanted)
    alive = [entrant for entrant in entrants if observations.count(entrant)]
    if not alive:
        return []

    asked = observations.count(original)
    most = min(plan.num_train_examples, asked + int(plan.original_share * num_calls))
    spent += most - asked
    score(schedule.examples_for([original], observations, most))

    num_winners = plan.num_best_seen
    num_heats = max(1, math.ceil(math.log(max(1, len(alive) / num_winners)) / math.log(1 / KEPT_SHARE)))
    for heat in range(num_heats):
        runners = [*alive, original] if heat == num_heats - 1 else alive
        counts = [observations.count(ordering) for ordering in runners]
        share = (num_calls - spent) / (num_heats - heat)
        while level < plan.num_train_examples and _calls_up_to(level + 1, counts) <= share:
            level += 1
        spent += _calls_up_to(level, counts)
        num_scored = len(score(schedule.examples_for(runners, observations, level)))
        estimates = estimate()
        alive = sorted((ordering for ordering in alive if ordering in estimates), key=lambda each: -estimates[each])
        if num_scored < len(runners):
            break
        alive = first_of_each_kind(alive, max(num_winners, math.ceil(KEPT_SHARE * len(alive))))
    return first_of_each_kind(alive, num_winners)


def _calls_up_to(level: int, counts: Sequence[int]) -> int:
    """Return the calls that raise these numbers of scored examples to a level."""
    return sum(max(0, level - count) for count in counts)


def first_of_each_kind(ranked: Sequence[Candidate], number: int) -> list[Candidate]:
    """Return this many of the best, starting with the best whole program and the best ordering, if any."""
    best = {isinstance(ordering, WholeProgram): ordering for ordering in reversed(ranked)}.values()
    return sorted(ranked, key=lambda ordering: ordering not in best)[:number]
