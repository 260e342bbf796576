"""Orders chosen by the scores of calibrated answers, and calibration in reports."""

import json

import dspy
import numpy as np
import pytest
from fakes import digest, using
from label_engines import around, normal
from label_world import (
    DEMOS,
    EXAMPLES,
    FRESH,
    LABELS,
    Engine,
    Hesitant,
    go,
    labeled,
    number,
    student,
    twice,
    two,
)

from plr_dspy import BatchCalibration, CalibratedProgram, Report
from plr_dspy.labels.reader import NoProbabilities


def sharpness(demos):
    """Return how well the model distinguishes the labels after `demos`, shown in this order."""
    first, second = [*(number(demo) % 2 for demo in demos[:2]), 0, 0][:2]
    return 0.3 + 1.4 * (3 * first + 2 * second) / 5


def leaning_and_sharp(demos, text):
    """Return label probabilities whose bias towards "positive" hides the differences between orders."""
    z = (1 if number(text) % 2 else -1) * sharpness(demos) + 6.0 + 0.5 * normal(f"{demos}")
    return two(z + 0.7 * normal(text) + 0.2 * normal(f"{demos}{text}"))


def engine_of(probabilities=leaning_and_sharp, **options):
    return Engine(probabilities=probabilities, **options)


class Mumbling(Engine):
    """An engine that replies to every third text with a word that is not a label."""

    def tops(self, texts, wanted):
        before, p, after = super().tops(texts, wanted)
        if number(self.shown(texts)[1]) % 3 == 0:
            p = {"perhaps": 0.9, **{label: 0.1 * share for label, share in p.items()}}
        return [before, p, after]


def right(probabilities=leaning_and_sharp, mumbling=False, labels=lambda text: number(text) % 2):
    """Return a function that measures a program's accuracy on fresh texts."""

    def accuracy(program):
        inner = getattr(program, "program", program)
        offsets = (0.0, 0.0)
        if isinstance(program, CalibratedProgram):
            offsets = program.calibration.offsets
        shown = [demo["text"] for demo in inner.demos]

        def is_right(text):
            if mumbling and number(text) % 3 == 0:
                return False
            scores = np.log(probabilities(shown, text)) + offsets
            return np.argmax(scores) == labels(text)

        return np.mean(list(map(is_right, FRESH)))

    return accuracy


def calibrated_original(engine=None):
    with using(engine or engine_of()):
        return BatchCalibration(display_progress=False).compile(student(), trainset=EXAMPLES)


class TestOrdersUnderCalibration:
    def test_are_better_than_calibration_alone(self):
        """Without calibration, all orders give the same answers."""
        accuracy = right()
        alone = accuracy(calibrated_original())
        ordered = []
        for seed in range(2):
            options = {"calibrate": True, "max_metric_calls": 100, "seed": seed}
            program, _ = go(engine_of(), **options)
            ordered.append(accuracy(program))
        assert accuracy(student()) == pytest.approx(0.5, abs=0.02)
        assert alone > 0.55
        assert np.mean(ordered) > alone + 0.08, (ordered, alone)
        assert min(ordered) > alone - 0.03

    def test_scores_and_offsets_belong_to_calibrated_answers(self):
        engine = engine_of()
        program, report = go(engine, calibrate=True, max_metric_calls=150)
        assert all(engine.asked)
        shown = [demo["text"] for demo in program.program.demos]
        assert shown == [DEMOS[i]["text"] for i in report.slots[0].ordering]
        # Without calibration, all answers are "positive".
        assert report.comparison.chosen > 0.6
        effect = report.calibration
        assert effect.original == pytest.approx(0.5, abs=0.05)
        assert effect.original < effect.original_calibrated < report.comparison.expected_chosen[0]
        assert "the program needs a model that returns label probabilities" in str(report)
        means = np.mean([leaning_and_sharp(shown, text) for text in FRESH], axis=0)
        true = -np.log(means) - np.mean(-np.log(means))
        assert program.calibration.offsets == pytest.approx(true, abs=0.5)

    def test_unparsable_replies_count_by_their_label_probabilities(self):
        """Calibration assigns a label to replies that contain none."""
        engine = Mumbling(probabilities=leaning_and_sharp)
        program, report = go(engine, calibrate=True, max_metric_calls=150)
        value, low, high = report.comparison.expected_original
        true = right(mumbling=True)(student())
        assert value == pytest.approx(true, abs=0.12)
        assert low <= true <= high
        assert report.comparison.expected_chosen[0] > value + 0.1
        with using(engine):
            answers = {program(text=f"text {3 * i}").label for i in range(400, 420)}
            assert answers == set(LABELS)

    def test_replies_that_a_calibrated_program_can_read_are_not_called_unreadable(self):
        """All orders score the same, so the calibrated student is returned."""
        engine = Hesitant(probabilities=lambda demos, text: two(2.0 if number(text) % 2 else -1.0))
        _, report = go(engine, calibrate=True)
        assert report.is_calibrated
        assert report.original.num_unread == report.original.num_calls > 0
        assert report.returned.num_unread == 0
        assert "replies of your program could not be parsed (100%)" in str(report)
        assert "replies of the returned program" not in str(report)

    def test_probabilities_say_which_student_they_compare_with(self):
        program, report = go(engine_of(), calibrate=True, max_metric_calls=150, seed=2)
        comparison = report.comparison
        original, calibrated_original, *_ = report.candidates
        chosen = report.candidates[program.detailed_results["best_idx"]]
        assert chosen.ordering != original.ordering
        for name in ("probability", "probability_worse", "over_calibrated", "worse_than_calibrated"):
            assert getattr(chosen, name) == getattr(comparison, name)
        assert chosen.over_calibrated < chosen.probability
        assert original.over_calibrated is calibrated_original.over_calibrated is None
        better = f"better with probability {comparison.over_calibrated:.2f}"
        assert f"gain over your program, calibrated {better}" in " ".join(str(report).split())

    def test_clearly_uneven_label_shares_are_kept(self):
        def right_and_uneven(demos, text):
            return two((2.5 if number(text) % 10 else -2.5) + 0.7 * normal(text))

        rare = [labeled(f"text {i}", LABELS[i % 10 > 0]) for i in range(120)]

        def calibrated(**options):
            program, report = go(engine_of(right_and_uneven), trainset=rare, **options)
            assert "your program is kept" in str(report)
            assert not isinstance(program, CalibratedProgram)
            return report.calibration.shares

        assert calibrated(calibrate=True) != [0.5, 0.5]
        assert calibrated(calibrate={"negative": 0.5, "positive": 0.5}) == [0.5, 0.5]

    @pytest.mark.parametrize(("num_right", "shares"), [(3, [0.5, 0.5]), (5, [])])
    def test_answers_are_not_calibrated_if_that_is_clearly_better(self, num_right, shares):
        """A weak bias towards "positive" determines the answers to five texts."""
        unsure = [*range(1, 2 * num_right, 2), *range(0, 10 - 2 * num_right, 2)]

        def leaning(demos, text):
            return two(0.1 if number(text) in unsure else 2.6 if number(text) % 2 else -1.4)

        _, report = go(engine_of(leaning), calibrate=True)
        assert list(report.calibration.shares) == shares


