"""The score of random demos, estimated from a search's calls, or the reason why it is unknown."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plr_dspy.compiling.choice import Decision
from plr_dspy.compiling.run import CompileRun
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.report.formats import count, listed
from plr_dspy.report.schema import Alternative
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Ordering, Scores
from plr_dspy.statistics.arrays import Array
from plr_dspy.statistics.comparisons import TAIL, likely_bounds
from plr_dspy.statistics.crossed import MIN_ORDERINGS, NUM_DRAWS, draw_means

NUM_RANDOM = 200  # number of random orderings whose mean score is estimated
MIN_EXAMPLES = 5  # minimum number of distinct examples for an estimate
# A metric over a set needs at least `MIN_PER_LABEL` distinct examples of most labels: the share of
# labels with fewer examples must not exceed `MAX_SCARCE`.
MIN_PER_LABEL = 2
MAX_SCARCE = 0.1
MAX_NAMED = 5  # maximum number of labels to name in a message


def random_demos(setup: CompileSetup, run: CompileRun, decision: Decision) -> Alternative | str | None:
    """Return the estimated score of random demos in a random order, or the reason why it is unknown.

    The prompts contain the maximum number of demos that the limits allow. Return None if there is
    no fitted model, or if the search scored no random orderings.
    """
    fitted = decision.fitted
    if fitted is None or not run.random_orderings():
        return None
    longest = _longest(setup)
    name = _name(setup, longest, is_calibrated=fitted.calibrates_answers)
    calls = _RandomCalls(setup, run, decision, fitted)
    reason = calls.why_too_few()
    if reason:
        return f"{name}: {reason}"
    score, draws = calls.draw(longest)
    low, high = np.quantile(draws, [TAIL, 1.0 - TAIL]).tolist()
    return Alternative(
        name=name,
        score=round(score, 6),
        interval=(round(min(low, score), 6), round(max(high, score), 6)),
        num_examples=len(calls.examples),
        tokens=_mean_tokens(setup, longest),
        num_demos=_mean_number(setup, longest),
    )


def _longest(setup: CompileSetup) -> list[Ordering]:
    """Return random orderings that show as many demos as possible, with the student's instructions."""
    space = setup.slots.space
    orderings = space.draw(NUM_RANDOM, np.random.default_rng([setup.seed, 1]), longest=True)
    return [space.with_first_choices(ordering) for ordering in orderings]


def _name(setup: CompileSetup, longest: Sequence[Ordering], *, is_calibrated: bool) -> str:
    num_demos = _mean_number(setup, longest)
    name = f"a random order of {count(num_demos, 'demo')}"
    if isinstance(setup.slots, PoolSlots):
        name = count(num_demos, "random demo")
    return f"{name}, calibrated" if is_calibrated else name


def _mean_number(setup: CompileSetup, longest: Sequence[Ordering]) -> int:
    """Return the rounded mean number of demos in these orderings."""
    return round(np.mean([setup.slots.num_demos(ordering) for ordering in longest]))


def _mean_tokens(setup: CompileSetup, longest: Sequence[Ordering]) -> int:
    """Return the mean number of tokens in these orderings' demos, or 0 if the search only orders demos."""
    slots = setup.slots
    if not isinstance(slots, PoolSlots):
        return 0
    return round(np.mean([slots.tokens(ordering) for ordering in longest]))


@dataclass(frozen=True)
class _RandomCalls:
    """A search's calls with random orderings, used to estimate the score of random demos."""

    setup: CompileSetup
    run: CompileRun
    decision: Decision
    fitted: FittedModel

    @cached_property
    def scores(self) -> Scores:
        """The scores of all candidates."""
        return self.run.observations.scores()

    @cached_property
    def orderings(self) -> list[Ordering]:
        """The random orderings that have scores."""
        return [ordering for ordering in self.run.random_orderings() if ordering in self.scores]

    @cached_property
    def examples(self) -> list[int]:
        """The distinct examples on which a random ordering was scored."""
        return sorted(set[int]().union(*(self.scores[ordering] for ordering in self.orderings)))

    def why_too_few(self) -> str:
        """Return why there are too few calls for an estimate, or an empty string if there are enough."""
        if len(self.orderings) < MIN_ORDERINGS:
            return f"the search scored only {count(len(self.orderings), 'random prompt')}"
        if len(self.examples) < MIN_EXAMPLES:
            return f"the search scored random prompts on only {count(len(self.examples), 'example')}"
        metric = self.run.evaluator.confusion_scores
        if metric is None:
            return ""
        scarce = metric.scarce_labels(self.examples, MIN_PER_LABEL)
        if len(scarce) <= MAX_SCARCE * len(metric.labels) and metric.positive_label not in scarce:
            return ""
        names = listed(map(repr, scarce), MAX_NAMED)
        return f"the search scored random prompts on fewer than {MIN_PER_LABEL} examples of {names}"

    def draw(self, longest: Sequence[Ordering]) -> tuple[float, Array]:
        """Return the expected score of the longest orderings, and posterior draws of this score.

        The draws are based on the scores of calls. Only the effect of showing more demos is
        estimated by the fitted model.
        """
        rng = np.random.default_rng([self.setup.seed, 2])
        orderings = self.orderings
        extra = np.zeros(NUM_DRAWS)
        if self.setup.plan.racing:
            extra = self.fitted.draw_effect_of_length(orderings, longest, NUM_DRAWS, rng)
        if self.run.evaluator.confusion_scores is None:
            return self._draw_mean(longest, extra, rng)
        return self._draw_value(extra, rng)

    def _draw_mean(
        self, longest: Sequence[Ordering], extra: Array, rng: np.random.Generator
    ) -> tuple[float, Array]:
        """Return the expected mean of the scores, and posterior draws of this mean."""
        scores = self.fitted.counted(self.scores)
        rows = [scores[ordering] for ordering in self.orderings]
        table = np.array([[row.get(example, np.nan) for example in self.examples] for row in rows])
        low, high = likely_bounds([score for row in scores.values() for score in row.values()])
        score = float(np.nanmean(table, axis=1).mean())
        if self.setup.plan.racing:
            score = self.fitted.expected_at_random(self.orderings, longest)
        return score, np.clip(draw_means(table, low, high, rng) + extra, low, high)

    def _draw_value(self, extra: Array, rng: np.random.Generator) -> tuple[float, Array]:
        """Return the expected value of a metric over a set, and posterior draws of this value."""
        metric = self.run.evaluator.confusion_scores
        assert metric is not None
        records = self.run.observations.records
        rows = [
            metric.answers(records[ordering], self.fitted.revised_labels(ordering))
            for ordering in self.orderings
        ]
        value, draws = metric.draw_values(rows, rng)
        to_metric_scale = self.decision.scale_of_metric(self.setup.original)
        slope = to_metric_scale(1.0) - to_metric_scale(0.0)
        low, high = metric.bounds
        return metric.clip(value + slope * float(extra.mean())), np.clip(draws + slope * extra, low, high)
