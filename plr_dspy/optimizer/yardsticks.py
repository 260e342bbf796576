"""Scores of simpler methods: random demos, a constant answer and a nearest-neighbor vote.

Reports show these scores next to the gain. Even after a large gain over a weak program, the result
may be worse than a simpler method. The scores need no extra program calls.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plr_dspy.compiling.choice import Decision
from plr_dspy.compiling.comparison import paired_gain, paired_gain_by_metric
from plr_dspy.compiling.run import CompileRun
from plr_dspy.labels.constant_answer import best_constant, metric_results
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.programs.splits import source_of
from plr_dspy.report.formats import count
from plr_dspy.report.schema import Alternative, PairedGain
from plr_dspy.retrieval.nearest import Pool
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.scoring.observations import Observations
from plr_dspy.scoring.run_log import FAILED
from plr_dspy.search.search import mean_score
from plr_dspy.search.space import Ordering, Scores

MIN_ORDERINGS = 3  # minimum number of scored random orderings for an estimate of their mean score
NUM_LONGEST = 200  # number of random orderings of maximum length to draw, to estimate their mean score
# Maximum share of failed calls for that estimate. Failed calls count as incorrect, except those of the original.
MOST_FAILED = 0.05
MAX_EXAMPLES = 500  # maximum number of examples on which the metric is called for one score


def yardsticks(setup: CompileSetup, run: CompileRun, decision: Decision) -> dict[str, Any]:
    """Return the report's entries on random demos, a constant answer and a nearest-neighbor vote.

    An entry is missing or None if its score is unknown, or if its method does not apply to the program.
    """
    scores: dict[str, Any] = {}
    results = _vote_results(setup)
    scores["vote"] = _vote(setup, results)
    if decision.comparison is not None:
        scores["random"] = _random_demos(setup, run, decision)
        scores["constant"] = _constant_answer(setup)
        scores["vote_gain"] = _vote_gain(run, decision, results)
    return scores


def _random_demos(setup: CompileSetup, run: CompileRun, decision: Decision) -> Alternative | None:
    """Return the expected score of as many random demos as the limits allow, in a random order.

    Return None if no score model was fitted, if the search scored fewer than `MIN_ORDERINGS` random
    orderings, or if too many of their calls failed. Also return None if a metric over a set has a
    label without a scored example.
    """
    fitted = decision.fitted
    scores = run.observations.scores()
    orderings = [ordering for ordering in run.random_orderings() if ordering in scores]
    if fitted is None or len(orderings) < MIN_ORDERINGS:
        return None
    calls = [record for ordering in orderings for record in run.observations.records[ordering].values()]
    if sum(record.outcome == FAILED for record in calls) > MOST_FAILED * len(calls):
        return None
    examples = set[int]().union(*(scores[ordering] for ordering in orderings))
    metric = run.evaluator.confusion_scores
    if metric is not None and metric.unscored_labels(examples):
        return None
    slots = setup.slots
    drawn = slots.space.draw(NUM_LONGEST, np.random.default_rng([setup.seed, 1]), longest=True)
    longest = [slots.space.with_first_choices(ordering) for ordering in drawn]
    num_demos = round(np.mean([slots.num_demos(ordering) for ordering in longest]))
    name = f"a random order of {count(num_demos, 'demo')}"
    tokens = 0
    if isinstance(slots, PoolSlots):
        name = count(num_demos, "random demo")
        tokens = round(np.mean([slots.tokens(ordering) for ordering in longest]))
    if fitted.calibrates_answers:
        name += ", calibrated"
    score = round(_score_at_random(run, decision, orderings, longest), 6)
    return Alternative(
        name=name, score=score, num_examples=len(examples), tokens=tokens, num_demos=num_demos
    )


def _score_at_random(
    run: CompileRun, decision: Decision, orderings: Sequence[Ordering], longest: Sequence[Ordering]
) -> float:
    """Estimate the mean score of the `longest` orderings from the calls of the random `orderings`."""
    fitted = decision.fitted
    assert fitted is not None
    metric = run.evaluator.confusion_scores
    if run.plan.racing:
        score = fitted.expected_at_random(orderings, longest)
        return score if metric is None else metric.clip(decision.scale_of_metric(run.original)(score))
    # All orderings are scored on the same examples, so no model is needed.
    if metric is not None:
        observations = run.observations
        values = []
        for ordering in orderings:
            failures = observations.counted_failures(ordering)
            answers = metric.answers(observations.records[ordering], {}, failures=failures)
            values.append(metric.value(answers.items()))
        return float(np.mean(values))
    scores = fitted.counted(run.observations.scores())
    return float(np.mean([mean_score(scores[ordering]) for ordering in orderings]))


def _constant_answer(setup: CompileSetup) -> Alternative | None:
    """Return the score of the best constant answer, or None if it is unknown or labels are not classes."""
    if setup.splits.classes is None or not setup.program.predictors():
        return None
    # The train split may have other shares of labels, so begin with the selection split.
    examples = [*setup.splits.selection, *setup.splits.train][:MAX_EXAMPLES]
    with contextlib.suppress(Exception, SystemExit):
        constant = best_constant(setup.options.metric, setup.program, examples)
        if constant is not None:
            names = ", ".join(map(repr, constant.labels))
            return Alternative(
                name=f"always answering {names}", score=constant.score, num_examples=len(examples)
            )
    return None


def _vote_results(setup: CompileSetup) -> dict[int, Any]:
    """Return the metric's results for a majority vote of each example's nearest neighbors.

    The vote needs no language model. The results are keyed by indices in `setup.scored_examples`.
    The dict is empty if a vote is not possible, or if the metric fails, is slow or calls a model.
    """
    slots = setup.slots
    predictors = setup.program.named_predictors()
    if not isinstance(slots, PoolSlots) or len(predictors) != 1 or setup.splits.classes is None:
        return {}
    names = set(predictors[0][1].signature.input_fields)
    labeled = [example for example in setup.examples if names <= set(example.inputs().keys())]
    if not labeled:
        return {}
    if isinstance(slots, RetrievalSlots) and slots.retrieval_pools:
        (pool,) = slots.retrieval_pools.values()
    else:
        pool = Pool(predictors[0][1], labeled, [source_of(example.inputs()) for example in labeled])
    scored = setup.scored_examples
    num_train = len(setup.splits.train)
    # Put the selection split first, so that `MAX_EXAMPLES` does not cut it off.
    indices = [*range(num_train, len(scored)), *range(num_train)]
    indices = [index for index in indices if pool.knows(scored[index].inputs())][:MAX_EXAMPLES]
    examples = [scored[index] for index in indices]
    number = setup.options.max_demos
    inputs = [dict(example.inputs().items()) for example in examples]
    answers = (pool.vote(fields, number, without=fields) for fields in inputs)
    results = metric_results(setup.options.metric, examples, answers)
    return dict(zip(indices, results, strict=True)) if results else {}


def _vote(setup: CompileSetup, results: Mapping[int, Any]) -> Alternative | None:
    """Return the score of a vote, or None if there are no results or the metric fails."""
    if not results:
        return None
    metric = setup.options.metric
    values = list(results.values())
    name = f"a vote of the {setup.options.max_demos} nearest examples, without a model"
    with contextlib.suppress(Exception, SystemExit):
        if isinstance(metric, SetMetric):
            examples = [setup.scored_examples[index] for index in results]
            labels = metric.output_labels(setup.program, examples)
            score = metric.score(metric.right_labels(examples), values, labels=labels)
        else:
            score = float(np.mean(values))
        return Alternative(name=name, score=score, num_examples=len(results))
    return None


def _vote_gain(run: CompileRun, decision: Decision, results: Mapping[int, Any]) -> PairedGain | None:
    """Return the gain of a vote over the returned program, on the examples that both answered.

    Return None if there are no such examples, or if no score model was fitted.
    """
    evaluator = run.evaluator
    fitted = decision.fitted
    if fitted is None:
        return None
    chosen = decision.candidate
    records = evaluator.records_of(chosen)
    is_revised = decision.revision is not None
    metric = evaluator.confusion_scores
    if metric is not None:
        labels = fitted.revised_labels(chosen) if is_revised else {}
        return paired_gain_by_metric(metric, metric.answers(records, labels), results)
    observations = Observations(evaluator.effective_scores, favored=run.original)
    observations.add({chosen: records})
    scores: Scores = observations.scores()
    if is_revised:
        scores = fitted.counted(scores)
    return paired_gain(scores.get(chosen, {}), results)
