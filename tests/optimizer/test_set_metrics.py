"""Optimizers with metrics over a set: what they choose, what they say of it, and what they refuse."""

import dspy
import numpy as np
import pytest
from fakes import Program, digest, using
from label_engines import LABELS, exact, normal
from label_world import DEMOS, EXAMPLES, Engine, number, student, two

import plr_dspy
from plr_dspy import F1, BatchCalibration, ConfusionMetric, PLFewShot, PLReorder, evaluate_programs
from plr_dspy.statistics.calibration import batch_offsets

RARE = [
    dspy.Example(text=f"text {2 * i + (i % 10 == 0)}", label=LABELS[i % 10 == 0]).with_inputs("text")
    for i in range(100)
]
"""One of ten is positive, as the engine knows it by odd numbers."""


def shy(demos, text):
    """It answers the rare label only where the last demo has it, and then to most of the examples that have it."""
    odd = int(text.split()[-1]) % 2
    last = int(demos[-1].split()[-1]) % 2 if demos else 0
    easy = int(text.split()[-1]) // 20 % 5 != 0
    return two((3.0 if easy else -1.0) if odd and last else -2.0)


def rare_first():
    return student(demos=sorted(DEMOS, key=lambda demo: demo.label != "positive"))


def cost(counts, labels):
    """A missed positive costs as much as nine false alarms, as does a reply that cannot be read."""
    assert labels == LABELS
    missed = counts[1, [0, 2]].sum()
    false_alarms = counts[0, [1, 2]].sum()
    return -(9 * missed + false_alarms) / counts.sum()


def compiled(kind, metric, *, engine=None, program=None, trainset=RARE, **options):
    options = {"max_metric_calls": 150, "num_threads": 1, "display_progress": False} | options
    optimizer = kind(metric, **options)
    with using(engine or Engine(probabilities=shy)):
        return optimizer.compile(program or student(), trainset=trainset), optimizer.report


def scored(engine, program, dataset=RARE):
    with using(engine):
        evaluation = evaluate_programs({"": program}, F1("positive"), dataset, num_threads=1, display_progress=False)
        return evaluation.programs[""].score


def calibrated(engine, trainset=RARE, *, num_inputs=100):
    """The student calibrated for F1, and what each way to do it would score."""
    optimizer = BatchCalibration(metric=F1("positive"), num_inputs=num_inputs, display_progress=False)
    with using(engine):
        return optimizer.compile(student(), trainset=trainset), optimizer.report.scores


