"""The race between the best candidates of a search. The winners enter the final comparison."""

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

    First, the original and any entrants without calls are scored. Each heat then scores the remaining
    entrants until each has the number of scores that the heat requires. It keeps the best share of them
    (`KEPT_SHARE`), but at least the planned number of winners. If a limit interrupts a heat, the
    race ends.

    Args:
        entrants: The candidates to race, best first, without the original.
        original: The program that the winners are compared with. It cannot win or drop out.
        observations: All calls so far. `score` adds the calls of the race.
        schedule: Selects the next examples for each candidate.
        score: Calls the candidates in order until a limit is reached, and returns those whose
            calls are complete.
        estimate: Returns the estimated scores of all candidates with calls.
        plan: The plan with the number of winners, the maximum number of examples, and the
            original's share of the calls.
        num_calls: Maximum number of program calls in the race.
        user_programs: Passed to `first_of_each_kind` after every heat.

    Returns:
        The winners, starting with the best entrant of each kind. The list is empty if no entrant
        has calls.
    """
    # Score entrants without calls on as many examples as the least-called other entrant.
    num_examples = min(filter(None, map(observations.count, entrants)), default=schedule.num_first)
    wanted = _examples_of_new(entrants, observations, schedule, num_examples, max_calls=num_calls // 2)
    num_spent = sum(map(len, wanted.values()))
    score(wanted)
    remaining = [entrant for entrant in entrants if observations.count(entrant)]
    if not remaining:
        return []

    num_known = observations.count(original)
    num_for_original = min(plan.num_train_examples, num_known + int(plan.original_share * num_calls))
    num_spent += num_for_original - num_known
    score(schedule.examples_for([original], observations, num_for_original))

    num_winners = plan.num_best_seen
    num_heats = _num_heats(len(remaining), num_winners)
    for heat in range(num_heats):
        # The last heat also scores the original, because the winners are compared with it.
        runners = [*remaining, original] if heat == num_heats - 1 else remaining
        counts = [observations.count(runner) for runner in runners]
        max_heat_calls = (num_calls - num_spent) / (num_heats - heat)  # an equal share for each heat left
        while (
            num_examples < plan.num_train_examples
            and _calls_up_to(num_examples + 1, counts) <= max_heat_calls
        ):
            num_examples += 1
        num_spent += _calls_up_to(num_examples, counts)
        fully_scored = score(schedule.examples_for(runners, observations, num_examples))
        estimates = estimate()
        remaining = sorted(remaining, key=lambda entrant: -estimates[entrant])
        if len(fully_scored) < len(runners):
            break
        num_kept = max(num_winners, math.ceil(KEPT_SHARE * len(remaining)))
        remaining = first_of_each_kind(remaining, num_kept, user_programs)
    return first_of_each_kind(remaining, num_winners, user_programs)


def _examples_of_new(
    entrants: Sequence[Candidate],
    observations: Observations,
    schedule: ExampleSchedule,
    num_examples: int,
    *,
    max_calls: int,
) -> Wanted:
    """Return examples for the entrants without calls. Drop the last entrants until `max_calls` suffices."""
    new = [entrant for entrant in entrants if not observations.count(entrant)]
    wanted = schedule.examples_for(new, observations, num_examples)
    while sum(map(len, wanted.values())) > max_calls:
        wanted.popitem()
    return wanted


def _num_heats(num_entrants: int, num_winners: int) -> int:
    """Return the number of heats that leave at most `num_winners` if each heat keeps `KEPT_SHARE`."""
    reduction = max(1, num_entrants / num_winners)
    return max(1, math.ceil(math.log(reduction) / math.log(1 / KEPT_SHARE)))


def _calls_up_to(num_examples: int, counts: Sequence[int]) -> int:
    """Return the number of calls needed to increase each count of examples to at least `num_examples`."""
    return sum(max(0, num_examples - count) for count in counts)


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