def labeled_world(seed):
    """Return examples, a model's label probabilities, and a function that measures a program's accuracy."""
    lean, rare = ((0.0, 0.5), (2.0, 0.5), (0.0, 0.15), (2.0, 0.15))[seed % 4]

    def label(text):
        return int(digest(f"label {seed} {text}") >= rare)

    def probabilities(demos, text):
        sign = 1 if label(text) else -1
        z = sign * (0.4 + sharpness(demos)) + lean + 0.4 * normal(f"{seed} {demos}")
        return two(z + 0.9 * normal(f"{seed} {text}") + 0.2 * normal(f"{seed} {demos} {text}"))

    texts = [f"text {i}" for i in range(100)]
    examples = [labeled(text, LABELS[label(text)]) for text in texts]
    return examples, probabilities, right(probabilities, labels=label)


class TestUnchangedStudent:
    def test_expected_scores_hold_on_other_examples(self):
        held = []
        gains = []
        for seed in range(4):
            trainset, probabilities, accuracy = labeled_world(seed)
            options = {"max_metric_calls": 120, "trainset": trainset, "seed": seed}
            program, report = go(engine_of(probabilities), calibrate=True, **options)
            before = accuracy(student())
            after = accuracy(program)
            comparison = report.comparison
            expected = comparison.expected_original, comparison.expected_chosen
            for (_, low, high), true in zip(expected, (before, after), strict=True):
                held.append(low - 1e-9 <= true <= high + 1e-9)
            held.append(comparison.gain_interval[0] <= after - before + 1e-9)
            gains.append(after - before)
        assert np.mean(held) >= 0.9
        assert min(gains) > -0.05
        assert np.mean(gains) > 0.02

    def test_is_kept_if_nothing_is_better(self):
        before = student()
        engine = engine_of(lambda demos, text: two(3.0 if number(text) % 2 else -3.0))
        program, report = go(engine, calibrate=True)
        assert type(program) is type(before)
        assert "your program is kept" in str(report)
        states = [compiled.dump_state() for compiled in (program, before)]
        for state in states:
            del state["traces"]  # The traces contain the settings of the compile.
        assert states[0] == states[1]


def test_bad_shares_and_unsuitable_programs_raise_errors(tmp_path):
    engine = engine_of()
    for shares in ({"bad": 0.5, "good": 0.5}, {}):
        message = "calibrate must have a share above 0 for each"
        with pytest.raises(ValueError, match=message):
            go(engine, calibrate=shares)
    message = r"all orders of the demos give the same prompt.*BatchCalib"
    with pytest.raises(ValueError, match=message):
        go(engine, program=student(demos=DEMOS[:1]), calibrate=True)
    assert not engine.prompts
    message = "the program calls its classifier several times"
    with pytest.raises(NoProbabilities, match=message):
        go(engine, program=twice(), calibrate=True)

    def twice_for_some(classify, text):
        if "7" in text:
            classify(text=text)
        return classify(text=text)

    unsure = around(twice_for_some)
    unsure.predict.demos = list(DEMOS)
    message = r"several times per answer. Omit the argument calibrate"
    with pytest.raises(NoProbabilities, match=message):
        go(engine, program=unsure, calibrate=True)
    go(engine, log_dir=tmp_path)
    before = len(engine.prompts)
    with pytest.raises(ValueError, match="calibrate was False and is now True"):
        go(engine, log_dir=tmp_path, calibrate=True)
    assert len(engine.prompts) == before


def test_without_calibrate_reports_estimate_the_effect_of_calibration():
    program, report = go(Engine(), max_metric_calls=100, seed=1)
    assert isinstance(program, dspy.Predict)
    effect = report.calibration
    # Orders differ only in how strongly they bias the answers towards a label.
    assert effect.original_calibrated > effect.original + 0.05
    assert 0.5 < effect.probability < 0.9
    assert "BatchCalibration" not in str(report), "the gain may be chance"
    assert Report.model_validate(json.loads(json.dumps(report.to_dict()))) == report
    _, report = go(Engine(), signal="score")
    assert report.calibration is None
    assert "calibrat" not in report.details()