@pytest.mark.parametrize(
    "metric",
    [
        F1("positive"),
        F1(),
        plr_dspy.MatthewsCorrelation(),
        plr_dspy.BalancedAccuracy(),
        ConfusionMetric(cost, "label", bounds=(-9.0, 0.0)),
        ConfusionMetric(F1("positive").value, name="own F1"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("signal", ["score", "auto"])
def test_finds_what_answers_the_rare_label(metric, signal):
    chosen, report = compiled(PLReorder, metric, program=rare_first(), signal=signal)
    assert chosen.demos[-1]["label"] == "positive"
    c = report.comparison
    assert c.chosen > c.original
    assert c.probability > 0.5
    assert c.gain == pytest.approx(c.chosen - c.original)
    assert c.interval[0] <= c.gain <= c.interval[1]
    assert c.gain_interval[0] <= c.expected_gain <= c.gain_interval[1]
    if signal == "auto":
        assert report.signal.used == "logprobs"
    low, high = metric.bounds
    assert all(low <= value <= high for value in (*c.expected_original, *c.expected_chosen))


@pytest.mark.parametrize("options", [{"signal": "score"}, {"signal": "logprobs"}, {"calibrate": True}], ids=str)
def test_labels_take_turns_however_rare_one_is(options):
    engine = Engine(probabilities=shy)
    _, report = compiled(PLReorder, F1("positive"), engine=engine, **options)
    searched = engine.prompts[: report.program_calls["search"]]
    assert 0.4 < np.mean([number(engine.shown(prompt)[1]) % 2 for prompt in searched]) < 0.6


@pytest.mark.parametrize("signal", ["score", "logprobs"])
def test_equal_answers_are_no_evidence_whatever_they_count(signal):
    engine = Engine(probabilities=lambda demos, text: two(2.0 if number(text) % 2 or number(text) % 7 == 0 else -2.0))
    _, report = compiled(PLReorder, F1("positive"), engine=engine, signal=signal, max_metric_calls=60)
    assert report.evidence.num_met > 0
    assert report.evidence.num_differing == 0
    assert all(0.0 <= each.score <= 1.0 and each.expected_gain == 0.0 for each in report.candidates)


def test_labels_count_in_their_shares_where_answers_are_calibrated():
    """The offsets are those of batch calibration over all examples, of which the search has met half of one label."""

    def unsure(demos, text):
        own = 0.3 if number(text) % 2 else -2.7
        return two(own + 0.6 * normal(text) + 0.2 * normal(f"{demos} {text}"))

    _, report = compiled(PLReorder, F1("positive"), engine=Engine(probabilities=unsure), calibrate=True)
    told = np.log([unsure([], each.text) for each in RARE])
    offsets = batch_offsets(told, prior=report.calibration.shares)
    assert report.calibration.offsets == pytest.approx(offsets, abs=0.05)


def test_report_has_the_metric_itself():
    """On all examples that both programs have answered."""
    _, report = compiled(PLReorder, F1("positive"), program=rare_first(), seed=1)
    c = report.comparison
    assert "F1(label='positive'" in report.details()
    chosen = max(report.candidates, key=lambda each: each.expected_gain)
    assert (report.candidates[0].score, chosen.score) == (c.original, c.chosen)
    assert c.probability >= 0.975 or c.gain_interval[0] <= 0.0
    assert 0.0 < c.expected_gain < 0.75 * c.gain  # It is shrunk, as by example.
    assert all(-1.0 <= value <= 1.0 for value in (*c.interval, *c.gain_interval))
    shown = [value for each in report.history for value in (each.best_score, each.best_score_so_far)]
    assert all(0.0 <= value <= 1.0 for value in shown)


@pytest.mark.parametrize("probabilities", [shy, lambda demos, text: two(len(text) % 2 - 1.0)])
@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_report_gives_one_score_of_a_program(probabilities, calibrate, seed):
    """Also where the original stays: what is said of the others then is why."""
    options = {"calibrate": calibrate, "seed": seed, "max_metric_calls": 100, "max_demos": 3}
    _, report = compiled(PLFewShot, F1("positive"), engine=Engine(probabilities=probabilities), **options)
    c = report.comparison
    returned = report.chosen_of_number
    assert returned.score == pytest.approx(c.expected_chosen[0], abs=1e-5)
    stays = returned.ordering == {slot.predictor: slot.original for slot in report.slots}
    if stays and not (report.calibration and report.calibration.applied):
        assert returned.score == pytest.approx(c.expected_original[0], abs=1e-5)
        for candidate in report.candidates[1:]:
            assert candidate.expected_gain <= 0 or candidate.probability < 3.0 * candidate.probability_worse


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_calibration_finds_a_label_that_no_order_answers(seed):
    """Ten examples of it are too few for a gain beyond their error, and one of .3 all the same."""

    def timid(demos, text):
        odd = int(text.split()[-1]) % 2
        return two(odd - 3.0 + 0.7 * normal(text) + 0.2 * normal(f"{demos}{text}"))

    options = {"engine": Engine(probabilities=timid), "calibrate": True, "seed": seed, "max_metric_calls": 300}
    program, _ = compiled(PLReorder, F1("positive"), **options)
    assert scored(options["engine"], student()) == 0.0
    assert scored(options["engine"], program) > 0.25


def test_expects_of_the_original_what_its_own_answers_give():
    """It answers the rare label to nearly all, far from the best order, where the metric is not linear."""

    def eager(demos, text):
        odd, last = (int(each.split()[-1]) % 2 for each in (text, demos[-1]))
        return two((6 * odd - 3) if last else 1.0 - 3.0 * (int(text.split()[-1]) % 7 == 0))

    program = rare_first()
    engine = Engine(probabilities=eager)
    _, report = compiled(PLReorder, F1("positive"), engine=engine, program=program, signal="score")
    value = scored(engine, program)
    assert value > 0.15
    assert report.comparison.expected_original[0] == pytest.approx(value, abs=0.06)
    assert report.comparison.expected_chosen[0] > 0.7


def test_says_what_calibration_alone_gives_where_the_rare_label_is_never_answered():
    """No order answers it, so that the metric is far from linear; calibrated, nearly all answers are right."""
    engine = Engine(probabilities=lambda demos, text: two(3.0 * (int(text.split()[-1]) % 2) - 5.0))
    _, report = compiled(PLReorder, F1("positive"), engine=engine)
    effect = report.calibration
    assert effect.original == effect.chosen == 0.0
    assert 0.8 < effect.original_calibrated == effect.chosen_calibrated <= 1.0
    assert "use BatchCalibration(metric=F1(label='positive'" in str(report)


@pytest.mark.parametrize("demos", ["retrieved", "auto"])
def test_calibrated_answers_of_rules_are_those_of_the_program_in_use(demos):
    """Neighbours say the label, and the model never answers the rare one unless it is calibrated."""

    def timid(shown, text):
        odd = [int(each.split()[-1]) % 2 for each in (*shown, text)]
        return two(sum(odd[:-1]) + 0.5 * odd[-1] - 6.0)

    words = {True: "lovely", False: "awful"}
    texts = [(i % 4 == 0, f"{words[i % 4 == 0]} {2 * i + (i % 4 == 0)}") for i in range(160)]
    known = [dspy.Example(text=text, label=LABELS[rare]).with_inputs("text") for rare, text in texts]
    engine = Engine(probabilities=timid)
    options = {"max_demos": 4, "demos": demos, "candidates": "labeled"}
    options |= {"engine": engine, "program": student(demos=()), "trainset": known[:100], "calibrate": True}
    chosen, report = compiled(PLFewShot, F1("positive"), **options)
    value = scored(engine, chosen, known[100:])
    assert value >= report.comparison.expected_chosen[1]
    assert report.comparison.chosen > 0.8


class TestBatchCalibration:
    def test_takes_the_shares_that_the_metric_wants_unless_nothing_is_better(self):
        """The engine leans to the frequent label, and knows the rare one: accuracy hardly sees it."""
        engine = Engine(probabilities=lambda demos, t: two((1.0 if int(t.split()[-1]) % 2 else -3.0) - 1.5))
        program, accuracies = calibrated(engine)
        value = scored(engine, program)
        assert accuracies["as it is"] == 0.0
        assert accuracies["always 'positive'"] == pytest.approx(2 * 0.1 / 1.1, abs=0.02)
        assert value > 0.9
        assert max(accuracies.values()) == pytest.approx(value, abs=0.1)
        always_right = Engine(probabilities=lambda demos, text: two(3.0 if number(text) % 2 else -3.0))
        program, accuracies = calibrated(always_right)
        assert (program.calibration, accuracies["as it is"]) == (None, 1.0)
        _, accuracies = calibrated(always_right, num_inputs=2)
        assert accuracies["as it is"] == 1.0, "the label of the metric is among few inputs"

    def test_all_labels_take_turns_and_count_in_their_shares(self):
        """One of twenty is positive, and one of five is called so."""
        texts = [f"text {2 * i + (i % 20 == 0)}" for i in range(400)]
        known = [dspy.Example(text=t, label=LABELS[number(t) % 2]).with_inputs("text") for t in texts]
        engine = Engine(probabilities=lambda demos, t: two(2.0 if number(t) % 2 or number(t) // 2 % 5 == 1 else -2.0))
        _, accuracies = calibrated(engine, known, num_inputs=40)
        assert np.mean([number(engine.shown(prompt)[1]) % 2 for prompt in engine.prompts]) == 0.5
        assert accuracies["as it is"] == pytest.approx(scored(engine, student(), known), abs=0.1)
        assert accuracies["always 'positive'"] == pytest.approx(2 * 0.05 / 1.05)


def test_order_sensitivity_and_the_paper_take_the_metric(caplog):
    """The paper compares on the selection split alone."""
    with using(Engine(probabilities=shy)):
        found = plr_dspy.order_sensitivity(student(), F1("positive"), RARE, num_orders=6, max_metric_calls=None)
    assert max(found.scores) > 0.5 > min(found.scores) >= -0.01
    engine = Engine(probabilities=lambda demos, text: two(2.0 if number(text) % 4 != 2 else -2.0))
    known = scored(engine, student())
    engine.prompts.clear()
    engine.asked.clear()
    with using(engine):
        found = plr_dspy.order_sensitivity(student(), F1("positive"), RARE, num_orders=6, max_metric_calls=120)
    assert np.mean([number(engine.shown(prompt)[1]) % 2 for prompt in engine.prompts]) == 0.5
    assert found.scores == pytest.approx([known] * 6, abs=0.15)  # Labels count in their shares.
    assert found.num_examples == 20
    assert "only" not in caplog.text  # 10 examples are positive: what is scored as a whole is counted as a whole.
    options = {"auto": "paper", "num_iterations": 2, "num_samples": 4, "num_final_draws": 2}
    _, report = compiled(PLReorder, F1("positive"), max_metric_calls=None, **options)
    assert report.comparison.num_examples == report.settings["num_selection"]


def test_a_folder_of_another_kind_of_metric_is_refused(tmp_path):
    """Calls for a metric by example keep no label."""
    compiled(PLReorder, exact, log_dir=tmp_path)
    with pytest.raises(ValueError, match="without the answered labels: pass another log_dir"):
        compiled(PLReorder, F1("positive"), log_dir=tmp_path, accept_changes=True)


def test_labels_that_the_program_never_answers_are_refused_before_any_call():
    """As where examples write labels otherwise than the program."""
    trainset = [dspy.Example(text=e.text, label=e.label.title()).with_inputs("text") for e in RARE]
    engine = Engine(probabilities=shy)
    with pytest.raises(ValueError, match=r"(?s)(one has 'Positive').*no answer can be right"):
        compiled(PLReorder, F1("Positive"), engine=engine, trainset=trainset, signal="score")
    assert not engine.prompts


class TestBadInput:
    """Is refused before any call."""

    @pytest.mark.parametrize(
        ("metric", "message"),
        [(F1("happy"), "no example has 'happy'"), (F1("positive", field="mood"), "must have 'mood' for the label")],
    )
    def test_of_metric_and_examples(self, metric, message):
        engine = Engine()
        with pytest.raises((ValueError, KeyError), match=message):
            compiled(PLReorder, metric, engine=engine)
        assert not engine.prompts

    @pytest.mark.parametrize("kind", [PLReorder, PLFewShot])
    def test_a_function_that_raises_ends_the_compile(self, kind):
        """What was paid for is reported."""

        def broken(counts, labels):
            raise LookupError("no such table")

        optimizer = kind(ConfusionMetric(broken), max_metric_calls=150, num_threads=1, display_progress=False)
        with using(Engine(probabilities=shy)), pytest.raises(LookupError, match="no such table"):
            optimizer.compile(student(), trainset=RARE)
        assert optimizer.report.program_calls["total"] > 0 and optimizer.best_program is not None


@pytest.mark.parametrize("seed", [2, 4])
def test_the_probability_that_is_asked_for_is_no_evidence(seed):
    """Whoever asks for more gets the same number, or keeps the original; and no gain is beyond what F1 can be."""
    options = {"engine": Engine(), "trainset": EXAMPLES, "signal": "score", "max_metric_calls": 60}
    sure = ({**options, "min_probability": least} for least in (0.5, 0.9))
    found = [compiled(PLFewShot, F1("positive"), seed=seed, **each)[1].comparison for each in sure]
    for c, least in zip(found, (0.5, 0.9), strict=True):
        if c.expected_gain > 0:
            assert c.probability >= least
            assert c.probability == found[0].probability
            assert c.expected_chosen[0] == pytest.approx(c.expected_original[0] + c.expected_gain)
        else:
            assert c.expected_chosen[0] == c.expected_original[0]


@pytest.mark.parametrize("calibrate", [True, False])
def test_answers_by_which_the_metric_is_the_same_replace_nothing(calibrate):
    options = {"demos": "retrieved", "max_metric_calls": 100, "calibrate": calibrate}
    alike = []
    for seed in range(8):
        report = compiled(PLFewShot, F1("positive"), engine=Engine(), seed=seed, **options)[1]
        assert all(each.probability > 0 for each in report.candidates if each.expected_gain > 0)
        c = report.comparison
        alike += [c] if c.gain == 0.0 else []
    assert alike or calibrate  # Calibrated answers are seldom the same.
    assert all(c.expected_gain == c.probability == 0.0 for c in alike)


def test_the_best_of_many_orders_by_four_examples_of_a_label_is_not_called_better():
    """No order has an effect, and 4 of 40 examples have the rare label: in these worlds many look good by chance."""
    labels = ["b"] * 4 + ["a"] * 36
    trainset = [dspy.Example(number=i, label=label).with_inputs("number") for i, label in enumerate(labels)]
    inner = dspy.Predict("number -> label")
    sure = []
    inner.demos = [dspy.Example(number=i, label="ab"[i % 2]) for i in range(-6, 0)]
    for seed in range(9, 22, 3):

        def answer(self, number, seed=seed):
            told = f"{seed} {[demo.number for demo in self.predict.demos]} {number}"
            right = digest(told) < 0.25 + 0.6 * digest(f"{seed} {number}")
            return dspy.Prediction(label="ab"[(labels[number] == "a") != right])

        optimizer = PLReorder(plr_dspy.BalancedAccuracy(), max_metric_calls=300, display_progress=False)
        with using(Engine()):
            optimizer.compile(Program(answer, predict=inner), trainset=trainset)
        sure.append(optimizer.report.comparison.probability)
    assert max(sure) < 0.9 and any(each > 0 for each in sure)
