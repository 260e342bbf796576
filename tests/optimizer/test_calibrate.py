"""Orders that are chosen for calibrated answers, and what reports say of calibration."""

import json
import math
from collections import Counter
from typing import Literal, get_args

import dspy
import numpy as np
import pytest
from fakes import FIELD, chat_response, digest, logprobs_of
from test_signal import (
    DEMOS,
    EXAMPLES,
    LABELS,
    Engine,
    exact,
    failure,
    go,
    interrupt,
    normal,
    probabilities,
    student,
)

from plr_dspy import BatchCalibration, CalibratedProgram, Calibration, PLReorder, Report, order_sensitivity
from plr_dspy.labels.requests import NoProbabilities
from plr_dspy.report.page import page

FRESH = [f"text {i}" for i in range(1000, 1400)]


def sharpness(demos):
    """How well an order of demos tells labels apart: best where the first demo is an odd one."""
    return (
        0.3
        + 1.4
        * sum(int(demo.split()[-1]) % 2 * weight for demo, weight in zip(demos, (3, 2), strict=False))
        / 5
    )


def leaning_and_sharp(demos, text):
    """All orders lean far to "positive"; what tells them apart is hidden until they are calibrated."""
    number = int(text.split()[-1])
    lean = 6.0 + 0.5 * normal(f"{demos}")
    z = (
        (1 if number % 2 else -1) * sharpness(demos)
        + lean
        + 0.7 * normal(text)
        + 0.2 * normal(f"{demos}{text}")
    )
    return [1 / (1 + math.exp(z)), 1 / (1 + math.exp(-z))]


def engine_of(probabilities=leaning_and_sharp, **options):
    return Engine(probabilities=probabilities, **options)


class Mumbling(Engine):
    """Replies to every third text with a word that is no label, whatever the order."""

    def reply(self, request, *, told):
        texts = [message.text or "" for message in request.messages]
        text = FIELD.findall(texts[-1])[0][1].strip()
        if int(text.split()[-1]) % 3:
            return super().reply(request, told=told)
        demos = [FIELD.findall(text)[0][1].strip() for text in texts[:-1:2]]
        shares = {
            label: 0.3 * p for label, p in zip(self.labels, self.probabilities(demos, text), strict=True)
        }
        tops = [
            {"[[ ## label ## ]]\n": 1.0},
            {"perhaps": 0.7, **shares},
            {"\n\n[[ ## completed ## ]]": 1.0},
        ]
        said = "".join(max(top, key=top.__getitem__) for top in tops)
        return chat_response(said, logprobs=logprobs_of(tops) if told else None)


def accuracy(program, probabilities=leaning_and_sharp):
    """Of a calibrated program, on texts that nobody has seen."""
    inner = program.program if isinstance(program, CalibratedProgram) else program
    shown = [demo["text"] for demo in inner.demos]
    offsets = np.array(program.calibration.offsets if isinstance(program, CalibratedProgram) else (0.0, 0.0))
    answers = [np.argmax(np.log(probabilities(shown, text)) + offsets) for text in FRESH]
    return np.mean([answer == int(text.split()[-1]) % 2 for answer, text in zip(answers, FRESH, strict=True)])


def calibrated_original():
    """The student in its own order, calibrated on many inputs."""
    lm = dspy.LM("fake/x", engine=engine_of(), cache=False)
    with dspy.context(lm=lm):
        return BatchCalibration(display_progress=False).compile(student(), trainset=EXAMPLES)


