"""Optimizers with metrics over a set, such as F1."""

import dspy
import every_function
import numpy as np
import pytest
from fakes import Program, digest, using
from label_engines import LABELS, exact, normal
from label_world import DEMOS, EXAMPLES, Engine, labeled, number, student, two

import plr_dspy
from plr_dspy import (
    F1,
    BatchCalibration,
    ConfusionMetric,
    PLFewShot,
    PLReorder,
    evaluate_programs,
    headroom,
)
from plr_dspy.statistics.calibration import batch_offsets

RARE = [labeled(f"text {2 * i + (i % 10 == 0)}", LABELS[i % 10 == 0]) for i in range(100)]
"""One of ten examples is positive. The engine recognizes positive texts by their odd numbers."""


def shy(demos, text):
    """Return label probabilities that favor the rare label only if the last demo has the rare label."""
    odd = int(text.split()[-1]) % 2
    last = int(demos[-1].split()[-1]) % 2 if demos else 0
    easy = int(text.split()[-1]) // 20 % 5 != 0
    return two((3.0 if easy else -1.0) if odd and last else -2.0)


def rare_first():
    return student(demos=sorted(DEMOS, key=lambda demo: demo.label != "positive"))


def cost(counts, labels):
    """Return a score that penalizes a missed positive as much as nine false alarms."""
    assert labels == LABELS
    missed = counts[1, [0, 2]].sum()
    false_alarms = counts[0, [1, 2]].sum()
    return -(9 * missed + false_alarms) / counts.sum()


def compiled(kind, metric, *, engine=None, program=None, trainset=RARE, **options):
    options = {"max_metric_calls": 100, **options}
    with using(engine or Engine(probabilities=shy)):
        chosen, optimizer = every_function.compiled(kind, metric, program or student(), trainset, **options)
    return chosen, optimizer.report


def scored(engine, program, dataset=RARE):
    with using(engine):
        evaluation = evaluate_programs(
            {"program": program}, F1("positive"), dataset, **every_function.QUIET
        )
        return evaluation.programs["program"].score


def calibrated(engine, trainset=RARE, *, num_inputs=100):
    """Return the calibrated student, and the scores of all alternatives."""
    optimizer = BatchCalibration(metric=F1("positive"), num_inputs=num_inputs, display_progress=False)
    with using(engine):
        return optimizer.compile(student(), trainset=trainset), optimizer.report.scores


@pytest.mark.parametrize(
    ("metric", "signal"),
    [
        (F1("positive"), "score"),
        (F1("positive"), "auto"),
        (plr_dspy.MatthewsCorrelation(), "auto"),
        (plr_dspy.BalancedAccuracy(), "score"),
        (ConfusionMetric(cost, field="label", bounds=(-9.0, 0.0)), "score"),
        (ConfusionMetric(F1("positive").value), "auto"),
    ],
    ids=repr,
)
def test_finds_an_order_that_answers_the_rare_label(metric, signal):
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


@pytest.mark.parametrize(
    "options", [{"signal": "score"}, {"signal": "logprobs"}, {"calibrate": True}], ids=str
)
def test_the_search_alternates_labels_even_if_one_is_rare(options):
    engine = Engine(probabilities=shy)
    _, report = compiled(PLReorder, F1("positive"), engine=engine, **options)
    searched = engine.prompts[: report.program_calls["search"]]
    assert 0.4 < np.mean([number(engine.shown(prompt)[1]) % 2 for prompt in searched]) < 0.6


@pytest.mark.parametrize("signal", ["score", "logprobs"])
def test_equal_answers_are_no_evidence_even_if_their_weights_differ(signal):
    def probabilities(demos, text):
        is_positive = number(text) % 2 or number(text) % 7 == 0
        return two(2.0 if is_positive else -2.0)

    engine = Engine(probabilities=probabilities)
    options = {"engine": engine, "signal": signal, "max_metric_calls": 60}
    _, report = compiled(PLReorder, F1("positive"), **options)
    assert report.evidence.num_met > 0
    assert report.evidence.num_differing == 0
    for candidate in report.candidates:
        assert 0.0 <= candidate.score <= 1.0
        assert candidate.expected_gain == 0.0


