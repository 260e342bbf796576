"""Yardsticks in a report: random demos, a constant answer, and unparsable replies."""

import functools
import random
import re
from itertools import permutations, product

import dspy
import numpy as np
import pytest
from fakes import FIELD, OrderSensitiveEngine, digest, failure, lm_of, using
from label_engines import LABELS, exact
from label_world import DEMOS, EXAMPLES, Engine, probabilities, student
from label_world import number as number_in

from plr_dspy import F1, BalancedAccuracy, PLFewShot, PLReorder
from plr_dspy.baselines import TopKOrder

PHRASES = [
    dspy.Example(text=f"phrase {i}", label="rare" if i % 10 < 3 else "usual").with_inputs("text")
    for i in range(140)
]
"""Three of ten phrases have the label "rare"."""


def named(value):
    """Return a test parameter's name that is the same in all processes."""
    return getattr(value, "__name__", repr(value))


def options(**changed):
    return {"max_metric_calls": 300, "num_threads": 1, "display_progress": False, **changed}


class Mumbling(OrderSensitiveEngine):
    """An engine whose replies to usual phrases can be parsed only if the prompt shows demos.

    With demos, four of five replies are correct. Without demos, all parsable replies are correct.
    """

    def __init__(self):
        super().__init__({})

    def answer(self, system, texts):
        number = int(texts[-1].split("phrase ")[1].split()[0])
        is_rare = number % 10 < 3
        if len(texts) == 1 and not is_rare:
            return "I would rather not say."
        right = len(texts) == 1 or number % 5 != 4
        label = "rare" if is_rare == right else "usual"
        return self.formatted(system, texts, label)


class TestUnparsableReplies:
    @pytest.mark.parametrize("metric", [F1("rare"), BalancedAccuracy(), exact], ids=named)
    def test_a_program_with_many_unparsable_replies_is_replaced(self, metric):
        program = dspy.Predict("text -> label: Literal['rare', 'usual']")
        optimizer = PLFewShot(metric, signal="score", candidates="labeled", **options(max_metric_calls=100))
        with using(Mumbling()):
            compiled = optimizer.compile(program, trainset=PHRASES)
        report = optimizer.report
        assert compiled.demos
        assert report.original.num_unread >= 0.5 * report.original.num_calls
        assert report.returned.num_unread == 0
        first = str(report).splitlines()[0]
        num_unread = report.original.num_unread
        assert (
            f"{num_unread} of {report.original.num_calls} replies of your program could not be parsed"
            in first
        )

    def test_the_report_warns_if_such_a_program_is_kept(self):
        """The program is kept, because demos make it even worse."""

        class Silent(Mumbling):
            def answer(self, system, texts):
                if len(texts) > 1:
                    return self.formatted(system, texts, "rare" if "3" in texts[-1] else "usual")
                return super().answer(system, texts)

        def metric(example, prediction, trace=None):
            return float(example.label == prediction.label == "rare")

        program = dspy.Predict("text -> label: Literal['rare', 'usual']")
        optimizer = PLFewShot(metric, signal="score", candidates="labeled", **options())
        with using(Silent()):
            compiled = optimizer.compile(program, trainset=PHRASES)
        assert not compiled.demos
        assert "replies of your program could not be parsed" in str(optimizer.report).splitlines()[0]
        assert "your program is kept" in str(optimizer.report)


@functools.cache
def accuracy_of_all_orders():
    """Return the accuracy on `EXAMPLES`, averaged over all orders of `DEMOS`."""
    rights = []
    for order in permutations(range(len(DEMOS))):
        demos = [DEMOS[item].text for item in order]
        for text in [example.text for example in EXAMPLES]:
            share = probabilities(demos, text)[1]
            is_positive = int(text.split()[-1]) % 2 == 1
            rights.append((share > 0.5) == is_positive)
    return float(np.mean(rights))


