"""The race that ends a search: the most promising orderings, on ever more examples, ever fewer of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import ScoreEstimate
from plr_dspy.scoring.staged_objective import RacingExamples
from plr_dspy.search.search import Search
from plr_dspy.search.surrogate.crossed_effects import adjusted_means, score_table
from plr_dspy.search.surrogate.fitted_model import Scores

KEPT_SHARE = 0.4
"""Share of the orderings that go on to the next heat."""


def adjusted_scores(scores: Scores) -> dict[Ordering, float]:
    """Mean score of each ordering, adjusted for the examples that it was scored on (`adjusted_means`)."""
    return dict(zip(scores, map(float, adjusted_means(score_table(list(scores.values())))), strict=True))


def entrants(
    search: Search, best: Sequence[ScoreEstimate], *, original: Ordering, num_draws: int
) -> list[Ordering]:
    """The orderings that race: the best of a search, its mode and draws, each once and without the original.

    Args:
        search: After its last round.
        best: What it takes for its best orderings; where it has none, nothing races.
        original: What the user has; it has its place in the final comparison.
        num_draws: Draws from the final distribution.
    """
    found = [estimate.ordering for estimate in best]
    if found:
        found += [search.mode(), *search.draw(num_draws)]
    return [ordering for ordering in dict.fromkeys(found) if ordering != original]


def race(
    objective: RacingExamples,
    entrants: Sequence[Ordering],
    *,
    num_examples: int,
    num_calls: int,
    num_winners: int,
    guest: Ordering | None = None,
    estimate: Callable[[Scores], Mapping[Ordering, float]] = adjusted_scores,
    on_heat: Callable[[], None] = lambda: None,
) -> list[Ordering]:
    """Sequential halving (Z. Karnin, T. Koren and O. Somekh, ICML 2013).

    Each heat has an equal share of the calls, counted as if only the search's had been made: a race that was
    stopped and run again takes the same course.

    Args:
        objective: Has scored entrants in the search.
        entrants: Distinct orderings. Those that are new to it are scored as often as the least scored one,
            where half of the calls pay for that, and stay out otherwise.
        num_examples: That there are.
        num_calls: Program calls, at most.
        num_winners: How many to find.
        guest: An ordering that is scored in the last heat as often as the others there, and cannot win: what
            the winners are compared with afterwards.
        estimate: What ranks them, from the scores of all orderings that the objective knows; an ordering that
            it says nothing of has lost.
        on_heat: Called after each heat that was scored whole.

    Returns:
        The winners, best first: fewer when there are fewer entrants, and no call is made without any. When the time
        is up, by what is known.
    """
    known = [count for entrant in entrants if (count := objective.num_asked(entrant))]
    least = min(known, default=objective.num_first)
    new = [entrant for entrant in entrants if not objective.num_asked(entrant)][: num_calls // 2 // least]
    objective.extend(new, least)
    alive, spent, level = [e for e in entrants if objective.num_asked(e)], least * len(new), least
    if not alive:
        return []
    num_heats = max(1, math.ceil(math.log(max(1, len(alive) / num_winners)) / math.log(1 / KEPT_SHARE)))
    for heat in range(num_heats):
        scored = [*alive, guest] if guest is not None and heat == num_heats - 1 else alive
        asked = [objective.num_asked(ordering) for ordering in scored]
        share = (num_calls - spent) / (num_heats - heat)

        def cost(level: int, asked: Sequence[int] = asked) -> int:
            return sum(max(0, level - count) for count in asked)

        while level < num_examples and cost(level + 1) <= share:
            level += 1
        spent += cost(level)
        finished = objective.extend(scored, level)
        means = estimate(objective.scores())
        alive = sorted((o for o in alive if o in means), key=lambda ordering: -means[ordering])
        if len(finished) < len(asked):
            break
        on_heat()
        alive = alive[: max(num_winners, math.ceil(KEPT_SHARE * len(alive)))]
    return alive[:num_winners]