def test_calibration_weights_labels_by_their_shares():
    """The offsets equal those of batch calibration over all examples."""

    def unsure(demos, text):
        own = 0.3 if number(text) % 2 else -2.7
        return two(own + 0.6 * normal(text) + 0.2 * normal(f"{demos} {text}"))

    options = {"engine": Engine(probabilities=unsure), "calibrate": True, "max_metric_calls": 150}
    _, report = compiled(PLReorder, F1("positive"), **options)
    log_probabilities = np.log([unsure([], example.text) for example in RARE])
    offsets = batch_offsets(log_probabilities, prior=report.calibration.shares)
    assert report.calibration.offsets == pytest.approx(offsets, abs=0.05)


def test_reports_contain_values_of_the_metric_itself():
    """The metric is computed on all examples that both programs answered."""
    program, report = compiled(
        PLReorder, F1("positive"), program=rare_first(), seed=1, max_metric_calls=150
    )
    c = report.comparison
    assert "F1(label='positive'" in report.details()
    chosen = max(report.candidates, key=lambda candidate: candidate.expected_gain)
    assert report.candidates[0].score == c.original
    assert chosen.score == c.chosen
    assert c.probability >= 0.975 or c.gain_interval[0] <= 0.0
    # The model's linear gain would be too small by a third, because the original's value is 0.
    assert c.expected_gain <= c.gain
    assert c.expected_chosen[0] == pytest.approx(scored(Engine(probabilities=shy), program), abs=0.1)
    assert all(-1.0 <= value <= 1.0 for value in (*c.interval, *c.gain_interval))
    # No score is below 0, so the lower bound of the gain is at most that of the chosen score.
    assert c.gain_interval[0] <= c.expected_chosen[1] + 1e-6
    for iteration in report.history:
        assert 0.0 <= iteration.best_score <= 1.0
        assert 0.0 <= iteration.best_score_so_far <= 1.0


def by_length(demos, text):
    return two(len(text) % 2 - 1.0)


@pytest.mark.parametrize(("probabilities", "calibrate", "seed"), [(shy, True, 1), (by_length, False, 1)])
def test_a_report_has_a_single_score_for_each_program(probabilities, calibrate, seed):
    options = {"calibrate": calibrate, "seed": seed, "max_metric_calls": 100, "max_demos": 3}
    _, report = compiled(PLFewShot, F1("positive"), engine=Engine(probabilities=probabilities), **options)
    c = report.comparison
    (returned,) = (entry for entry in report.front if entry.is_returned)
    assert returned.score == pytest.approx(c.expected_chosen[0], abs=1e-5)
    stays = returned.ordering == {slot.predictor: slot.original for slot in report.slots}
    if stays and not (report.calibration and report.calibration.applied):
        assert returned.score == pytest.approx(c.expected_original[0], abs=1e-5)
        for candidate in report.candidates[1:]:
            assert candidate.expected_gain <= 0 or candidate.probability < 3.0 * candidate.probability_worse


def test_calibration_predicts_a_label_that_no_order_answers():
    def timid(demos, text):
        odd = int(text.split()[-1]) % 2
        return two(odd - 3.0 + 0.7 * normal(text) + 0.2 * normal(f"{demos}{text}"))

    options = {"engine": Engine(probabilities=timid), "calibrate": True, "seed": 4, "max_metric_calls": 300}
    program, _ = compiled(PLReorder, F1("positive"), **options)
    assert scored(options["engine"], student()) == 0.0
    assert scored(options["engine"], program) > 0.25


def test_the_originals_expected_score_is_based_on_its_own_answers():
    """The original predicts the rare label for nearly every text."""

    def eager(demos, text):
        if number(demos[-1]) % 2:
            return two(6 * (number(text) % 2) - 3)
        return two(-2.0 if number(text) % 7 == 0 else 1.0)

    program = rare_first()
    engine = Engine(probabilities=eager)
    options = {"engine": engine, "program": program, "signal": "score", "max_metric_calls": 150}
    _, report = compiled(PLReorder, F1("positive"), **options)
    value = scored(engine, program)
    assert value > 0.15
    assert report.comparison.expected_original[0] == pytest.approx(value, abs=0.06)
    assert report.comparison.expected_chosen[0] > 0.7


def test_reports_advise_calibration_if_the_rare_label_is_never_answered():
    """After calibration, nearly all answers are correct."""
    engine = Engine(probabilities=lambda demos, text: two(3.0 * (int(text.split()[-1]) % 2) - 5.0))
    _, report = compiled(PLReorder, F1("positive"), engine=engine)
    effect = report.calibration
    assert effect.original == report.comparison.expected_chosen[0] == 0.0
    assert 0.8 < effect.original_calibrated <= 1.0
    assert "use BatchCalibration(metric=F1(label='positive'" in str(report)