class TestRandomDemos:
    @pytest.mark.parametrize(
        ("metric", "signal", "num_calls"),
        [(exact, "score", 150), (exact, "auto", 150), (BalancedAccuracy(), "score", 400)],
        ids=named,
    )
    def test_have_an_accurate_expected_score(self, metric, signal, num_calls):
        """With 400 calls, the search calls the best orders far more often than random ones.

        Half of the examples are positive, so the balanced accuracy is the accuracy.
        """
        truth = accuracy_of_all_orders()
        errors = []
        for seed in range(4):
            optimizer = PLReorder(metric, signal=signal, seed=seed, **options(max_metric_calls=num_calls))
            with using(Engine()):
                optimizer.compile(student(), trainset=EXAMPLES)
            random = optimizer.report.random
            assert random.name == "a random order of 5 demos"
            errors.append(random.score - truth)
            assert random.interval is None
        assert np.mean(errors) == pytest.approx(0.0, abs=0.08)
        assert np.abs(errors).max() < 0.15

    def test_are_scored_in_a_random_search(self):
        optimizer = TopKOrder(exact, **options(max_metric_calls=400))
        with using(Engine()):
            optimizer.compile(student(), trainset=EXAMPLES)
        assert optimizer.report.random.score == pytest.approx(accuracy_of_all_orders(), abs=0.1)

    def test_are_as_many_as_allowed(self):
        optimizer = PLFewShot(exact, candidates="labeled", max_demos=3, **options(max_metric_calls=120))
        with using(Engine()):
            optimizer.compile(student(demos=[]), trainset=EXAMPLES)
        assert optimizer.report.random.name == "3 random demos"
        assert optimizer.report.random.tokens > 0

    def test_are_left_out_if_calls_failed(self):
        """Failed calls lower the scores of random orders, but not the original's score."""
        for num_failures, is_shown in ((1, True), (12, False)):
            engine = Engine()
            engine.at = dict.fromkeys(range(2, 2 + 2 * num_failures, 2), failure)
            optimizer = PLReorder(exact, **options(max_metric_calls=120, max_errors=100))
            with using(engine):
                optimizer.compile(student(), trainset=EXAMPLES)
            assert (optimizer.report.random is not None) == is_shown

    def test_need_no_extra_call(self):
        engine = Engine()
        optimizer = PLReorder(exact, **options(max_metric_calls=120))
        with using(engine):
            optimizer.compile(student(), trainset=EXAMPLES)
        assert len(engine.prompts) == optimizer.report.program_calls["total"] <= 120


class Chancy(OrderSensitiveEngine):
    """An engine whose probability of a correct answer depends only on the label."""

    def __init__(self, chances, seed=0):
        super().__init__({})
        self.chances = chances
        self.seed = seed

    def answer(self, system, texts):
        right = label_in(texts[-1])
        wrong = next(label for label in self.chances if label != right)
        is_right = digest(f"{self.seed} {texts}") < self.chances[right]
        return self.formatted(system, texts, right if is_right else wrong)


def label_in(text):
    return "usual" if int(re.findall(r"item (\d+)", text)[-1]) % 3 else "rare"


def items(number):
    """Return examples. One in three has the label "rare"."""
    texts = [f"item {i}" for i in range(number)]
    return [dspy.Example(text=text, label=label_in(text)).with_inputs("text") for text in texts]


def random_of(engine, metric=exact, trainset=None, **changed):
    """Return the report's row on random demos, and the report."""
    optimizer = PLFewShot(
        metric, **options(candidates="labeled", max_demos=3, signal="score", max_metric_calls=30, **changed)
    )
    with using(engine):
        optimizer.compile(
            dspy.Predict("text -> label: Literal['rare', 'usual']"), trainset=trainset or items(40)
        )
    return optimizer.report.random, optimizer.report


