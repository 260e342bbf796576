"""`BatchCalibration`: calibrations, choices based on labels, calls, and errors for invalid arguments."""

import itertools
import math
from enum import Enum
from typing import Literal, Optional

import dspy
import numpy as np
import pytest
from fakes import Program, digest
from label_engines import KIND, LABELS, Classifier, ask, exact, gold, leaning, normal, softmax
from label_engines import classifier as student
from label_world import number

from plr_dspy import F1, BatchCalibration, CalibratedProgram, PlainTextAdapter
from plr_dspy.labels.reader import NoProbabilities

ADAPTERS = [dspy.ChatAdapter, dspy.JSONAdapter, PlainTextAdapter]


def with_input(**fields):
    return dspy.Example(**fields).with_inputs("text")


def examples(count, labels=LABELS, *, first=0):
    texts = [f"text {i}" for i in range(first, first + count)]
    return [with_input(text=text, label=gold(labels, text)) for text in texts]


def labeled(count, label_of):
    return [with_input(text=f"text {i}", label=label_of(i)) for i in range(count)]


def inputs(count):
    return [with_input(text=f"text {i}") for i in range(count)]


def fixed(negative):
    """Return a model with the same label probabilities for every text."""
    probabilities = {"negative": negative, "positive": 1 - negative}
    return Classifier(lambda text: probabilities)


def calibrate(engine, program=None, *, trainset=None, adapter=None, lm=None, **options):
    trainset = inputs(30) if trainset is None else trainset
    optimizer = BatchCalibration(**options)
    with dspy.context(lm=lm or engine.lm(), adapter=adapter or dspy.ChatAdapter()):
        return optimizer.compile(program or student(), trainset=trainset)


def centred(values):
    values = np.asarray(values)
    return values - values.mean()


def table_of(probabilities, texts):
    """Return a table of the label probabilities, with a row for each text."""
    rows = map(probabilities, texts)
    return np.array([[row["negative"], row["positive"]] for row in rows])


def offsets_of(probabilities, texts):
    means = table_of(probabilities, texts).mean(axis=0)
    return centred(-np.log(means))


class TestOffsets:
    @pytest.mark.parametrize("adapter", ADAPTERS)
    @pytest.mark.parametrize("unreadable", [False, True])
    def test_offsets_and_calibrated_probabilities(self, adapter, unreadable):
        """Each input takes one call, although ChatAdapter would retry unparsable replies."""
        engine = Classifier(leaning(LABELS, 2.0), unreadable=lambda text: unreadable)
        program = calibrate(engine, adapter=adapter())
        calibration = program.calibration
        true = offsets_of(engine.probabilities, set(engine.inputs)).tolist()
        assert calibration.offsets == pytest.approx(true, abs=1e-3)
        assert calibration.labels == tuple(LABELS)
        assert len(engine.inputs) == len(set(engine.inputs)) == 30
        raw = engine.probabilities("a text of its own")
        offsets = dict(zip(LABELS, calibration.offsets, strict=True))
        scores = {label: math.log(raw[label]) + offsets[label] for label in LABELS}
        prediction = ask(engine, program, adapter())
        assert engine.asked == [20] * 31
        assert prediction.probabilities == pytest.approx(softmax(scores), abs=1e-3)
        assert prediction.label == max(scores, key=scores.get)

    def test_demos_are_excluded_and_a_prior_adds_its_logarithm_to_the_offsets(self):
        engine = Classifier(leaning(LABELS, 0.0))
        even = calibrate(engine)
        uneven = calibrate(engine, prior={"negative": 0.2, "positive": 0.8})
        moved = np.subtract(uneven.calibration.offsets, even.calibration.offsets)
        assert moved == pytest.approx(centred(np.log([0.2, 0.8])))
        program = student()
        trainset = examples(12)
        program.demos = trainset[:4]
        engine = Classifier(leaning(LABELS, 1.0))
        calibrate(engine, program, trainset=trainset)
        assert sorted(engine.inputs) == sorted(example.text for example in trainset[4:])

    def test_num_inputs_and_seed_determine_the_inputs(self):
        def chosen(**options):
            engine = Classifier(leaning(LABELS, 1.0))
            calibrate(engine, num_inputs=12, **options)
            return sorted(engine.inputs)

        assert len(chosen()) == 12
        assert chosen(seed=3) == chosen(seed=3) != chosen()

    @pytest.mark.parametrize("seed", range(4))
    def test_each_label_has_its_share_of_the_inputs(self, seed):
        trainset = examples(100)[:60]
        engine = Classifier(leaning(LABELS, 1.0))
        calibrate(engine, trainset=trainset, num_inputs=30, seed=seed)
        labels = [example.label for example in trainset]
        drawn = [example.label for example in trainset if example.text in engine.inputs]
        for label in LABELS:
            assert abs(drawn.count(label) - labels.count(label) / 2) < 1

    def test_labels_are_ignored_with_a_prior(self):
        engine = Classifier(leaning(LABELS, 1.0))
        right = examples(20)
        other_label = dict(zip(LABELS, LABELS[::-1], strict=True))
        wrong = [with_input(text=e.text, label=other_label[e.label]) for e in right]
        nonsense = [with_input(text=e.text, label=["no label"]) for e in right]

        def calibration_of(trainset):
            return calibrate(engine, trainset=trainset, prior=dict.fromkeys(LABELS, 0.5)).calibration

        first, *others = map(calibration_of, (right, wrong, nonsense, inputs(20)))
        for other in others:
            assert other.shares == first.shares
            # Offsets are not exactly equal, because their terms are summed in a different order.
            assert other.offsets == pytest.approx(first.offsets)


