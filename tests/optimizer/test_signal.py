"""The learning signal of PLReorder: scores alone, or scores and log-probabilities."""

import time

import dspy
import label_world
import pytest
from fakes import Program, digest, failure
from label_engines import REFUSAL
from label_world import DEMOS, EXAMPLES, KIND, Engine, comparable, exact, go, labeled, number, student

from plr_dspy.labels.reader import NoProbabilities

SILENCE = "fake/x returns no log-probabilities"
ALONE = "the metric raises TypeError for a prediction whose only field is 'label'"
SEVERAL = "the program calls its classifier several times per answer"
NO_LABEL = "None is the right value of 'label' in some examples, and has no log-probability"
SOME_WITHOUT_LABEL = [*EXAMPLES[:50], *(labeled(example.text, None) for example in EXAMPLES[50:])]
PAPER = {"auto": "paper", "max_metric_calls": 300, "num_samples": 3, "num_final_draws": 2}


class TestWithoutLogProbabilities:
    @pytest.mark.parametrize(
        ("reason", "engine", "options"),
        [
            (SILENCE, {"logprobs": False}, {}),
            (SILENCE, {"logprobs": False}, {"program": student(demos=[]), "num_demos": 4}),
            ("fake/x rejects requests for log-probabilities", {"refusal": REFUSAL}, {}),
            ("auto='paper' learns only from scores, as in the paper", {}, PAPER),
            (ALONE, {}, {"metric": label_world.whole_prediction}),
            ("the metric calls a language model", {}, {"metric": label_world.judged}),
            ("no output is a Literal, an enum or a bool", {}, {"program": student(str)}),
            ("the first calls failed", {}, {"failing": (0, 1), "max_errors": 5}),
            (SEVERAL, {}, {"program": label_world.twice()}),
            (NO_LABEL, {}, {"program": student(KIND | None), "trainset": SOME_WITHOUT_LABEL}),
        ],
    )
    def test_calls_and_result_are_the_same_as_in_a_search_by_scores(self, reason, engine, options):
        """A rejected request for log-probabilities is repeated without them, as part of the same program call."""
        engine = Engine(**engine)
        other = Engine()
        failing = options.get("failing", ())
        options = {"max_metric_calls": 60, **options}
        options.pop("failing", None)
        for one in (engine, other):
            one.at = dict.fromkeys(failing, failure)
        program, report = go(engine, **options)
        expected, plain = go(other, signal="score", **options)
        refused = engine.refusal is not None
        assert engine.prompts[refused:] == other.prompts
        assert sum(map(bool, engine.asked)) == (len(failing) or 1) or not (refused or reason == SILENCE)
        for one, two in zip(program.predictors(), expected.predictors(), strict=True):
            assert [demo["text"] for demo in one.demos] == [demo["text"] for demo in two.demos]
        assert comparable(report, "signal") == comparable(plain, "signal")
        assert report.signal.used == "score"
        assert report.signal.labels == []
        assert report.signal.reason == reason
        assert f"learned from scores alone: {reason}" in report.details()
        assert plain.signal.used == "score"
        assert plain.signal.reason == ""
        assert "learned from" not in plain.details()

    def test_impossible_signals_are_rejected_before_any_call(self):
        for options, reason in [
            ({"program": student(str)}, "no output is a Literal, an enum or a bool"),
            ({"metric": label_world.whole_prediction}, "the metric raises TypeError for a prediction"),
            ({"metric": label_world.judged}, "calls a language model"),
        ]:
            engine = Engine()
            for option in ({"signal": "logprobs"}, {"calibrate": True}):
                (name,) = option
                message = rf"{name}.* needs the log-probabilities .*{reason}"
                with pytest.raises(ValueError, match=message):
                    go(engine, **option, **options)
            assert not engine.prompts

    @pytest.mark.parametrize("refusal", [None, REFUSAL])
    @pytest.mark.parametrize("option", [{"signal": "logprobs"}, {"calibrate": True}])
    def test_an_endpoint_without_them_raises_an_error_after_one_call(self, refusal, option):
        engine = Engine(logprobs=False, refusal=refusal)
        (name,) = option
        with pytest.raises(NoProbabilities, match=rf"{name}.* needs .*fake/x"):
            go(engine, **option)
        assert len(engine.prompts) == 1 + (refusal is not None)

    @pytest.mark.parametrize("option", [{"signal": "logprobs"}, {"calibrate": True}])
    def test_certain_labels_do_not_show_that_an_endpoint_returns_them(self, option):
        engine = Engine(probabilities=lambda demos, text: [1.0, *(0.0 for _ in label_world.LABELS[1:])])
        with pytest.raises(NoProbabilities, match="fake/x returns no log-probabilities"):
            go(engine, **option)
        assert len(engine.prompts) == 1


def test_both_signals_use_log_probabilities_and_can_share_a_log_dir(tmp_path):
    engine = Engine()
    for signal in ("auto", "logprobs"):
        _, report = go(engine, max_metric_calls=80, signal=signal, log_dir=tmp_path)
        found = report.signal
        assert found.used == "logprobs"
        assert found.reason == ""
        assert found.labels == label_world.LABELS
        assert "learned from scores and label probabilities" in report.details()
        assert len(engine.prompts) == report.program_calls["total"]


def some(name, share):
    return [number for number in range(1, 200) if digest(f"{name} {number}") < share]


@pytest.mark.parametrize(
    "options",
    [
        {"program": student(demos=[]), "num_demos": 4},
        {"trainset": EXAMPLES[::2]},
        {"trainset": EXAMPLES[:10]},
        {"program": student(demos=DEMOS[:3]), "max_metric_calls": 150},
        {"metric": lambda example, prediction: 0.5 + 0.5 * exact(example, prediction)},
        {"metric": lambda example, prediction: example.text == "text 7" or exact(example, prediction)},
        {"at": dict.fromkeys(some("fails", 0.2), failure), "max_errors": 1000},
        {"at": {0: failure}, "max_errors": 5},
        {"silent": set(some("silent", 0.4))},
    ],
)
def test_log_probabilities_are_used_for_various_programs_metrics_and_failures(options):
    engine = Engine()
    options = {"max_metric_calls": 60, **options}
    engine.at = options.pop("at", {})
    engine.silent = options.pop("silent", set())
    _, report = go(engine, **options)
    assert len(engine.prompts) == report.program_calls["total"]
    assert all(engine.asked)
    assert report.signal.used == "logprobs", report.signal
    assert bool(report.errors) == bool(engine.at)


def test_answers_without_a_model_call_are_not_conclusive():
    """The program answers every other text, or all texts, without calling its model.

    For the first text, the program calls its model with seed 2, but not with seed 1.
    """

    def signal(seed=0, every=False):
        def ruled(self, text):
            silent = number(text) % 2 or every
            return dspy.Prediction(label=label_world.LABELS[0]) if silent else self.classify(text=text)

        return go(Engine(), program=Program(ruled, classify=student()), max_metric_calls=60, seed=seed)[
            1
        ].signal

    assert {signal(seed).used for seed in (1, 2)} == {"logprobs"}
    assert signal(every=True).reason == "the program answered without calling its classifier"


@pytest.mark.parametrize(("logprobs", "fails"), [(True, False), (False, True)])
def test_the_first_call_counts_towards_the_time_limit(logprobs, fails):
    """No call begins after the time limit."""

    def slow():
        time.sleep(0.6)
        if fails:
            failure()

    engine = Engine(logprobs=logprobs)
    engine.at = {0: slow}
    _, report = go(engine, max_seconds=0.5, max_errors=5)
    assert len(engine.prompts) == 1
    assert "time" in report.stopped