class TestOrdersUnderCalibration:
    @pytest.mark.parametrize("num_threads", [1, 8])
    @pytest.mark.parametrize("budget", [40, 150])
    def test_cost_no_further_call(self, num_threads, budget):
        engine = engine_of()
        program, report = go(engine, calibrate=True, max_metric_calls=budget, num_threads=num_threads)
        assert len(engine.prompts) == report.program_calls["total"] <= budget
        assert set(Counter(engine.prompts).values()) == {1}
        assert all(engine.asked)
        assert isinstance(program, CalibratedProgram)
        assert [demo["text"] for demo in program.program.demos] == [
            DEMOS[i]["text"] for i in report.slots[0].ordering
        ]

    def test_are_better_than_calibration_alone(self):
        """Raw answers are the same for all orders, so a search for those would find nothing."""
        alone = accuracy(calibrated_original())
        found = [
            accuracy(go(engine_of(), calibrate=True, max_metric_calls=150, seed=seed)[0]) for seed in range(5)
        ]
        assert accuracy(student()) == pytest.approx(0.5, abs=0.02)
        assert alone > 0.55
        assert np.mean(found) > alone + 0.08, (found, alone)
        assert min(found) > alone - 0.03

    def test_scores_are_those_of_calibrated_answers(self):
        _, report = go(engine_of(), calibrate=True, max_metric_calls=200)
        assert report.comparison.chosen > 0.6  # As they are, all answers are "positive".
        effect = report.calibration
        assert effect.original == pytest.approx(0.5, abs=0.05)
        assert effect.original_calibrated > effect.original
        assert effect.chosen_calibrated > effect.original_calibrated
        assert effect.after.calibration_error < effect.before.calibration_error
        assert effect.after.brier_score < effect.before.brier_score
        assert "the program needs the probabilities of labels at each use" in str(report)

    @pytest.mark.parametrize("seed", range(3))
    def test_replies_that_are_no_label_count_as_they_were_scored(self, seed):
        effect = go(Mumbling(), max_metric_calls=300, seed=seed)[1].calibration
        shown, fresh = [demo["text"] for demo in DEMOS], [(int(text.split()[-1]), text) for text in FRESH]
        right = [number % 3 and np.argmax(probabilities(shown, text)) == number % 2 for number, text in fresh]
        assert effect.original == pytest.approx(np.mean(right), abs=0.1)
        assert effect.chosen <= effect.chosen_calibrated <= 1.0

    def test_the_calibration_is_about_that_of_many_inputs(self):
        program, _ = go(engine_of(), calibrate=True, max_metric_calls=150)
        shown = [demo["text"] for demo in program.program.demos]
        means = np.mean([leaning_and_sharp(shown, text) for text in FRESH], axis=0)
        true = -np.log(means) - np.mean(-np.log(means))
        assert program.calibration.offsets == pytest.approx(true, abs=0.5)
        assert program.calibration.method == "batch"

    def test_the_same_at_any_number_of_threads(self):
        (one, first), (eight, second) = (
            go(engine_of(), calibrate=True, max_metric_calls=100, num_threads=n) for n in (1, 8)
        )
        assert one.calibration == eight.calibration
        assert first.slots == second.slots
        assert first.calibration == second.calibration

    def test_the_result_saves_and_answers_with_one_call(self, tmp_path):
        program, _ = go(engine_of(), calibrate=True)
        program.save(tmp_path / "program.json")
        loaded = CalibratedProgram(student())
        loaded.load(tmp_path / "program.json")
        engine = engine_of()
        with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False)):
            answers = [each(text="text 1001") for each in (program, loaded)]
        assert answers[0].toDict() == answers[1].toDict()
        assert len(engine.prompts) == 2

    def test_candidates_are_calibrated_each_for_its_order(self):
        program, _ = go(engine_of(), calibrate=True, max_metric_calls=150)
        candidates = {each["origin"]: each["program"] for each in program.candidate_programs}
        original = candidates.pop("original")
        assert not isinstance(original, CalibratedProgram)
        offsets = [each["program"].calibration.offsets for each in program.candidate_programs[:-1]]
        assert len(set(offsets)) == len(offsets) >= 2
        assert offsets[0] == program.calibration.offsets
        assert candidates["calibrated"].program.dump_state() == original.dump_state()

    def test_a_student_that_is_calibrated_is_calibrated_anew(self):
        program, _ = go(engine_of(), program=calibrated_original(), calibrate=True)
        assert isinstance(program.program, dspy.Predict)

    def test_replies_that_cannot_be_read_count_by_their_probabilities(self):
        class Mumbling(Engine):
            """Says what is no label, where the labels are likely tokens still."""

            def reply(self, request, *, told):
                reply = super().reply(request, told=told)
                number = int(self.prompts[-1][-1].split("text ")[-1].split()[0])
                if number % 3:
                    return reply
                p = self.probabilities(*self.shown(request))
                tops = [
                    {"[[ ## label ## ]]\n": 1.0},
                    {"neutral": 0.9, "negative": 0.1 * p[0], "positive": 0.1 * p[1]},
                ]
                return chat_response("[[ ## label ## ]]\nneutral", logprobs=logprobs_of(tops))

            @staticmethod
            def shown(request):

                texts = [message.text or "" for message in request.messages]
                demos = [FIELD.findall(text)[0][1].strip() for text in texts[:-1:2]]
                return demos, FIELD.findall(texts[-1])[0][1].strip()

        engine = Mumbling(probabilities=leaning_and_sharp)
        program, report = go(engine, calibrate=True, max_metric_calls=150)
        assert all(error.count == error.of_original for error in report.errors)  # It is scored as it is.
        assert report.comparison.chosen > 0.6  # A third of the answers would be wrong without.
        with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False)):
            assert {program(text=f"text {3 * i}").label for i in range(400, 420)} == set(LABELS)

    def test_labels_that_are_clearly_uneven_stay_so(self):
        """A model that is right about 90 % of one label is not made to say both labels equally often."""

        def right_and_uneven(demos, text):
            z = (2.5 if int(text.split()[-1]) % 10 else -2.5) + 0.7 * normal(text)
            return [1 / (1 + math.exp(z)), 1 / (1 + math.exp(-z))]

        rare = [
            dspy.Example(text=f"text {i}", label=LABELS[bool(i % 10)]).with_inputs("text") for i in range(120)
        ]

        def calibrated(**options):
            program, report = go(engine_of(right_and_uneven), trainset=rare, **options)
            assert "the original order stays" in str(report)
            assert not isinstance(program, CalibratedProgram)
            found = {each["origin"]: each["program"] for each in program.candidate_programs}["calibrated"]
            return found.calibration

        assert abs(calibrated(calibrate=True).offsets[0]) < 0.6
        even = calibrated(calibrate={"negative": 0.5, "positive": 0.5})
        assert even.offsets[0] > 0.65
        assert even.shares == (0.5, 0.5)