def world(seed, rare, lean):
    """Return a trainset, and functions that return a text's label probabilities and its true label.

    A share `rare` of the texts is negative. The probabilities are biased towards "positive" by `lean`.
    """

    def right(text):
        return LABELS[digest(f"label {seed} {text}") >= rare]

    def probabilities(text):
        signal = 1.8 if right(text) == "positive" else -1.8
        z = signal + 1.2 * normal(f"{seed} {text}") + lean
        return {"negative": 1 / (1 + math.exp(z)), "positive": 1 / (1 + math.exp(-z))}

    trainset = labeled(150, lambda i: right(f"text {i}"))
    return trainset, probabilities, right


def held_out(program, probabilities, right):
    """Return the accuracy of the student and of the program on held-out texts."""
    texts = [f"text {i}" for i in range(1_000, 1_600)]
    logs = np.log(table_of(probabilities, texts))
    gold = np.array([LABELS.index(right(text)) for text in texts])

    def accuracy(offsets):
        return float(((logs + offsets).argmax(axis=1) == gold).mean())

    before = accuracy((0.0, 0.0))
    if program.calibration is None:
        return before, before
    return before, accuracy(program.calibration.offsets)


def tenth_becomes(other):
    return lambda i, label: label if i % 10 else other


def first_alone(i, label):
    return label if i == 0 else None