class TestFewCalls:
    """Random demos with known true scores, after a few calls for each of a few prompts."""

    @pytest.mark.parametrize("metric", [exact, BalancedAccuracy()], ids=named)
    def test_the_score_is_close_to_the_true_score(self, metric):
        errors = []
        for number, seed in product([10, 40], range(9)):
            rare, usual = [(0.02, 0.02), (0.98, 0.98), (0.9, 0.4)][seed % 3]
            row, _ = random_of(
                Chancy({"rare": rare, "usual": usual}, seed), metric, items(number), seed=seed
            )
            share = 0.5 if isinstance(metric, BalancedAccuracy) else 1 / 3
            errors.append(row.score - (share * rare + (1 - share) * usual))
        assert np.mean(errors) == pytest.approx(0.0, abs=0.05)
        assert np.abs(errors).max() < 0.3

    @pytest.mark.parametrize("metric", [exact, BalancedAccuracy()], ids=named)
    def test_the_number_of_scored_examples_is_stated(self, metric):
        for chance in (0.0, 1.0):
            engine = Chancy({"rare": chance, "usual": chance})
            row, report = random_of(engine, metric)
            assert row.score == pytest.approx(chance, abs=1e-6)
            scored = {texts[-1] for texts in engine.requests}
            assert row.num_examples <= len(scored) < report.settings["num_train"]

    def test_there_is_no_row_if_a_label_was_not_scored(self):
        """The calls are too few for all 42 labels."""
        others = [dspy.Example(text=f"item {i}", label=str(i)).with_inputs("text") for i in range(10, 50)]
        trainset = [*items(10), *others]
        engine = Chancy({"rare": 1.0, "usual": 0.9})
        row, report = random_of(engine, BalancedAccuracy(), trainset)
        assert row is None
        assert "random demos" not in str(report)
        plain, _ = random_of(engine, exact, trainset)
        assert plain.name == "3 random demos"


class TestConstantAnswer:
    @pytest.mark.parametrize(
        ("metric", "name", "score", "kind"),
        [
            (exact, "always answering 'usual'", 0.7, "str"),
            (exact, "always answering 'usual'", 0.7, "Literal['rare', 'usual']"),
            (F1("rare"), "always answering 'rare'", 2 * 0.3 / 1.3, "str"),
            (BalancedAccuracy(), "always answering", 0.5, "Literal['rare', 'usual']"),
        ],
        ids=named,
    )
    def test_is_the_most_frequent_or_the_best(self, metric, name, score, kind):
        signature = f"text -> label: {kind}"
        optimizer = PLFewShot(metric, signal="score", candidates="labeled", **options(max_metric_calls=60))
        with using(Mumbling()):
            optimizer.compile(dspy.Predict(signature), trainset=PHRASES)
        constant = optimizer.report.constant
        assert constant.name.startswith(name)
        assert constant.score == pytest.approx(score, abs=0.03)
        assert f"  {constant.name}  " in str(optimizer.report)

    def test_may_be_none(self):
        trainset = [
            dspy.Example(phrase, label=None if phrase.label == "usual" else "rare") for phrase in PHRASES
        ]
        optimizer = PLFewShot(exact, candidates="labeled", **options(max_metric_calls=60))
        with using(Mumbling()):
            program = dspy.Predict("text -> label: Optional[Literal['rare', 'usual']]")
            optimizer.compile(program, trainset=trainset)
        assert optimizer.report.constant.name == "always answering 'None'"
        assert optimizer.report.constant.score == pytest.approx(0.7, abs=0.03)

    def test_is_named_if_the_program_is_no_better(self):
        class Stubborn(OrderSensitiveEngine):
            def answer(self, system, texts):
                return self.formatted(system, texts, "usual" if len(texts) > 3 else "rare")

        optimizer = PLFewShot(exact, signal="score", candidates="labeled", **options())
        with using(Stubborn({})):
            optimizer.compile(dspy.Predict("text -> label"), trainset=PHRASES)
        text = str(optimizer.report)
        assert re.search(
            "the returned program is not expected to do better than .*always answering 'usual'", text
        )

    def test_is_omitted_if_a_model_judges(self):
        judge = dspy.Predict("text, label -> score: float")

        def judged(example, prediction, trace=None):
            with dspy.context(lm=lm_of(judging, "fake/judge")):
                return judge(text=example.text, label=prediction.label).score

        judging = OrderSensitiveEngine({})
        judging.answer = lambda system, texts: judging.formatted(system, texts, "1.0")
        optimizer = PLFewShot(judged, signal="score", candidates="labeled", **options(max_metric_calls=60))
        with using(Mumbling()):
            optimizer.compile(dspy.Predict("text -> label"), trainset=PHRASES)
        assert optimizer.report.constant is None
        assert judging.num_calls <= 60