def labelled_world(seed):
    """Examples, and a model that leans to "positive" or does not, where labels are even or 85 % "positive"."""
    lean, rare = ((0.0, 0.5), (2.0, 0.5), (0.0, 0.15), (2.0, 0.15))[seed % 4]

    def right(text):
        return int(digest(f"label {seed} {text}") >= rare)

    def probabilities(demos, text):
        z = (1 if right(text) else -1) * (0.4 + sharpness(demos)) + lean + 0.4 * normal(f"{seed} {demos}")
        z += 0.9 * normal(f"{seed} {text}") + 0.2 * normal(f"{seed} {demos} {text}")
        return [1 / (1 + math.exp(z)), 1 / (1 + math.exp(-z))]

    texts = [f"text {i}" for i in range(100)]
    return (
        [dspy.Example(text=t, label=LABELS[right(t)]).with_inputs("text") for t in texts],
        probabilities,
        right,
    )


def true_accuracy(program, probabilities, right):
    """Of a program that is calibrated or not, on texts that nobody has seen."""
    inner = program.program if isinstance(program, CalibratedProgram) else program
    offsets = program.calibration.offsets if isinstance(program, CalibratedProgram) else (0.0, 0.0)
    shown = [demo["text"] for demo in inner.demos]
    return np.mean([np.argmax(np.log(probabilities(shown, t)) + offsets) == right(t) for t in FRESH])


