"""What simpler ways would score: random demos, the same answer to everything, and a vote of neighbours.

A report names them beside the gain, so that a gain over a weak program is not taken for a good program. None of them
makes a program call.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import dspy
import numpy as np
from scipy import stats

from plr_dspy.compilation.choice import Decision
from plr_dspy.compilation.run import CompileRun
from plr_dspy.labels.work import LONGEST_CALL, NoCalls
from plr_dspy.lm.plain_text_adapter import decided
from plr_dspy.metrics.by_example import as_score, metric_caller
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.metrics.copies import own_copy, own_value
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.programs.splits import Examples, answer_classes, source_of, value_key
from plr_dspy.report.schema import Alternative
from plr_dspy.report.text import count
from plr_dspy.retrieval.nearest import Pool
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.search.search import mean_score

MOST_ASKED = 500  # examples that a metric is asked for, at most
LONGEST = 2.0  # seconds that a metric may take for all of them
ENOUGH_SLOW = 3  # slow calls of the metric after which it is asked no more
MOST_ANSWERS = 5  # of the most frequent answers, among which the best one is found
NUM_RANDOM = 200  # random orderings whose scores are averaged

Answer = Callable[[dspy.Example], dspy.Prediction]


class Yardsticks(NamedTuple):
    """What simpler ways would score, as in a report; None for those that are not known."""

    random: Alternative | None
    constant: Alternative | None
    vote: Alternative | None


def yardsticks(setup: CompileSetup, run: CompileRun, decision: Decision) -> Yardsticks:
    """Return what simpler ways would score."""
    if decision.comparison is None:
        return Yardsticks(None, None, _vote(setup))
    return Yardsticks(_random_demos(setup, run, decision), _constant_answer(setup), _vote(setup))


def _random_demos(setup: CompileSetup, run: CompileRun, decision: Decision) -> Alternative | None:
    """Return what random demos are expected to score: as many as may be shown, in a random order."""
    slots = setup.slots
    space = slots.space
    if setup.options.scored_on != "train examples" or decision.fitted is None:
        return None
    drawn = run.random_orderings()
    if not drawn:
        return None
    orderings = space.draw(NUM_RANDOM, np.random.default_rng([setup.seed, 1]), longest=True)
    num_demos = round(np.mean([slots.num_demos(ordering) for ordering in orderings]))
    name = count(num_demos, "random demo")
    tokens = 0
    if isinstance(slots, PoolSlots):
        tokens = round(np.mean([slots.tokens(ordering) for ordering in orderings]))
    else:
        name = f"a random order of {count(num_demos, 'demo')}"
    num_examples = setup.plan.num_train_examples
    scores = decision.fitted.counted(run.scores())
    rows = [scores[ordering] for ordering in drawn]
    error = _error_of_mean(rows)
    if setup.plan.racing:
        scaled = decision.scale_of_metric(setup.original)
        score = decision.fitted.expected_at_random(drawn, orderings)
        if decision.fitted.calibrating:
            name += ", calibrated"
    else:
        num_examples = setup.plan.num_first_examples
        scaled = float
        score = float(np.mean([mean_score(row) for row in rows]))
    lowest = decision.fitted.clip(score - error)
    highest = decision.fitted.clip(score + error)
    return Alternative(
        name=name,
        score=round(scaled(score), 6),
        interval=(round(scaled(lowest), 6), round(scaled(highest), 6)),
        num_examples=num_examples,
        tokens=tokens,
    )


def _error_of_mean(rows: Sequence[Mapping[int, float]]) -> float:
    """Return half the width of the 95 % interval of the mean of random orderings, by their own scores.

    It adds the variance between orderings to that between examples, which the orderings may share. So it is rather too
    wide than too narrow. One ordering says nothing of others.

    Args:
        rows: The scores of each ordering, by example.
    """
    if len(rows) < 2:
        return math.inf
    means = [mean_score(row) for row in rows]
    scores = [score for row in rows for score in row.values()]
    examples = {example for row in rows for example in row}
    variance = float(np.var(means, ddof=1)) / len(rows) + float(np.var(scores)) / len(examples)
    if not variance and 0.0 <= scores[0] <= 1.0:
        # All calls scored the same (Hanley and Lippman-Hand, JAMA 1983).
        return 3.0 / len(scores)
    return float(stats.t.ppf(0.975, len(rows) - 1)) * math.sqrt(variance)


def _constant_answer(setup: CompileSetup) -> Alternative | None:
    """Return the score of one answer to all examples: the most frequent one, or by a set metric the best of some."""
    if setup.splits.classes is None:
        return None
    examples = setup.scored_examples[:MOST_ASKED]
    answers = _frequent_answers(setup)
    if not isinstance(setup.options.metric, SetMetric):
        answers = answers[:1]
    best: Alternative | None = None
    for answer in answers:
        score = _score(setup, examples, partial(_same_answer, answer))
        if score is None:
            return None
        if best is None or score > best.score:
            values = ", ".join(repr(decided(value)) for value in dict(answer.items()).values())
            best = Alternative(name=f"always answering {values}", score=score, num_examples=len(examples), tokens=0)
    return best


def _same_answer(answer: dspy.Prediction, example: dspy.Example) -> dspy.Prediction:
    """Return a copy of the answer, whatever the example is: a metric may write to it."""
    return dspy.Prediction({name: own_value(value) for name, value in answer.items()})


def _frequent_answers(setup: CompileSetup) -> list[dspy.Prediction]:
    """Return the most frequent answers of the examples, with the fields that are the same for all who have them."""
    rows = [dict(example.labels().items()) for example in setup.examples]
    names = sorted({name for row in rows for name in row})
    classes = answer_classes(rows, names)
    outputs = list(setup.program.predictors()[-1].signature.output_fields)
    answers = []
    for number, _ in Counter(classes).most_common(MOST_ANSWERS):
        same_class = [row for row, own_number in zip(rows, classes, strict=True) if own_number == number]
        first = same_class[0]
        answer = dspy.Prediction()
        for name, value in first.items():
            keys = {value_key(row.get(name)) for row in same_class}
            if len(keys) == 1:
                answer[name] = value
        if len(outputs) == 1 and len(answer) == 1 and outputs[0] not in answer:
            # The metric maps the label of the examples to an output of another name.
            (value,) = answer.values()
            answer = dspy.Prediction()
            answer[outputs[0]] = value
        answers.append(answer)
    return answers


def _vote(setup: CompileSetup) -> Alternative | None:
    """Return the score of the most frequent answer among each example's neighbours, which needs no embedder's call."""
    slots = setup.slots
    predictors = setup.program.named_predictors()
    names = set(predictors[0][1].signature.input_fields)
    labelled = [example for example in setup.examples if names <= set(example.inputs().keys())]
    if not isinstance(slots, PoolSlots) or len(predictors) != 1 or setup.splits.classes is None or not labelled:
        return None
    if isinstance(slots, RetrievalSlots) and slots.found:
        (pool,) = slots.found.values()
    else:
        pool = Pool(predictors[0][1], labelled, [source_of(example.inputs()) for example in labelled])
    scored = [*setup.splits.selection, *setup.splits.train]
    examples = [example for example in scored if pool.knows(example.inputs())][:MOST_ASKED]
    number = setup.options.max_demos

    def answer(example: dspy.Example) -> dspy.Prediction:
        inputs = dict(example.inputs().items())
        votes = pool.vote(inputs, number, without=inputs)
        return dspy.Prediction({name: own_value(value) for name, value in votes.items()})

    score = _score(setup, examples, answer)
    if score is None:
        return None
    name = f"a vote of the {number} nearest examples, without a language model, scores"
    return Alternative(name=name, score=score, num_examples=len(examples), tokens=0)


def _score(setup: CompileSetup, examples: Examples, answer: Answer) -> float | None:
    """Score answers by the metric; return None if it takes long, calls a model, or reads what these answers lack."""
    metric = setup.options.metric
    if language_models(metric) or not examples:
        return None
    calls = NoCalls()
    deadline = time.monotonic() + LONGEST
    over_set = metric if isinstance(metric, SetMetric) else None
    caller = metric_caller(metric) if over_set is None else over_set.answer
    results: list[Any] = []
    shortest = math.inf
    with contextlib.suppress(Exception, SystemExit), dspy.context(callbacks=[calls], trace=[]):
        for example in examples:
            prediction = answer(example)
            began = time.monotonic()
            results.append(caller(own_copy(example), prediction))
            ended = time.monotonic()
            shortest = min(shortest, ended - began)
            # A metric that takes long each time may ask a paid service, in a way that nobody else sees.
            if ended > deadline or (len(results) == ENOUGH_SLOW and shortest > LONGEST_CALL):
                return None
        if over_set is None:
            score = float(np.mean([as_score(result) for result in results]))
        else:
            labels = over_set.output_labels(setup.program, examples)
            score = over_set.score(over_set.right_labels(examples), results, labels=labels)
        if not calls.stopped:
            return score
    return None