class TestChoiceByLabels:
    def test_reported_scores_match_held_out_accuracy(self):
        """Across 30 balanced and imbalanced worlds, reported scores match the scores on held-out texts."""
        gains = {}
        missed = []
        for seed, rare, lean in itertools.product(range(5), (0.5, 0.2, 0.05), (0.0, 2.0)):
            trainset, probabilities, right = world(seed, rare, lean)
            optimizer = BatchCalibration(num_threads=1, display_progress=False)
            with dspy.context(lm=Classifier(probabilities).lm()):
                program = optimizer.compile(student(), trainset=trainset)
            before, after = held_out(program, probabilities, right)
            gains.setdefault((rare, lean), []).append(after - before)
            scores = optimizer.report.scores
            ways = [name for name in scores if not name.startswith("always")]
            promised = max(scores[name] for name in ways)
            missed += [after - promised, before - scores["as it is"]]
        # Calibration helps a model that is biased towards one label, and does no harm to others.
        assert np.mean(gains[0.5, 2.0]) > 0.05
        assert min(map(np.mean, gains.values())) > -0.02
        error = np.sqrt(0.15 * (1 / 64 + 1 / 600))
        assert abs(np.mean(missed)) < 0.02
        assert np.mean(np.abs(missed) < 2 * error) >= 0.9

    @pytest.mark.parametrize(
        "answer",
        [
            lambda prediction: prediction,
            lambda prediction: prediction.label,
            lambda prediction: dspy.Prediction(mood=prediction.label),
        ],
    )
    def test_scores_are_cross_validated(self, answer):
        """The reply to an input must not affect the calibration that is applied to this input."""
        program = Program(lambda self, text: answer(self.step(text=text)), step=student())
        trainset = labeled(20, lambda i: LABELS[i > 2])

        def probabilities(text):
            negative = 0.3 if number(text) <= 2 else 0.05
            return {"negative": negative, "positive": 1 - negative}

        optimizer = BatchCalibration(display_progress=False)
        with dspy.context(lm=Classifier(probabilities).lm()):
            optimizer.compile(program, trainset=trainset)
        assert optimizer.report.scores["as it is"] == 0.85
        assert optimizer.report.scores["calibrated to 'negative' 0.18, 'positive' 0.82"] == 1.0

    @pytest.mark.parametrize("fallback", [True, False])
    def test_unparsable_replies_count_in_the_students_score(self, fallback):
        """A third of the replies are unparsable. With `fallback`, ChatAdapter repeats these calls."""
        trainset, probabilities, _ = world(1, 0.5, 0.0)
        engine = Classifier(probabilities, unreadable=lambda text: number(text) % 3 == 0)
        optimizer = BatchCalibration(num_inputs=150, num_threads=1, display_progress=False)
        adapter = dspy.ChatAdapter(use_json_adapter_fallback=fallback)
        options = {"num_threads": 1, "max_errors": 1_000}
        evaluate = dspy.Evaluate(devset=trainset, metric=exact, **options)
        with dspy.context(lm=engine.lm(), adapter=adapter):
            optimizer.compile(student(), trainset=trainset)
            scored = evaluate(student()).score / 100
        assert optimizer.report.scores["as it is"] == pytest.approx(scored, abs=1e-3)
        assert optimizer.report.scores[optimizer.report.chosen] > scored

    def test_replies_without_label_probabilities_count_as_incorrect(self):
        def silent(text):
            return number(text) % 2 == 0

        def probabilities(text):
            return {"negative": 0.0 if silent(text) else 0.9, "positive": 0.0}

        engine = Classifier(probabilities, unreadable=silent)
        trainset = labeled(40, lambda i: LABELS[i % 4 > 1])
        optimizer = BatchCalibration(display_progress=False)
        with dspy.context(lm=engine.lm(), adapter=dspy.ChatAdapter()):
            optimizer.compile(student(), trainset=trainset)
        assert LABELS[0] == "negative"
        assert optimizer.report.scores["as it is"] == 0.25

    def test_answers_without_label_probabilities_keep_their_scores(self):
        """A rule of the program replaces half of the answers, so no label probabilities belong to these answers."""

        def forward(self, text):
            prediction = self.step(text=text)
            return dspy.Prediction(label="negative") if number(text) % 2 else prediction

        trainset = labeled(40, lambda i: LABELS[i % 2 == 0])
        optimizer = BatchCalibration(display_progress=False)
        with dspy.context(lm=Classifier(lambda text: {"negative": 0.1, "positive": 0.9}).lm()):
            optimizer.compile(Program(forward, step=student()), trainset=trainset)
        assert LABELS == ["negative", "positive"]
        assert optimizer.report.num_inputs == 20
        assert optimizer.report.scores["as it is"] == 1.0

    @pytest.mark.parametrize("convert", [lambda label: label.value, lambda label: label.name])
    def test_a_program_that_converts_every_label_is_scored_by_its_replies(self, convert):
        """The converted labels must not make the uncalibrated program look worthless."""
        program = Program(
            lambda self, text: dspy.Prediction(label=convert(self.step(text=text).label)),
            step=student(Mood),
        )
        probabilities = leaning(["fine", "awful"], 2.0)
        trainset = labeled(200, lambda i: gold(["fine", "awful"], f"text {i}"))
        right = 0
        for example in trainset:
            shares = probabilities(example.text)
            right += max(shares, key=shares.get) == example.label
        calibrated = calibrate(Classifier(probabilities), program, trainset=trainset, num_inputs=200)
        report = calibrated.calibration_report
        assert report["num_inputs"] == 200
        assert report["scores"]["as it is"] == pytest.approx(right / 200)

    def test_answers_that_are_not_labels_count_as_incorrect(self):
        def forward(self, text):
            prediction = self.step(text=text)
            return dspy.Prediction(label="unsure") if number(text) % 2 else prediction

        trainset = labeled(40, lambda i: "positive" if i % 4 else "negative")
        optimizer = BatchCalibration(display_progress=False)
        with dspy.context(lm=Classifier(lambda text: {"negative": 0.1, "positive": 0.9}).lm()):
            optimizer.compile(Program(forward, step=student()), trainset=trainset)
        assert optimizer.report.num_inputs == 20
        assert optimizer.report.scores["as it is"] == 0.25
        assert optimizer.report.scores[optimizer.report.chosen] <= 0.5

    def test_failed_calls_do_not_affect_scores(self):
        """Failed calls must not make the program look worse than a constant answer."""

        def flaky(text):
            return 1 / (number(text) % 5) and {"negative": 0.1, "positive": 0.9}

        program = Program(lambda self, text: self.step(text=text), step=student())
        trainset = labeled(40, lambda i: LABELS[i % 4 > 0])
        optimizer = BatchCalibration(max_errors=20, num_threads=1, display_progress=False)
        with dspy.context(lm=Classifier(flaky).lm()):
            optimizer.compile(program, trainset=trainset)
        assert optimizer.report.num_failed == 8
        scores = optimizer.report.scores
        assert scores["as it is"] == scores["always 'positive'"] == 24 / 32

    def test_in_a_tie_the_program_stays_uncalibrated(self):
        """The model is always right, so calibration cannot improve its score."""
        trainset, _, right = world(2, 0.2, 0.0)
        engine = Classifier(lambda text: dict.fromkeys(LABELS, 0.01) | {right(text): 0.99})
        program = calibrate(engine, trainset=trainset)
        assert program.calibration is None
        prediction = ask(engine, program, text="text 5")
        assert prediction.probabilities[right("text 5")] == pytest.approx(0.99, abs=0.001)

    @pytest.mark.parametrize(
        ("spoilt", "warning"),
        [
            (tenth_becomes(None), "of 150 examples have none of the labels"),
            (
                tenth_becomes("unsure"),
                "but 'unsure' (15 examples); these examples are ignored: replace these values",
            ),
            (first_alone, "all labels are assumed to be equally frequent"),
            (lambda i, label: label.title(), "all labels are assumed to be equally frequent"),
        ],
    )
    def test_warns_about_unusable_labels(self, spoilt, warning, caplog):
        trainset, probabilities, right = world(0, 0.15, 0.0)
        trainset = labeled(150, lambda i: spoilt(i, trainset[i].label))
        program = calibrate(Classifier(probabilities), trainset=trainset)
        assert warning in caplog.text
        before, after = held_out(program, probabilities, right)
        assert after > before - 0.02 or "all labels are assumed" in warning

    def test_warns_if_a_constant_answer_scores_as_high(self, caplog):
        calibrate(fixed(0.9), trainset=examples(30))
        assert "no more than a constant answer (always 'negative': " in caplog.text