class TestTheStudentAsItIs:
    def test_reports_say_what_other_examples_give(self):
        """Of the student, of the returned program, and of the gain; labels even and uneven."""
        held, gains = [], []
        for seed in range(12):
            trainset, probabilities, right = labelled_world(seed)
            program, report = go(
                engine_of(probabilities), calibrate=True, max_metric_calls=200, trainset=trainset, seed=seed
            )
            before, after = (true_accuracy(each, probabilities, right) for each in (student(), program))
            comparison = report.comparison
            for (_, low, high), true in (
                (comparison.expected_original, before),
                (comparison.expected_chosen, after),
                ((0.0, *comparison.gain_interval), after - before),
            ):
                held.append(low - 1e-9 <= true <= high + 1e-9)
            gains.append(after - before)
        assert np.mean(held) >= 0.9
        assert min(gains) > -0.05
        assert np.mean(gains) > 0.02

    def test_replies_that_cannot_be_read_are_its_own(self):
        """It says no label to a third of the texts; a calibrated program has one for them all."""
        program, report = go(Mumbling(probabilities=leaning_and_sharp), calibrate=True, max_metric_calls=200)
        shown, fresh = [demo["text"] for demo in DEMOS], [(int(text.split()[-1]), text) for text in FRESH]
        right = [number % 3 and np.argmax(leaning_and_sharp(shown, t)) == number % 2 for number, t in fresh]
        value, low, high = report.comparison.expected_original
        assert value == pytest.approx(np.mean(right), abs=0.12)
        assert low <= np.mean(right) <= high
        assert report.comparison.expected_chosen[0] > value + 0.1
        assert isinstance(program, CalibratedProgram)

    @pytest.mark.parametrize("seed", range(4))
    def test_a_calibration_that_it_came_with_is_its_own(self, seed, tmp_path):
        """Its answers are far better than those of the program that it wraps: little is left to gain."""
        trainset, probabilities, right = labelled_world(1)
        raw = [np.log(probabilities([demo["text"] for demo in DEMOS], text)) for text in FRESH]
        lean = float(np.mean([b - a for a, b in raw]))
        own = CalibratedProgram(
            student(), Calibration("batch", tuple(LABELS), (lean / 2, -lean / 2), (1.0, 1.0), 64)
        )
        options = {"calibrate": True, "max_metric_calls": 200, "trainset": trainset, "seed": seed}
        program, report = go(engine_of(probabilities), program=own, log_dir=tmp_path, **options)
        before, after = (true_accuracy(each, probabilities, right) for each in (own, program))
        assert before > true_accuracy(student(), probabilities, right) + 0.05
        value, low, high = report.comparison.expected_original
        assert value == pytest.approx(before, abs=0.12)
        assert low <= before <= high
        assert report.comparison.probability < 0.9 or after > before - 0.01
        with pytest.raises(ValueError, match="calibration of student"):
            go(engine_of(probabilities), program=student(), log_dir=tmp_path, **options)

    @pytest.mark.parametrize("calibrated", [False, True])
    def test_a_student_that_stays_returns_as_it_was(self, calibrated):
        def always_right(demos, text):
            p = 0.95 if int(text.split()[-1]) % 2 else 0.05
            return [1 - p, p]

        before = student()
        if calibrated:
            found = Calibration("batch", tuple(LABELS), (0.3, -0.3), (1.0, 1.0), 64)
            before = CalibratedProgram(before, found)
        program, report = go(engine_of(always_right), program=before, calibrate=True)
        assert type(program) is type(before)
        assert "the original order stays" in str(report)
        if calibrated:
            assert program.calibration == before.calibration
            before, program = before.program, program.program
        assert program.dump_state() == before.dump_state()

    def test_shares_and_the_most_frequent_label_are_told(self, caplog):
        trainset, probabilities, _ = labelled_world(3)
        program, report = go(engine_of(probabilities), calibrate=True, trainset=trainset)
        positive = np.mean([each.label == "positive" for each in trainset])
        assert f"always answering 'positive' {positive:.2f}" in report.details()
        assert f"{100 * positive:.0f} % of the examples have the label 'positive'" in caplog.text
        shares = program.calibration.shares
        assert f"assumed: labels are as frequent as 'negative' {shares[0]:.2f}" in str(report)


