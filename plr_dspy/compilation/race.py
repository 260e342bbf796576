"""The race of the best orderings of a search, which decides what is compared on held-out examples."""

import math
from collections.abc import Callable, Mapping, Sequence

from plr_dspy.compilation.plan import Plan
from plr_dspy.scoring.evaluator import Wanted
from plr_dspy.scoring.observations import ExampleSchedule, Observations
from plr_dspy.search.space import Candidate, WholeProgram

KEPT_SHARE = 0.4  # share of the orderings that go on to the next heat of a race


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
    """Halve the entrants, which are scored on ever more examples (Z. Karnin, T. Koren and O. Somekh, ICML 2013).

    The original is scored first, by its share of the calls, and in the last heat as often as the others there; it
    cannot win. Nor can an entrant without an estimate.

    Args:
        entrants: The candidates that race, best first.
        original: What the user has.
        observations: What is known of all candidates.
        schedule: Says which examples come next.
        score: Adds calls to the observations, and returns the candidates that time and money paid for.
        estimate: Returns what each candidate scores by the model, given all scores so far.
        plan: Says how many win, and how many examples there are.
        num_calls: Program calls of the race; each heat has an equal share of them.

    Returns:
        The winners, best first; among them the best whole program and the best ordering.
    """
    # Entrants that the search has not scored catch up with the least scored one, by half of the calls at most.
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
    """Return the calls that bring orderings from these numbers of examples to a level."""
    return sum(max(0, level - count) for count in counts)


def first_of_each_kind(ranked: Sequence[Candidate], number: int) -> list[Candidate]:
    """Return this many of the best, and before them the best whole program and the best ordering, if both are there."""
    best = {isinstance(ordering, WholeProgram): ordering for ordering in reversed(ranked)}.values()
    return sorted(ranked, key=lambda ordering: ordering not in best)[:number]