class TestRequests:
    def test_replies_without_label_probabilities(self, caplog):
        def probabilities(text):
            if text in ("text 3", "text 7"):
                return {"neither": 1.0}
            return leaning(LABELS, 1.0)(text)

        adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
        calibrate(Classifier(probabilities), adapter=adapter)
        assert "30 program calls (0 failed, 28 with label probabilities)" in caplog.text
        with pytest.raises(NoProbabilities, match="got 0 from 6 calls"):
            calibrate(Classifier(lambda text: {"neither": 1.0}), adapter=adapter)


class Mood(Enum):
    GOOD = "fine"
    BAD = "awful"


class TestLabelSets:
    @pytest.mark.parametrize("adapter", ADAPTERS)
    @pytest.mark.parametrize(
        ("kind", "texts", "values"),
        [
            (Literal["yes", "no"], ["yes", "no"], ["yes", "no"]),
            (Optional[KIND], LABELS, LABELS),  # noqa: UP045
            (bool, ["True", "False"], [True, False]),
            (Mood, ["fine", "awful"], [Mood.GOOD, Mood.BAD]),
        ],
    )
    def test_probabilities_are_keyed_by_label_value(self, kind, texts, values, adapter):
        engine = Classifier(leaning(texts, 1.0))
        program = calibrate(engine, student(kind), adapter=adapter())
        prediction = ask(engine, program, adapter())
        assert list(prediction.probabilities) == values
        probabilities = prediction.probabilities
        assert prediction.label is max(probabilities, key=probabilities.get)
        assert sum(probabilities.values()) == pytest.approx(1)

    @pytest.mark.parametrize("kind", [Optional[KIND], Literal["negative", "positive", None]])  # noqa: UP045
    def test_none_remains_the_answer_if_the_type_allows_none(self, kind):
        nothing = {"None": 0.8, "positive": 0.15, "negative": 0.05}
        others = leaning(LABELS, 1.0)
        engine = Classifier(lambda text: nothing if text == "nothing" else others(text))
        program = calibrate(engine, student(kind), adapter=PlainTextAdapter())
        assert list(program.calibration.labels) == LABELS
        prediction = ask(engine, program, PlainTextAdapter(), text="nothing")
        assert prediction.label is None
        assert prediction.probabilities is None


