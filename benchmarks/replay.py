"""Ways to choose an order of demos, run on landscapes: compiles go the whole way through DSPy."""

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
"""How the texts of demos and of the example begin, which comes last: their numbers in the landscape stand for them."""

LEARNS = {"light": {"signal": "score"}, "logprobs": {"signal": "logprobs"}, "calibrated": {"calibrate": True}}
SHOWS = {demos: {"demos": demos, "signal": "score"} for demos in ("fixed", "retrieved", "auto")}
"""Ways of the optimizers to learn from a call, and of `PLFewShot` to show demos."""

METHODS = [*LEARNS, "paper", "top-k", "batch", *SHOWS, *(f"F1 {way}" for way in (*LEARNS, "batch"))]


@dataclass(frozen=True)
class Pool:
    """A landscape, and how many of its first examples are known; the rest are held out. With a `share`, what counts of
    these is the F1 of the `rare` label, weighted so that it has this share."""

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
        """What an order scores on the held-out examples; with offsets of labels, by answers that these calibrate."""
        told = self.landscape.log_probabilities(order)
        return self.score((told + np.array(offsets or 0.0)).argmax(axis=1)[self.num_known :])

    def score(self, answers: np.ndarray) -> float:
        """What answers to the held-out examples score."""
        right = self.landscape.right_labels[self.num_known :]
        if not self.share:
            return float((answers == right).mean())
        is_rare = right == self.rare
        weights = np.where(is_rare, self.share / is_rare.mean(), (1.0 - self.share) / (1.0 - is_rare.mean()))
        return float(f1_score(is_rare, answers == self.rare, zero_division=0.0, sample_weight=weights))


