"""The race between the best candidates of a search, whose winners enter the final comparison."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from plr_dspy.compiling.plan import Plan
from plr_dspy.scoring.evaluator import Wanted
from plr_dspy.scoring.observations import ExampleSchedule, Observations
from plr_dspy.search.space import Candidate, WholeProgram

KEPT_SHARE = 0.4  # share of the candidates that advance to the next heat


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
    user_programs: Collection[Candidate] = (),
) -> list[Candidate]:
    """Race the entrants using successive halving (Z. Karnin, T. Koren and O. Somekh, ICML 2013).

    First, at most half of the calls score new entrants, best first, on as many examples as the
    scored entrant with the fewest scores. New entrants that these calls do not cover drop out.
    Then the planned share of the calls scores the original.

    Each heat scores the remaining entrants on more examples and drops the worst entrants. If the
    calls of a heat do not all fit the limits, the race ends, and the estimates so far decide.
    The last heat scores the original on as many examples as the remaining entrants. Neither the
    original nor an entrant without an estimated score can win.

    Args:
        entrants: The candidates to race, best first.
        schedule: Selects the next examples for each candidate.
        score: Makes calls, adds them to the observations, and returns the candidates whose
            calls are within the time and cost limits.
        estimate: Returns the estimated scores of candidates, given all calls so far.
        plan: The plan of the compile run, with the number of winners and the original's share of
            the calls.
        num_calls: Maximum number of program calls in the race. The heats share equally what the
            first two steps leave.
        user_programs: As in `first_of_each_kind`.

    Returns:
        The winners, best first. If there are several, they include the best of each kind.
    """
    # Score each new entrant on as many examples as the entrant with the fewest scores. Use at most
    # half of the calls for this.
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

    num_known = observations.count(original)
    target = min(plan.num_train_examples, num_known + int(plan.original_share * num_calls))
    spent += target - num_known
    score(schedule.examples_for([original], observations, target))

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
        estimated = [ordering for ordering in alive if ordering in estimates]
        alive = sorted(estimated, key=lambda ordering: -estimates[ordering])
        if num_scored < len(runners):
            break
        num_kept = max(num_winners, math.ceil(KEPT_SHARE * len(alive)))
        alive = first_of_each_kind(alive, num_kept, user_programs)
    return first_of_each_kind(alive, num_winners, user_programs)


def _calls_up_to(level: int, counts: Sequence[int]) -> int:
    """Return the number of calls needed to increase each count of examples to at least `level`."""
    return sum(max(0, level - count) for count in counts)


def first_of_each_kind(
    ranked: Sequence[Candidate], number: int, user_programs: Collection[Candidate] = ()
) -> list[Candidate]:
    """Return the first `number` candidates, after moving the best of each kind to the front.

    The two kinds are the user's programs and all other candidates. If the user passed no
    programs, the kinds are whole programs and orderings.
    """

    def kind(candidate: Candidate) -> bool:
        return candidate in user_programs if user_programs else isinstance(candidate, WholeProgram)

    best = {kind(ordering): ordering for ordering in reversed(ranked)}.values()
    return sorted(ranked, key=lambda ordering: ordering not in best)[:number]