@pytest.fixture(scope="module")
def whole():
    """The program and the report of a compile that nothing stopped."""
    return go(engine_of(), calibrate=True)


def sure_of(scale):
    """Probabilities of three labels, with logits so many times those of a small model; infinitely many are 0 and 1."""

    def probabilities(demos, text):
        number, place = int(text.split()[-1]), [demo.split()[-1] for demo in demos]
        logits = [
            0.8 * normal(f"{text} {label}") + 0.2 * normal(f"{demos}{text}{label}") for label in range(3)
        ]
        logits[number % 3] += 1.0
        logits[2] += 0.4 * sum(int(each) % 3 * (i + 1) for i, each in enumerate(place)) - 8
        gaps = [logit - max(logits) for logit in logits]
        weights = [math.exp(scale * gap) if gap else 1.0 for gap in gaps]
        return [weight / sum(weights) for weight in weights]

    return probabilities


class TestConfidentModels:
    """However sure a model is, a search ends with its calls, and numpy has nothing to warn of."""

    @pytest.mark.parametrize("scale", [1, 4, 16, 64, math.inf])
    @pytest.mark.parametrize("calibrate", [True, False])
    def test_are_searched_to_the_end(self, scale, calibrate):
        kind = Literal["negative", "positive", "neither"]
        labels = [*get_args(kind)]
        examples = [
            dspy.Example(text=f"text {i}", label=labels[i % 3]).with_inputs("text") for i in range(60)
        ]
        demos = [dspy.Example(text=f"demo {i}", label=labels[i % 3]) for i in range(6)]
        engine = engine_of(sure_of(scale), labels=labels)
        _, report = go(
            engine,
            program=student(kind, demos),
            trainset=examples,
            calibrate=calibrate,
            max_metric_calls=210,
        )
        assert report.signal.used == "logprobs"
        assert report.stopped == "budget"
        assert report.program_calls["total"] > 180
        numbers = [
            report.comparison.expected_gain,
            report.comparison.probability,
            *report.calibration.offsets,
        ]
        assert all(map(math.isfinite, numbers))


class TestInterrupted:
    @pytest.mark.parametrize("how", [failure, interrupt])
    @pytest.mark.parametrize("stop_at", [1, 9, 60, 110])
    def test_goes_on(self, tmp_path, whole, how, stop_at):
        engine = engine_of()
        engine.at = {stop_at: how}
        options = {"log_dir": tmp_path, "max_errors": 1, "calibrate": True}
        with pytest.raises((ConnectionError, KeyboardInterrupt, dspy.LMError)):
            go(engine, **options)
        program, report = go(engine, **options)
        assert max(Counter(engine.prompts).values()) <= 2
        if how is interrupt:  # A call that failed counts, and leaves one less.
            assert program.calibration == whole[0].calibration
            assert report.slots == whole[1].slots

    def test_what_was_found_is_calibrated(self):
        engine = engine_of()
        engine.at = {100: interrupt}
        reorder = PLReorder(
            exact, calibrate=True, max_metric_calls=120, num_threads=1, display_progress=False
        )
        with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False)), pytest.raises(KeyboardInterrupt):
            reorder.compile(student(), trainset=EXAMPLES)
        assert isinstance(reorder.best_program, CalibratedProgram)

    def test_another_calibration_is_another_compile(self, tmp_path):
        engine = engine_of()
        go(engine, log_dir=tmp_path)
        before = len(engine.prompts)
        with pytest.raises(ValueError, match="calibrate was False, is True"):
            go(engine, log_dir=tmp_path, calibrate=True)
        assert len(engine.prompts) == before