COLORS = {"red": ["apple", "cherry", "rose", "brick"], "blue": ["sea", "sky", "whale", "jeans"]}


def things(number, *, seed=0, alike=True):
    """Return examples with two labels. If `alike` is true, examples with the same label share words."""
    rng = random.Random(seed)
    examples = []
    for i in range(number):
        label = ("red", "blue")[i % 2]
        words = COLORS[label] if alike else COLORS["red"] + COLORS["blue"]
        text = f"{rng.choice(words)} {i}, draw {seed}"
        examples.append(dspy.Example(text=text, label=label).with_inputs("text"))
    return examples


class Guessing(OrderSensitiveEngine):
    """An engine that guesses one of two labels, regardless of the demos."""

    def __init__(self):
        super().__init__({})

    def answer(self, system, texts):
        guess = "red" if digest(repr(texts)) < 0.5 else "blue"
        return self.formatted(system, texts, guess)


def colored(examples, metric=exact, **changed):
    limits = {"max_metric_calls": 150, "candidates": "labeled", "max_demos": 4}
    optimizer = PLFewShot(metric, **options(**{**limits, **changed}))
    with using(Guessing()):
        optimizer.compile(dspy.Predict("text -> label: Literal['red', 'blue']"), trainset=examples)
    return optimizer.report


class TestVote:
    @pytest.mark.parametrize("metric", [exact, F1("red")], ids=named)
    def test_similar_demos_are_advised_if_the_vote_is_clearly_better(self, metric):
        examples = things(100)
        report = colored(examples, metric)
        gain = report.vote_gain
        assert gain.interval[0] > 0
        assert gain.interval[0] < gain.gain < gain.interval[1]
        assert gain.num_examples <= report.returned.num_calls
        text = str(report)
        assert "a vote of the 4 nearest examples, without a model, does better than" in text
        assert "expected to do better than a vote" not in text
        (call,) = re.findall(r"try (PLFewShot\(.*\)), which", text)
        advised = eval(call, {"PLFewShot": PLFewShot, "metric": metric})
        engine = Guessing()
        with using(engine):
            program = advised.compile(dspy.Predict("text -> label"), trainset=examples)
            assert engine.num_calls == 0
            program(text="apple")
        ((shown, *_),) = engine.requests
        assert "apple" in dict(FIELD.findall(shown))["text"]

    @pytest.mark.parametrize("number", [10, 40])
    def test_without_an_effect_similar_demos_are_not_advised(self, number):
        """Neither the model nor a vote can know the labels."""
        reports = [
            colored(things(number, seed=seed, alike=False), max_metric_calls=40, seed=seed)
            for seed in range(6)
        ]
        assert all(report.vote.num_examples > 0 for report in reports)
        assert not any("most similar examples" in str(report) for report in reports)

    def test_similar_demos_are_not_advised_if_the_search_has_tried_them(self):
        report = colored(things(100, seed=1), demos="auto", seed=1)
        assert report.vote_gain.interval[0] > 0
        assert "most similar examples" not in str(report)
        assert "is not expected to do better than" in str(report)

    def test_the_gain_over_a_calibrated_program_is_over_its_calibrated_answers(self):
        """The program is always correct after calibration, but only on half of the examples before."""

        def leaning(demos, text):
            return (0.6, 0.4) if number_in(text) % 2 else (0.9, 0.1)

        examples = [
            dspy.Example(text=f"text {i}", label=LABELS[i % 2]).with_inputs("text") for i in range(100)
        ]
        optimizer = PLFewShot(exact, calibrate=True, **options(max_metric_calls=100))
        with using(Engine(probabilities=leaning), "fake/x"):
            optimizer.compile(student(demos=[]), trainset=examples)
        report = optimizer.report
        assert report.is_calibrated
        assert report.comparison.expected_chosen[0] > 0.9
        assert report.vote_gain.gain == pytest.approx(report.vote.score - 1.0, abs=0.15)
