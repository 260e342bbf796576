"""Functions that run methods for ordering demos on a landscape, in place of a language model."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dspy
import numpy as np
from dspy import lm15
from landscapes import Landscape, Order
from sklearn.metrics import f1_score

from plr_dspy import F1, BatchCalibration, OrderingSpace, PLFewShot, PLReorder
from plr_dspy.baselines import TopKOrder
from plr_dspy.report.schema import Comparison
from plr_dspy.report.text import MIN_WIN_PROBABILITY
from plr_dspy.retrieval.predict import RetrievingPredict

NAMES = re.compile(r"^(?:demo |example |n)(\d+)\b", re.MULTILINE)
"""Matches the start of a demo or an example, with its index. The example comes last in a prompt."""

LEARNS: dict[str, dict[str, Any]] = {
    "light": {"signal": "score"},
    "logprobs": {"signal": "logprobs"},
    "calibrated": {"calibrate": True},
}
"""Settings of optimizers, keyed by what the search learns from a call."""

SHOWS: dict[str, dict[str, Any]] = {
    "fixed": {"demos": "fixed", "signal": "score"},
    "retrieved": {"demos": "retrieved", "signal": "score"},
    "auto": {"demos": "auto", "signal": "score"},
}
"""Settings of `PLFewShot`, keyed by how the program gets its demos."""

BY_F1 = [f"F1 {method}" for method in (*LEARNS, "batch")]
METHODS = [*LEARNS, "paper", "top-k", "batch", *SHOWS, *BY_F1]


@dataclass(frozen=True)
class Pool:
    """A landscape whose first examples are known and whose other examples are held out.

    If `share` is set, scores are the F1 of the label `rare`, and held-out examples are weighted to give
    this label this share.
    """

    landscape: Landscape
    num_known: int
    rare: int = 1
    share: float = 0.0

    @property
    def space(self) -> OrderingSpace:
        size = self.landscape.num_demos
        most = self.landscape.max_shown
        if most is None:
            return OrderingSpace.of_sizes(size)
        return OrderingSpace.of_sizes(size, max_length=min(most, size), identity=((),))

    def held_out(self, order: Order, offsets: Sequence[float] = ()) -> float:
        """Return the score of an order on the held-out examples, with answers calibrated by `offsets`."""
        log_probabilities = self.landscape.log_probabilities(order)
        if offsets:
            log_probabilities = log_probabilities + np.array(offsets)
        return self.score(log_probabilities.argmax(axis=1)[self.num_known :])

    def score(self, answers: np.ndarray) -> float:
        """Return the score of the answers to the held-out examples."""
        right_labels = self.landscape.right_labels[self.num_known :]
        if not self.share:
            return float((answers == right_labels).mean())
        is_rare = right_labels == self.rare
        rare_weight = self.share / is_rare.mean()
        other_weight = (1.0 - self.share) / (1.0 - is_rare.mean())
        weights = np.where(is_rare, rare_weight, other_weight)
        return float(f1_score(is_rare, answers == self.rare, zero_division=0.0, sample_weight=weights))


class ReplayEngine:
    """An LM engine that takes its answers from a landscape, and counts calls.

    Replies are in the format of DSPy's `ChatAdapter`. Each label is one token with the landscape's log-probability. All
    other tokens have probability 1.
    """

    def __init__(self, landscape: Landscape) -> None:
        self.landscape = landscape
        self.calls = 0
        self.labels = [f"label {number}" for number in range(landscape.num_labels)]
        self.answers = functools.lru_cache(maxsize=256)(self._answers)

    def _answers(self, order: Order) -> np.ndarray:
        return self.landscape.log_probabilities(order).argmax(axis=1)

    def program(self, kind: type[dspy.Predict]) -> Any:
        """Return a program with one label as output, and the landscape's demos in their original order."""
        text = (str, dspy.InputField())
        label = (Literal[tuple(self.labels)], dspy.OutputField())
        program = kind(dspy.Signature({"text": text, "label": label}))
        program.engine = self
        for demo, number in enumerate(self.landscape.classes):
            program.demos.append(dspy.Example(text=f"demo {demo}", label=self.labels[number]))
        return program

    def examples(self) -> list[dspy.Example]:
        """Return the examples of the landscape."""
        examples = []
        for number, label in enumerate(self.landscape.right_labels):
            example = dspy.Example(text=self.landscape.text(number), label=self.labels[label])
            examples.append(example.with_inputs("text"))
        return examples

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Return the landscape's answer to a request."""
        self.calls += 1
        prompt = "\n".join(message.text or "" for message in request.messages)
        *order, example = map(int, NAMES.findall(prompt))
        values = self.landscape.of_call(tuple(order), example)
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return label_response("label", self.labels, values, usage, request)