@pytest.mark.parametrize("demos", ["retrieved", "auto"])
def test_calibrated_answers_with_retrieved_demos_match_the_returned_program(demos):
    """Without calibration, the model never predicts the rare label."""

    def timid(shown, text):
        of_demos = sum(number(demo) % 2 for demo in shown)
        return two(of_demos + 0.5 * (number(text) % 2) - 6.0)

    known = []
    for i in range(160):
        rare = i % 4 == 0
        word = "lovely" if rare else "awful"
        known.append(labeled(f"{word} {2 * i + rare}", LABELS[rare]))
    engine = Engine(probabilities=timid)
    options = {"max_demos": 4, "demos": demos, "candidates": "labeled"}
    options |= {"engine": engine, "program": student(demos=()), "trainset": known[:100], "calibrate": True}
    chosen, report = compiled(PLFewShot, F1("positive"), **options)
    value = scored(engine, chosen, known[100:])
    assert value >= report.comparison.expected_chosen[1]
    assert report.comparison.chosen > 0.8


class TestBatchCalibration:
    def test_chooses_the_label_shares_that_score_best(self):
        """The engine is biased towards the frequent label."""
        lean = lambda text: -0.5 if number(text) % 2 else -4.5  # noqa: E731
        engine = Engine(probabilities=lambda demos, text: two(lean(text)))
        program, accuracies = calibrated(engine)
        value = scored(engine, program)
        assert accuracies["as it is"] == 0.0
        assert accuracies["always 'positive'"] == pytest.approx(2 * 0.1 / 1.1, abs=0.02)
        assert value > 0.9
        assert max(accuracies.values()) == pytest.approx(value, abs=0.1)
        always_right = Engine(probabilities=lambda demos, text: two(3.0 if number(text) % 2 else -3.0))
        program, accuracies = calibrated(always_right)
        assert program.calibration is None
        assert accuracies["as it is"] == 1.0
        _, accuracies = calibrated(always_right, num_inputs=2)
        assert accuracies["as it is"] == 1.0, "even a few inputs must include the label of the metric"

    def test_alternates_labels_and_weights_them_by_their_shares(self):
        """One of twenty examples is positive, but the model predicts "positive" for five of twenty."""
        texts = [f"text {2 * i + (i % 20 == 0)}" for i in range(400)]
        known = [labeled(text, LABELS[number(text) % 2]) for text in texts]

        def probabilities(demos, text):
            is_positive = number(text) % 2 or number(text) // 2 % 5 == 1
            return two(2.0 if is_positive else -2.0)

        engine = Engine(probabilities=probabilities)
        _, accuracies = calibrated(engine, known, num_inputs=40)
        assert np.mean([number(engine.shown(prompt)[1]) % 2 for prompt in engine.prompts]) == 0.5
        assert accuracies["as it is"] == pytest.approx(scored(engine, student(), known), abs=0.1)
        assert accuracies["always 'positive'"] == pytest.approx(2 * 0.05 / 1.05)


def test_headroom_and_the_paper_accept_metrics_over_a_set(caplog):
    """With auto="paper", programs are compared only on the selection split."""
    engine = Engine(probabilities=lambda demos, text: two(2.0 if number(text) % 4 != 2 else -2.0))
    known = scored(engine, student())
    engine.prompts.clear()
    engine.asked.clear()
    with using(engine):
        result = headroom(student(), F1("positive"), RARE, max_metric_calls=200)
    assert result.num_examples == 20
    # Labels alternate until the 8 rare examples that are not demos run out.
    assert np.mean([number(engine.shown(prompt)[1]) % 2 for prompt in engine.prompts]) == 8 / 20
    assert result.score == pytest.approx(known, abs=0.15)
    # All positive examples are scored in one split, so no warning says that there are only a few.
    assert "only" not in caplog.text
    options = {"auto": "paper", "num_iterations": 2, "num_samples": 4, "num_final_draws": 2}
    _, report = compiled(PLReorder, F1("positive"), max_metric_calls=None, **options)
    assert report.comparison.num_examples == report.settings["num_selection"]


def test_a_log_of_a_metric_by_example_is_rejected(tmp_path):
    """The log of a metric by example does not contain predicted labels."""
    compiled(PLReorder, exact, log_dir=tmp_path)
    message = "log_dir must hold calls with predicted labels; .* pass another log_dir"
    with pytest.raises(ValueError, match=message):
        compiled(PLReorder, F1("positive"), log_dir=tmp_path, accept_changes=True)