class ReplayEngine:
    """Answers in the format of DSPy's `ChatAdapter`, and counts its calls.

    Log-probabilities are those of labels, each of which is one token; the rest of a reply is certain.
    """

    def __init__(self, landscape: Landscape) -> None:
        self.landscape = landscape
        self.calls = 0
        self.labels = [f"label {number}" for number in range(landscape.num_labels)]
        self.answers = functools.lru_cache(maxsize=256)(lambda order: landscape.log_probabilities(order).argmax(axis=1))

    def program(self, kind: type[dspy.Predict]) -> Any:
        """A program of one label, whose demos are those of the landscape in their original order."""
        output = (Literal[tuple(self.labels)], dspy.OutputField())
        program = kind(dspy.Signature({"text": (str, dspy.InputField()), "label": output}))
        program.engine = self
        labels = [self.labels[number] for number in self.landscape.classes]
        program.demos = [dspy.Example(text=f"demo {i}", label=label) for i, label in enumerate(labels)]
        return program

    def examples(self) -> list[dspy.Example]:
        """Those of the landscape."""
        text = self.landscape.text
        labels = [self.labels[number] for number in self.landscape.right_labels]
        return [dspy.Example(text=text(i), label=label).with_inputs("text") for i, label in enumerate(labels)]

    def complete(self, request: Any) -> Any:
        """Answer a request."""
        self.calls += 1
        texts = [message.text or "" for message in request.messages]
        *order, example = [int(number) for text in texts for number in NAMES.findall(text)]
        values = self.landscape.told(tuple(order), example)
        likeliest = np.argsort(-values, kind="stable")
        head = "[[ ## label ## ]]\n"
        label = self.labels[likeliest[0]]
        tail = "\n\n[[ ## completed ## ]]"
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": head + label + tail}}
        if request.config.logprobs is not None:
            shown = likeliest[: request.config.logprobs]
            tops = [{"token": self.labels[i], "logprob": float(values[i])} for i in shown]
            places = [{"token": head, "logprob": 0.0}], tops, [{"token": tail, "logprob": 0.0}]
            choice["logprobs"] = {"content": [{**told[0], "top_logprobs": told} for told in places]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        reply = {"id": "replay", "model": "replay", "choices": [choice | {"finish_reason": "stop"}]}
        return lm15.response_from_openai_chat(reply | {"usage": usage}, model=request.model)


class Lookup(dspy.Predict):
    """Answers from a landscape without a language model: what calls tell is scores alone, but thousands a second."""

    def forward(self, **inputs: Any) -> dspy.Prediction:
        self.engine.calls += 1
        answers = self.engine.answers(shown_by(self))
        return dspy.Prediction(label=self.engine.labels[answers[int(NAMES.findall(inputs["text"])[0])]])


def shown_by(predictor: dspy.Predict) -> Order:
    """The demos that a predictor shows, by their numbers in the landscape."""
    return tuple(int(NAMES.findall(demo["text"])[0]) for demo in predictor.demos)


@dataclass(frozen=True)
class Compiled:
    """What a compile comes to: what its result scores on held-out examples, its calls, and what the report says."""

    score: float
    calls: int
    changed: bool
    comparison: Comparison | None

    @property
    def claims(self) -> bool:
        """Whether the result is called better than the original."""
        return self.comparison is not None and self.comparison.probability >= MIN_WIN_PROBABILITY


def compiled(pool: Pool, method: str, budget: int | None, seed: int) -> Compiled:
    """Compile a program whose calls a landscape answers, by one of `METHODS`."""
    engine = ReplayEngine(pool.landscape)
    by_f1 = method.startswith("F1 ")
    way = method.removeprefix("F1 ")
    student = engine.program(dspy.Predict if way in ("logprobs", "calibrated", "batch", *SHOWS) else Lookup)
    objective = F1(engine.labels[pool.rare]) if by_f1 else metric
    common = {"num_threads": 1, "seed": seed, "display_progress": False}
    searched = {"metric": objective, "max_metric_calls": budget, **common}
    if way == "batch":
        optimizer = BatchCalibration(metric=objective if by_f1 else None, **common)
    elif way == "top-k":
        optimizer = TopKOrder(**searched)
    elif way == "paper":
        optimizer = PLReorder(auto="paper", **_paper_sizes(pool, budget), **searched)
    elif pool.landscape.max_shown is None:
        optimizer = PLReorder(**LEARNS[way], **searched)
    else:
        if student.demos:
            searched["candidates"] = student.demos
            student.demos = []
        optimizer = PLFewShot(**(LEARNS | SHOWS)[way], **searched)
    examples = engine.examples()
    lm = dspy.LM("openai/replay", engine=engine, cache=False, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(), disable_history=True):
        program = optimizer.compile(student, trainset=examples[: pool.num_known])
        calls = engine.calls
        report = None
        if not isinstance(optimizer, BatchCalibration):  # Its report compares no programs.
            report = optimizer.report
            assert calls == report.program_calls["total"]
        if finds := any(isinstance(each, RetrievingPredict) for each in program.predictors()):
            answers = [engine.labels.index(program(text=each.text).label) for each in examples[pool.num_known :]]
    offsets = getattr(getattr(program, "calibration", None), "offsets", ())
    order = shown_by(program.predictors()[0])
    score = pool.score(np.array(answers)) if finds else pool.held_out(order, offsets)
    changed = finds or (order, offsets) != (pool.space.identity[0], ())
    return Compiled(score, calls, changed, report and report.comparison)


def _paper_sizes(pool: Pool, budget: int | None) -> dict[str, int]:
    """The largest B and K of PLR Algorithm 1 for which two rounds fit a budget."""
    num_selection = max(1, round(0.2 * pool.num_known))
    for num_samples in range(15, 1, -1):
        num_draws = max(1, round(num_samples * 2 / 3))
        calls = 2 * num_samples * (pool.num_known - num_selection) + (3 + num_draws) * num_selection
        if budget is None or calls <= budget:
            break
    return {"num_samples": num_samples, "num_final_draws": num_draws}


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    """Whether the label is the right one."""
    return bool(example.label == prediction.label)


def halving(pool: Pool, budget: int, seed: int) -> tuple[Order, int]:
    """The best order by successive halving of 225 random ones, and the calls: the least that a search must beat. Where
    demos may be left out, it is of arrangements, which begin with 4 examples each in a third of the calls."""
    first = 0
    rng = np.random.default_rng(seed)
    if pool.landscape.max_shown is None:
        drawn = [tuple(map(int, rng.permutation(pool.landscape.num_demos))) for _ in range(225)]
    else:
        first = 4
        number = max(1, budget // 12)
        drawn = [order for (order,) in dict.fromkeys([pool.space.identity, *pool.space.draw(2 * number, rng)])][:number]
    alive = list(dict.fromkeys(drawn))
    calls = 0
    examples = 0
    rungs = int(np.ceil(np.log(len(alive)) / np.log(1 / 0.4)))  # each leaves four of ten
    for rung in range(rungs):
        more = max(1, (budget - calls) // (rungs - rung) // len(alive))
        more = min(first if first and not rung else more, pool.num_known - examples)
        if calls + more * len(alive) > budget:
            break
        calls = calls + more * len(alive)
        examples = examples + more
        ranked = sorted(alive, key=lambda order: -pool.landscape.answers(order)[:examples].sum())
        alive = ranked[: max(1, int(np.ceil(0.4 * len(alive))))]
    return alive[0], calls