TWO = Program(first=student(), second=student())


def prior(negative, positive):
    return {"prior": {"negative": negative, "positive": positive}}


def predicting(outputs):
    return {"program": dspy.Predict(f"text -> {outputs}")}


EVEN = prior(0.5, 0.5)
BAD_ARGUMENTS = [
    (prior(0.5, 0.6), "prior must have shares that sum to 1.*sum 1.1: divide"),
    ({"prior": {"negative": 1.0}}, "prior must have a share above 0 for each of the labels"),
    (prior(0.0, 1.0), "share above 0"),
    (prior(math.nan, 1.0), "prior must be a finite number"),
    ({"prior": [0.5, 0.5]}, "prior must be a valid dict"),
    (
        {"metric": F1("Positive"), "trainset": examples(30)},
        "at least one example must have the label 'Positive'",
    ),
    ({"metric": F1("positive"), **EVEN}, "metric requires prior=None"),
    (
        {"metric": exact},
        r"metric over a set .* got <function exact .*: pass a metric such as F1\(\) or .* omit metric",
    ),
    ({"metric": F1}, r"got <class .*F1'>: pass an instance of this class, as in metric=F1\(...\)"),
    ({"metric": "f1"}, "got 'f1': pass the metric itself, not its name"),
    ({"metric": F1("positive")}, "metric needs at least 2 examples with a label"),
    ({"num_inputs": 1}, "num_inputs must be .* equal to 2"),
    ({"predictor": "other"}, r"predictor must be one of \['self'\]; got 'other'"),
    ({"trainset": []}, "trainset must contain at least 2 distinct inputs"),
    ({"trainset": examples(1) * 20}, "2 distinct inputs.*got 1 in 20 examples"),
    (predicting("label"), "no output is a Literal, an enum or a bool"),
    (predicting("a: bool, b: bool"), "there are 2 outputs of type Literal"),
    (predicting("a: Literal['x', '']"), "has an empty label, or fewer than two labels"),
    (predicting("a: Literal['x']"), "has an empty label, or fewer than two labels"),
    (predicting("a: bool, probabilities"), "'probabil.*rename"),
    ({"program": TWO}, r"2 outputs.*one of the names \['first', 'second'\] as predictor"),
]


class TestBadInput:
    @pytest.mark.parametrize(("options", "match"), BAD_ARGUMENTS)
    def test_arguments(self, options, match):
        engine = Classifier(leaning(LABELS, 1.0))
        with pytest.raises(ValueError, match=match):
            calibrate(engine, **options)
        assert not engine.asked

    def test_examples_may_contain_values_of_enum_members(self):
        engine = Classifier(leaning(["fine", "awful"], 1.0))
        trainset = labeled(12, lambda i: "awful" if i % 2 else Mood.GOOD)
        report = calibrate(engine, student(Mood), trainset=trainset).calibration_report
        assert report["num_inputs"] == 12
        assert report["chosen"]


def test_a_calibrated_student_gets_a_new_calibration():
    engine = Classifier(leaning(LABELS, 2.0))
    steps = {"first": student(), "second": student()}
    program = Program(lambda self, text: self.second(text=text), **steps)
    once = calibrate(engine, program, predictor="second")
    twice = calibrate(engine, once)
    assert isinstance(twice, CalibratedProgram)
    assert twice.calibration == once.calibration
    assert not isinstance(twice.program, CalibratedProgram)
    assert engine.asked == [20] * 60
    with pytest.raises(ValueError, match=r"predictor must be 'second'.*got 'first': pass student\.program"):
        calibrate(engine, once, predictor="first")