class TestBadInput:
    def test_before_any_call(self):
        for options, reason in [
            ({"program": student(str)}, "no output is a Literal, an enum or a bool"),
            ({"auto": "paper", "max_metric_calls": None}, "auto='paper'"),
            ({"metric": lambda e, p, trace=None: len(p.keys()) > 0}, "looks at more of the prediction"),
        ]:
            engine = engine_of()
            with pytest.raises(ValueError, match=rf"calibrate=True is not possible: .*{reason}"):
                go(engine, calibrate=True, **options)
            assert not engine.prompts

    def test_scores_alone_cannot_be_calibrated(self):
        with pytest.raises(ValueError, match="calibrate needs log-probabilities: pass signal='auto'"):
            PLReorder(exact, calibrate=True, signal="score")

    @pytest.mark.parametrize("value", ["yes", 1, None, ["negative"]])
    def test_other_types(self, value):
        with pytest.raises(TypeError, match="calibrate must be True, False, or a dict"):
            PLReorder(exact, calibrate=value)

    @pytest.mark.parametrize(
        ("shares", "said"),
        [
            ({"negative": 0.5}, "share for each"),
            ({"negative": 0.5, "positive": 0.6}, "must sum to 1"),
            ({"negative": 1.0, "positive": 0.0}, "above 0"),
            ({"bad": 0.5, "good": 0.5}, "share for each"),
        ],
    )
    def test_shares(self, shares, said):
        engine = engine_of()
        with pytest.raises(ValueError, match=f"calibrate must.*{said}|calibrate.*{said}"):
            go(engine, calibrate=shares)
        assert not engine.prompts

    def test_an_empty_dict(self):
        engine = engine_of()
        with pytest.raises(ValueError, match="calibrate must have a share for each of the labels"):
            go(engine, calibrate={})
        assert not engine.prompts

    def test_one_order_alone(self):
        engine = engine_of()
        with pytest.raises(
            ValueError, match=r"all orders of the demos give the same prompt.*BatchCalibration"
        ):
            go(engine, program=student(demos=DEMOS[:1]), calibrate=True)
        assert not engine.prompts

    def test_a_program_that_asks_twice(self):
        class Twice(dspy.Module):
            def __init__(self):
                super().__init__()
                self.predict = student()

            def forward(self, text):
                return [self.predict(text=text) for _ in range(2)][-1]

        with pytest.raises(NoProbabilities, match="the program calls its classifier several times"):
            go(engine_of(), program=Twice(), calibrate=True)

    def test_first_calls_that_fail_are_told_and_made_again(self, tmp_path):
        engine = engine_of()
        engine.at = dict.fromkeys(range(8), failure)
        options = {"calibrate": True, "log_dir": tmp_path, "max_errors": 100}
        with pytest.raises(RuntimeError, match=r"no call ended with an answer.*ConnectionError|down"):
            go(engine, **options)
        program, report = go(engine, **options)
        assert isinstance(program, CalibratedProgram)
        assert report.comparison is not None

    def test_an_endpoint_that_gives_none(self):
        engine = engine_of(logprobs=False)
        with pytest.raises(
            NoProbabilities, match=r"calibrate=True needs the log-probabilities.*Leave it out"
        ):
            go(engine, calibrate=True)
        assert len(engine.prompts) == 1


class TestWithoutIt:
    def test_reports_say_what_calibration_would_give(self):
        program, report = go(Engine(), max_metric_calls=150)
        assert isinstance(program, dspy.Predict)
        effect = report.calibration
        assert (
            effect.original_calibrated > effect.original + 0.05
        )  # Here orders differ in nothing but leaning.
        assert "use BatchCalibration, or calibrate=True" in str(report)
        assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report
        assert "use BatchCalibration, or calibrate=True" in page(report)

    def test_scores_alone_say_nothing_of_it(self):
        _, report = go(Engine(), signal="score")
        assert report.calibration is None
        assert "calibrat" not in report.details()

    def test_uneven_labels(self):
        """What the report says calibration would give is what calibrate=True gives."""

        def uneven(demos, text):
            z = (2.0 if int(text.split()[-1]) % 4 else -2.0) + 0.8 * normal(text)
            return [1 / (1 + math.exp(z)), 1 / (1 + math.exp(-z))]

        examples = [
            dspy.Example(text=f"text {i}", label=LABELS[bool(i % 4)]).with_inputs("text") for i in range(120)
        ]
        effects = [
            go(engine_of(uneven), trainset=examples, calibrate=calibrate)[1].calibration
            for calibrate in (False, True)
        ]
        assert effects[0].original_calibrated == pytest.approx(effects[1].original_calibrated, abs=0.03)
        assert effects[0].original_calibrated > effects[0].original - 0.03