def label_response(
    field: str, labels: Sequence[str], values: np.ndarray, usage: dict[str, Any], request: lm15.Request
) -> lm15.Response:
    """Return a reply in the format of DSPy's `ChatAdapter`, with the given log-probabilities of labels."""
    likeliest = np.argsort(-values, kind="stable")
    head = f"[[ ## {field} ## ]]\n"
    tail = "\n\n[[ ## completed ## ]]"
    content = f"{head}{labels[likeliest[0]]}{tail}"
    choice: dict[str, object] = {
        "message": {"role": "assistant", "content": content},
        "finish_reason": "stop",
    }
    if request.config.logprobs is not None:
        tops = []
        for label in likeliest[: request.config.logprobs]:
            tops.append({"token": labels[label], "logprob": float(values[label])})
        tokens = ([certain(head)], tops, [certain(tail)])
        choice["logprobs"] = {"content": [{**token[0], "top_logprobs": token} for token in tokens]}
    reply = {"id": "replay", "model": "replay", "choices": [choice], "usage": usage}
    return lm15.response_from_openai_chat(reply, model=request.model)


def certain(token: str) -> dict[str, object]:
    return {"token": token, "logprob": 0.0}


class Lookup(dspy.Predict):
    """A predictor that looks up its answers in a landscape. A lookup is faster than an LM call."""

    def forward(self, **inputs: str) -> dspy.Prediction:
        self.engine.calls += 1
        answers = self.engine.answers(shown_by(self))
        return dspy.Prediction(label=self.engine.labels[answers[number_of(inputs["text"])]])


def number_of(text: str) -> int:
    """Return the index at the start of a demo's or an example's text."""
    return int(NAMES.findall(text)[0])


def shown_by(predictor: dspy.Predict) -> Order:
    """Return the indices of the demos that a predictor shows."""
    return tuple(number_of(demo["text"]) for demo in predictor.demos)


@dataclass(frozen=True)
class Compiled:
    """The held-out score of a compiled program, the number of calls, and the comparison in the report."""

    score: float
    calls: int
    changed: bool
    comparison: Comparison | None

    @property
    def claims(self) -> bool:
        """Whether the report says that the program is better than the original."""
        return self.comparison is not None and self.comparison.probability >= MIN_WIN_PROBABILITY