def test_labels_that_the_program_cannot_answer_are_rejected_before_any_call():
    trainset = [labeled(example.text, example.label.title()) for example in RARE]
    engine = Engine(probabilities=shy)
    message = r"(?s)first value is 'Positive'.*no answer can be correct"
    with pytest.raises(ValueError, match=message):
        options = {"engine": engine, "trainset": trainset, "signal": "score"}
        compiled(PLReorder, F1("Positive"), **options)
    assert not engine.prompts


class TestBadInput:
    """Bad metrics, and metric functions that raise errors."""

    def test_metrics_that_do_not_fit_the_outputs_are_rejected(self):
        engine = Engine()
        message = r"the field 'mood' .* the program's outputs are \['label'\].*pass that name"
        with pytest.raises((ValueError, KeyError), match=message):
            compiled(PLReorder, F1("positive", field="mood"), engine=engine)
        assert not engine.prompts

    @pytest.mark.parametrize("kind", [PLReorder, PLFewShot])
    def test_a_function_that_raises_ends_the_compile(self, kind):
        """The report includes the calls made before the error."""

        def broken(counts, labels):
            predicted = counts.sum(axis=0) > 0
            if predicted.sum() > 1 and counts[0, 1] + counts[1, 0] > 0:
                raise LookupError("no such table")
            return 0.5

        options = {"max_metric_calls": 60, "num_threads": 1, "display_progress": False}
        optimizer = kind(ConfusionMetric(broken), **options)
        with using(Engine(probabilities=shy)), pytest.raises(LookupError, match="no such table"):
            optimizer.compile(student(), trainset=RARE)
        assert optimizer.report.program_calls["total"] > 0
        assert optimizer.best_program is not None


@pytest.mark.parametrize("seed", [2, 4])
def test_min_probability_does_not_change_the_estimated_probability(seed):
    options = {"engine": Engine(), "trainset": EXAMPLES, "signal": "score", "max_metric_calls": 60}
    comparisons = []
    for least in (0.5, 0.9):
        _, report = compiled(PLFewShot, F1("positive"), seed=seed, min_probability=least, **options)
        comparisons.append(report.comparison)
    for c, least in zip(comparisons, (0.5, 0.9), strict=True):
        if c.expected_gain > 0:
            assert c.probability >= least
            assert c.probability == comparisons[0].probability
            assert c.expected_chosen[0] == pytest.approx(c.expected_original[0] + c.expected_gain)
        else:
            assert c.expected_chosen[0] == c.expected_original[0]


@pytest.mark.parametrize(("calibrate", "num_seeds"), [(True, 1), (False, 4)])
def test_an_unchanged_value_of_the_metric_is_no_gain(calibrate, num_seeds):
    options = {"demos": "retrieved", "max_metric_calls": 100, "calibrate": calibrate}
    alike = []
    for seed in range(num_seeds):
        report = compiled(PLFewShot, F1("positive"), engine=Engine(), seed=seed, **options)[1]
        promising = [c for c in report.candidates if c.expected_gain > 0]
        assert all(candidate.probability > 0 for candidate in promising)
        if report.comparison.gain == 0.0:
            alike.append(report.comparison)
    assert alike or calibrate  # With calibration, two programs seldom have the same value.
    assert all(c.expected_gain == c.probability == 0.0 for c in alike)


def test_four_examples_of_a_label_are_not_enough_to_claim_a_gain():
    """The order of demos has no effect, but many orders look good by chance."""
    labels = ["b"] * 4 + ["a"] * 36
    trainset = [dspy.Example(number=i, label=label).with_inputs("number") for i, label in enumerate(labels)]
    inner = dspy.Predict("number -> label")
    sure = []
    inner.demos = [dspy.Example(number=i, label="ab"[i % 2]) for i in range(-6, 0)]
    for seed in range(9, 22, 3):

        def answer(self, number, seed=seed):
            call = f"{seed} {[demo.number for demo in self.predict.demos]} {number}"
            right = digest(call) < 0.25 + 0.6 * digest(f"{seed} {number}")
            return dspy.Prediction(label="ab"[(labels[number] == "a") != right])

        optimizer = PLReorder(plr_dspy.BalancedAccuracy(), max_metric_calls=300, display_progress=False)
        with using(Engine()):
            optimizer.compile(Program(answer, predict=inner), trainset=trainset)
        sure.append(optimizer.report.comparison.probability)
    assert max(sure) < 0.9
    assert any(probability > 0 for probability in sure)