def test_labels_that_are_read_from_other_words_stay():
    """The adapter reads "yes" as True: the tokens there are not those of the labels."""

    class Yes(Engine):
        def reply(self, request, *, told):
            tops = [{"[[ ## label ## ]]\n": 1.0}, {"yes": 0.93, "no": 0.04, "True": 0.005, "False": 0.02}]
            return chat_response("[[ ## label ## ]]\nyes", logprobs=logprobs_of(tops) if told else None)

    program = CalibratedProgram(
        student(bool, []), Calibration("batch", ("True", "False"), (-1.0, 1.0), (1.0, 1.0), 9)
    )
    with dspy.context(lm=dspy.LM("fake/x", engine=Yes(), cache=False)):
        prediction = program(text="text 1")
    assert prediction.label is True
    assert prediction.probabilities is None


class TestSensitivity:
    def measure(self, engine, metric=exact, **options):
        options = {"max_metric_calls": 300, "num_threads": 1, "display_progress": False, **options}
        with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False)):
            return order_sensitivity(student(), metric, EXAMPLES, **options)

    def test_tells_both_spreads_by_the_same_calls(self):
        engine = Engine()
        found = self.measure(engine)
        assert len(engine.prompts) == found.program_calls == found.calibrated.program_calls == 300
        assert np.std(found.calibrated.scores) < 0.6 * np.std(found.scores)
        assert "\nCalibrated, they score" in str(found)
        assert (
            "\nRecommended: calibrate first (BatchCalibration), which takes 64 calls and no search. "
            in str(found)
        )

    def test_a_hidden_effect(self):
        found = self.measure(engine_of(), num_orders=20, max_metric_calls=1000)
        assert not found.matters
        assert found.calibrated.matters
        assert "a search (PLReorder with calibrate=True)" in str(found).splitlines()[-1]

    @pytest.mark.parametrize("options", [{"logprobs": False}, {}])
    def test_scores_alone(self, options):
        metric = exact if options else lambda e, p, trace=None: exact(e, p) and len(p.keys()) > 0
        found = self.measure(Engine(**options), metric)
        assert found.calibrated is None
        assert "alibrat" not in str(found)


def test_twenty_labels_of_which_some_are_never_likely():
    """Those cannot become answers by being lifted."""
    labels = [f"kind {chr(97 + i)}" for i in range(20)]
    kind = Literal[tuple(labels)]

    def of_five(demos, text):
        number = int(text.split()[-1]) % 5
        p = np.exp(
            [1.2 * (i == number) + (1.5 if i == 0 else 0.0) + 0.3 * normal(f"{text}{i}") for i in range(5)]
        )
        return [*(p / p.sum()).tolist(), *[0.0] * 15]

    examples = [dspy.Example(text=f"text {i}", label=labels[i % 5]).with_inputs("text") for i in range(60)]
    demos = [dspy.Example(text=f"demo {i}", label=labels[i % 5]) for i in range(4)]
    engine = Engine(labels=labels, probabilities=of_five)
    program, report = go(engine, program=student(kind, demos), trainset=examples, calibrate=True)
    assert report.comparison is not None
    with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False)):
        answers = Counter(program(text=text).label for text in FRESH[:60])
    assert set(answers) == set(labels[:5])