def compile_with(pool: Pool, method: str, budget: int | None, seed: int) -> Compiled:
    """Compile a program with one of `METHODS`, on answers from a landscape."""
    engine = ReplayEngine(pool.landscape)
    mode = method.removeprefix("F1 ")
    needs_model = mode in ("logprobs", "calibrated", "batch", *SHOWS)
    student = engine.program(dspy.Predict if needs_model else Lookup)
    optimizer = make_optimizer(pool, method, budget, seed, student)
    examples = engine.examples()
    lm = dspy.LM("openai/replay", engine=engine, cache=False, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(), disable_history=True):
        program = optimizer.compile(student, trainset=examples[: pool.num_known])
        calls = engine.calls
        comparison = None
        if not isinstance(optimizer, BatchCalibration):  # Reports of BatchCalibration have no comparison.
            comparison = optimizer.report.comparison
            assert calls == optimizer.report.program_calls["total"]
        predictor = program.predictors()[0]
        if isinstance(predictor, RetrievingPredict):
            held_out = examples[pool.num_known :]
            answers = [engine.labels.index(program(text=example.text).label) for example in held_out]
            return Compiled(pool.score(np.array(answers)), calls, True, comparison)
    calibration = getattr(program, "calibration", None)
    offsets = () if calibration is None else calibration.offsets
    order = shown_by(predictor)
    changed = order != pool.space.identity[0] or offsets != ()
    return Compiled(pool.held_out(order, offsets), calls, changed, comparison)


def make_optimizer(pool: Pool, method: str, budget: int | None, seed: int, student: dspy.Predict) -> Any:
    """Return the optimizer of a method. For `PLFewShot`, turn the student's demos into candidates."""
    mode = method.removeprefix("F1 ")
    objective = metric if mode == method else F1(student.engine.labels[pool.rare])
    common = {"num_threads": 1, "seed": seed, "display_progress": False}
    if mode == "batch":
        return BatchCalibration(metric=None if mode == method else objective, **common)
    common |= {"metric": objective, "max_metric_calls": budget}
    if mode == "top-k":
        return TopKOrder(**common)
    if mode == "paper":
        return PLReorder(auto="paper", **paper_sizes(pool, budget), **common)
    if pool.landscape.max_shown is None:
        return PLReorder(**LEARNS[mode], **common)
    if student.demos:
        common["candidates"] = student.demos
        student.demos = []
    return PLFewShot(**(LEARNS | SHOWS)[mode], **common)


def paper_sizes(pool: Pool, budget: int | None) -> dict[str, int]:
    """Return the largest numbers of samples and final draws for which the budget allows two rounds."""
    num_selection = max(1, round(0.2 * pool.num_known))
    for num_samples in range(15, 1, -1):
        num_draws = max(1, round(num_samples * 2 / 3))
        calls = 2 * num_samples * (pool.num_known - num_selection) + (3 + num_draws) * num_selection
        if budget is None or calls <= budget:
            break
    return {"num_samples": num_samples, "num_final_draws": num_draws}


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    """Return whether the label is correct."""
    return bool(example.label == prediction.label)


def halving(pool: Pool, budget: int, seed: int) -> tuple[Order, int]:
    """Return the best of 225 random orders by successive halving, and the number of calls.

    If the landscape has demos to choose from, halve arrangements instead. A third of the calls is used
    to score each arrangement on 4 examples.
    """
    rng = np.random.default_rng(seed)
    first = 0
    if pool.landscape.max_shown is None:
        drawn = [tuple(rng.permutation(pool.landscape.num_demos).tolist()) for _ in range(225)]
        alive = list(dict.fromkeys(drawn))
    else:
        first = 4
        number = max(1, budget // 12)
        arrangements = dict.fromkeys([pool.space.identity, *pool.space.draw(2 * number, rng)])
        alive = [order for (order,) in arrangements][:number]
    calls = 0
    num_examples = 0
    num_rungs = int(np.ceil(np.log(len(alive)) / np.log(1 / 0.4)))  # Each round keeps 40% of the orders.
    for rung in range(num_rungs):
        more = max(1, (budget - calls) // (num_rungs - rung) // len(alive))
        if first and rung == 0:
            more = first
        more = min(more, pool.num_known - num_examples)
        if calls + more * len(alive) > budget:
            break
        calls += more * len(alive)
        num_examples += more
        num_right = {order: pool.landscape.answers(order)[:num_examples].sum() for order in alive}
        alive.sort(key=num_right.__getitem__, reverse=True)
        alive = alive[: max(1, int(np.ceil(0.4 * len(alive))))]
    return alive[0], calls
