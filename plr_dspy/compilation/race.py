"""The race of the best orderings of a search, which decides what is compared on held-out examples."""

import math
from collections.abc import Callable, Mapping, Sequence

from plr_dspy.compilation.plan import Plan
from plr_dspy.scoring.scorer import StagedScores
from plr_dspy.search.space import Candidate, WholeProgram

KEPT_SHARE = 0.4  # share of the orderings that go on to the next heat of a race


def run_race(
    entrants: Sequence[Candidate],
    *,
    original: Candidate,
    staged: StagedScores,
    estimate: Callable[[], Mapping[Candidate, float]],
    plan: Plan,
    num_calls: int,
    kept: int = 0,
) -> list[Candidate]:
    """Halve the entrants, which are scored on ever more examples (Z. Karnin, T. Koren and O. Somekh, ICML 2013).

    The original is scored first, by its share of the calls, and in the last heat as often as the others there; it
    cannot win. Nor can an entrant without an estimate.

    Args:
        entrants: The orderings that race, best first.
        original: What the user has.
        staged: Scores the orderings.
        estimate: Returns what each ordering scores by the model, given all scores so far.
        plan: Says how many win, and how many examples there are.
        num_calls: Program calls of the race; each heat has an equal share of them.
        kept: Calls of the budget to leave to what follows.

    Returns:
        The winners, best first, the best whole program and the best ordering before the others. If time or money is
        up, those that are known to be best; none without entrants.
    """
    level, spent = _score_new(entrants, staged, num_calls, kept)
    alive = [entrant for entrant in entrants if staged.num_asked(entrant)]
    if not alive:
        return []
    asked = staged.num_asked(original)
    most = min(plan.num_train_examples, asked + int(plan.original_share * num_calls))
    spent += most - asked
    staged.score(staged.wanted([original], most), kept=kept)
    num_winners = plan.num_best_seen
    num_heats = max(1, math.ceil(math.log(max(1, len(alive) / num_winners)) / math.log(1 / KEPT_SHARE)))
    for heat in range(num_heats):
        runners = [*alive, original] if heat == num_heats - 1 else alive
        counts = [staged.num_asked(ordering) for ordering in runners]
        share = (num_calls - spent) / (num_heats - heat)
        while level < plan.num_train_examples and _calls_up_to(level + 1, counts) <= share:
            level += 1
        spent += _calls_up_to(level, counts)
        num_scored = len(staged.score(staged.wanted(runners, level), kept=kept))
        means = estimate()
        alive = sorted((ordering for ordering in alive if ordering in means), key=lambda ordering: -means[ordering])
        if num_scored < len(runners):
            break
        alive = first_of_each_kind(alive, max(num_winners, math.ceil(KEPT_SHARE * len(alive))))
    return first_of_each_kind(alive, num_winners)


def _score_new(entrants: Sequence[Candidate], staged: StagedScores, num_calls: int, kept: int) -> tuple[int, int]:
    """Score entrants that the search has not scored as often as the least scored one, by half of the calls at most.

    Returns:
        On how many examples that is, and the calls that it takes.
    """
    level = min(filter(None, map(staged.num_asked, entrants)), default=staged.num_first)
    wanted = staged.wanted([entrant for entrant in entrants if not staged.num_asked(entrant)], level)
    while sum(map(len, wanted.values())) > num_calls // 2:
        wanted.popitem()
    staged.score(wanted, kept=kept)
    return level, sum(map(len, wanted.values()))


def _calls_up_to(level: int, counts: Sequence[int]) -> int:
    """Return the calls that bring orderings from these numbers of examples to a level."""
    return sum(max(0, level - count) for count in counts)


def first_of_each_kind(ranked: Sequence[Candidate], number: int) -> list[Candidate]:
    """Return this many of the best, and before them the best whole program and the best ordering, if both are there."""
    best = {isinstance(ordering, WholeProgram): ordering for ordering in reversed(ranked)}.values()
    return sorted(ranked, key=lambda ordering: ordering not in best)[:number]
