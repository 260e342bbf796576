"""Choosing among whole programs: which programs and examples are allowed, and limits on calls."""

import re
import threading
from collections import Counter

import choosing as benchmark
import dspy
import numpy as np
import pytest
from fakes import Program, digest, failure, interrupt, using
from label_engines import LABELS, classifier
from label_world import DEMOS, EXAMPLES, Engine, exact, found, student

from plr_dspy import (
    F1,
    BatchCalibration,
    CalibratedProgram,
    PLFewShot,
    PLReorder,
    Report,
    choose_program,
    evaluate_programs,
    load_program,
)
from plr_dspy.baselines import TopKOrder
from plr_dspy.programs.rivals import Rival
from plr_dspy.report.stop import StopReason

LEANING = [demo for demo in DEMOS if demo.label == "negative"]


def programs():
    """Return three programs, of which "even" is the best."""
    return {"leaning": student(demos=LEANING), "even": student(), "no demos": student(demos=[])}


def chosen(engine, candidates=None, metric=exact, trainset=EXAMPLES, **options):
    options = {"num_threads": 1, "display_progress": False, **options}
    with using(engine, "fake/x"):
        return choose_program(programs() if candidates is None else candidates, metric, trainset, **options)


class TestChoice:
    @pytest.mark.parametrize("metric", [exact, F1("positive"), F1()])
    def test_the_best_program_is_returned_unchanged_with_a_report(self, metric, tmp_path):
        candidates = programs()
        choice = chosen(Engine(), candidates, metric)
        report = choice.report
        assert choice.name == report.returned.name != "leaning"
        assert report.original.name == "leaning"
        assert choice.program is not candidates[choice.name]
        assert choice.program.dump_state() == programs()[choice.name].dump_state()
        assert all(
            program.dump_state() == programs()[name].dump_state() for name, program in candidates.items()
        )
        assert choice.program.reorder_report == report.to_dict()
        assert not report.original_stays
        assert {way.name for way in report.programs} == set(candidates)
        assert f"returned program '{choice.name}'" in str(report)
        assert f"load_program and a program built like '{choice.name}'" in str(report)
        compared = {
            "leaning": report.comparison.expected_original,
            choice.name: report.comparison.expected_chosen,
        }
        for way in report.programs:
            if way.name in compared:
                assert (way.score, *way.interval) == pytest.approx(compared[way.name], abs=1e-5)
        report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == report
        choice.program.save(tmp_path / "program.json")

    def test_the_baseline_is_kept_unless_another_program_is_probably_better(self):
        candidates = {"even": student(), "leaning": student(demos=LEANING)}
        choice = chosen(Engine(), candidates)
        assert choice.name == "even"
        assert choice.report.original_stays
        assert "no other program is expected to do better" in str(choice.report)

    def test_programs_may_differ_in_modules_fields_and_models(self):
        """Each program is called unchanged."""
        own = Engine()
        other = classifier()
        other.set_lm(own.lm("fake/own"))
        wrapped = Program(
            lambda self, text: self.inner(text=text), inner=dspy.ChainOfThought(classifier().signature)
        )
        choice = chosen(Engine(), {"bare": student(demos=[]), "own": other, "wrapped": wrapped})
        assert len(own.prompts) >= 10
        assert len(choice.report.programs) == 3

    @pytest.mark.parametrize("optimizer", [None, PLReorder, PLFewShot])
    @pytest.mark.parametrize("kind", [lambda predictor: predictor, CalibratedProgram])
    @pytest.mark.parametrize(
        ("signature", "message"),
        [
            ("text -> mood: bool", r"must have the outputs of .*'label'"),
            ("headline -> label: bool", r"must have the inputs \['headline'\]"),
        ],
    )
    def test_programs_with_other_fields_are_rejected_before_any_call(
        self, optimizer, kind, signature, message
    ):
        engine = Engine()
        other = kind(dspy.Predict(signature))
        with using(engine, "fake/x"), pytest.raises(ValueError, match=message):
            if optimizer is None:
                choose_program({"own": student(), "other": other}, exact, EXAMPLES)
            else:
                optimizer(exact).compile(student(), trainset=EXAMPLES, programs={"other": other})
        assert not engine.prompts

    def test_identical_programs_are_scored_once(self, caplog):
        engine = Engine()
        choice = chosen(engine, [student(), student(demos=LEANING), student()])
        assert "'program 3' and 'program 1' are the same program" in caplog.text
        assert {way.name for way in choice.report.programs} == {"program 1", "program 2"}
        assert max(Counter(engine.prompts).values()) == 1
        engine = Engine()
        same = chosen(engine, [student(), student()])
        assert same.name == "program 1"
        assert same.report.stopped == "all programs are identical"
        assert not engine.prompts

    def test_private_values_and_model_addresses_distinguish_programs(self):
        class Styled(dspy.Module):
            def __init__(self, style, key="k1"):
                super().__init__()
                self._style = style
                self._api_key = key
                self.inner = classifier()

        def digest_at(address):
            program = classifier()
            program.set_lm(dspy.LM("openai/local", api_base=address, api_key="k"))
            return Rival("a", program).digest

        assert Rival("a", Styled("plain")).digest == Rival("b", Styled("plain", key="k2")).digest
        assert Rival("a", Styled("plain")).digest != Rival("b", Styled(["plain", 2])).digest
        assert digest_at("http://a:8000/v1") != digest_at("http://b:8000/v1")
        assert digest_at("http://me:secret@a:8000/v1") == digest_at("http://a:8000/v1?key=1")

    def test_retrieving_and_calibrated_programs_can_compete(self, tmp_path):
        """An example is never retrieved as a demo for itself."""
        engine = Engine()
        with using(engine, "fake/x"):
            finding = PLFewShot(exact, demos="retrieved", max_metric_calls=0, display_progress=False)
            finding.compile(student(demos=[]), trainset=EXAMPLES).save(tmp_path / "finds.json")
            finds = load_program(student(demos=[]), tmp_path / "finds.json")
            calibrated = BatchCalibration(display_progress=False).compile(student(), trainset=EXAMPLES)
        choice = chosen(engine, {"bare": student(demos=[]), "finds": finds, "calibrated": calibrated})
        assert len(choice.report.programs) == 3
        assert "\n  finds, 8 demos " in str(choice.report)
        for texts in engine.prompts:
            demos, text = Engine.shown(texts)
            assert text not in demos

    def test_an_example_is_never_its_own_demo_in_a_plain_thread(self, caplog):
        def in_thread(self, text):
            answers = []
            lm = dspy.settings.lm

            def answer():
                with dspy.context(lm=lm):
                    answers.append(self.inner(text=text))

            thread = threading.Thread(target=answer)
            thread.start()
            thread.join()
            return answers[0]

        engine = Engine()
        with using(engine, "fake/x"):
            retrieved = PLFewShot(exact, demos="retrieved", max_metric_calls=0, display_progress=False)
            finds = retrieved.compile(student(demos=[]), trainset=EXAMPLES)
            threaded = {"finds": Program(in_thread, inner=finds)}
            evaluate_programs({"directly": finds, **threaded}, exact, EXAMPLES, display_progress=False)
        assert "as demos" not in caplog.text
        assert any(Engine.shown(texts)[0] for texts in engine.prompts)
        chosen(engine, {"bare": student(demos=[]), **threaded})
        for texts in engine.prompts:
            demos, text = Engine.shown(texts)
            assert text not in demos
        chosen_program = chosen(engine, {"finds": finds, "bare": student(demos=[])}).program
        assert not chosen_program.retrieval.guarded

    def test_demos_of_any_program_are_not_scored(self):
        engine = Engine()
        shown = EXAMPLES[:5]
        hidden = Program(lambda self, text: self.inner(text=text), inner=student(demos=shown))
        hidden.inner._compiled = True
        choice = chosen(
            engine, {"even": student(), "copies": hidden}, valset=EXAMPLES[40:], trainset=EXAMPLES[:40]
        )
        asked = {Engine.shown(texts)[1] for texts in engine.prompts}
        assert not asked & {example.text for example in shown}
        assert choice.report.settings["num_train"] == len(EXAMPLES) - 5


class TestLimits:
    @pytest.mark.parametrize("budget", [9, 50, 100, None])
    def test_calls_are_counted_and_threads_do_not_change_the_result(self, budget):
        engine = Engine()
        report = chosen(engine, num_threads=8, max_metric_calls=budget).report
        assert found(report) == found(chosen(Engine(), max_metric_calls=budget).report)
        assert len(engine.prompts) == report.program_calls["total"] <= (budget or 3 * len(EXAMPLES))
        assert max(Counter(engine.prompts).values()) == 1

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"max_metric_calls": 50}, StopReason.BUDGET),
            ({"max_metric_calls": 60}, StopReason.BUDGET),
            ({"max_seconds": 75}, StopReason.TIME),
            ({"max_metric_calls": 3 * len(EXAMPLES)}, StopReason.ALL_EXAMPLES),
        ],
    )
    def test_the_report_names_the_limit_that_ended_the_race(self, options, reason, monkeypatch):
        engine = Engine()
        monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", lambda: float(len(engine.prompts)))
        report = chosen(engine, min_probability=0.999, **options).report
        assert report.stop_reason is reason

    def test_a_higher_min_probability_does_not_need_fewer_calls(self):
        sure = chosen(Engine(), min_probability=0.97).report
        assert sure.program_calls["total"] >= chosen(Engine()).report.program_calls["total"]

    def test_the_time_limit_is_kept(self, monkeypatch):
        engine = Engine()
        monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", lambda: float(len(engine.prompts)))
        report = chosen(engine, max_seconds=75).report
        assert len(engine.prompts) == report.program_calls["total"] <= 75
        assert report.comparison is not None

    @pytest.mark.parametrize("how", [interrupt, failure])
    def test_a_stopped_race_resumes_and_accepts_further_programs(self, how, tmp_path):
        engine = Engine()
        options = {"log_dir": tmp_path, "max_errors": 1, "num_threads": 2}
        for further in (0, 3, 25):
            engine.at = dict.fromkeys(range(len(engine.prompts) + further, 1_000), how)
            with pytest.raises((KeyboardInterrupt, ConnectionError, dspy.LMError)):
                chosen(engine, **options)
        engine.at = {}
        report = chosen(engine, **options).report
        assert report.program_calls["resumed"] > 20
        if how is interrupt:
            assert found(report) == found(chosen(Engine()).report)
            assert len(engine.prompts) <= report.program_calls["total"] + 2 * 3
        assert Report.load(tmp_path / "report.json") == report
        more = {**programs(), "fewer": student(demos=DEMOS[1:3])}
        calls = chosen(engine, more, **options).report.program_calls
        assert 0 < calls["resumed"] < calls["total"]
        with pytest.raises(ValueError, match=r"metric changed"):
            chosen(engine, metric=lambda example, prediction: 1.0, **options)

    def test_a_program_with_unparsable_replies_loses(self):
        def unreadable(self, text):
            raise dspy.AdapterParseError("ChatAdapter", self.inner.signature, "mumble")

        mumbling = Program(unreadable, inner=student())
        choice = chosen(Engine(), {"mumbling": mumbling, **programs()})
        assert choice.name != "mumbling"
        other = Program(unreadable, inner=student(demos=[]))
        with pytest.raises(RuntimeError, match="10 of 10 answers could not be parsed"):
            chosen(Engine(), {"mumbling": mumbling, "other": other})

    def test_equal_scores_at_first_do_not_end_a_race(self):
        scores = np.ones((3, 200))
        scores[:2, 25::5] = 0.0
        outcome = benchmark.race(benchmark.World(scores.mean(axis=1), scores)).run()
        assert outcome.stop.reason is StopReason.DECIDED
        assert outcome.decision.ordering.number == 2

    def test_the_reason_for_an_early_end_says_if_no_score_differed(self):
        """Programs that differ by 5 points agree on many examples, but are still told apart."""
        equal = np.tile(np.arange(200) % 3 > 0, (2, 1)).astype(float)
        outcome = benchmark.race(benchmark.World(equal.mean(axis=1), equal)).run()
        num_examples = outcome.program_calls["total"] // 2
        assert 20 <= num_examples < 100
        reason = f"all programs had equal scores on all {num_examples} examples"
        share_of_new = "so their scores probably differ on less than (.*)% of new examples"
        consequence = f"{share_of_new}, and {StopReason.DECIDED.value}"
        share = re.fullmatch(f"{reason}, {consequence}", str(outcome.stop))
        assert float(share.group(1)) == pytest.approx(300 / num_examples, rel=0.1)  # the rule of three
        for seed in range(10):
            better = equal.copy()
            better[
                1, np.random.default_rng(seed).choice(np.flatnonzero(equal[0] == 0), 10, replace=False)
            ] = 1.0
            outcome = benchmark.race(benchmark.World(better.mean(axis=1), better)).run()
            assert outcome.decision.ordering.number == 1
            assert "equal scores" not in str(outcome.stop)

    def test_the_reason_does_not_ignore_programs_that_dropped_out(self):
        equal = np.tile(np.arange(200) % 3 > 0, (3, 1)).astype(float)
        equal[2] *= np.arange(200) % 2
        outcome = benchmark.race(benchmark.World(equal.mean(axis=1), equal)).run()
        assert "all remaining programs had equal scores on" in str(outcome.stop)

    def test_failed_calls_differ_from_scored_calls(self):
        """A program that always fails drops out at once, so the race ends early."""

        def broken(self, text):
            raise LookupError(text)

        pair = {"works": student(), "broken": Program(broken, inner=student())}
        report = chosen(Engine(), pair, max_errors=200).report
        assert report.stop_reason is StopReason.DECIDED
        assert report.program_calls["total"] < 2 * len(EXAMPLES)
        assert "equal scores" not in report.stopped

    def test_one_of_many_equal_programs_is_found_if_it_is_better_on_few_examples(self):
        """The last program is better on 5% of examples. In a third of these worlds, 20 examples show no difference."""
        num_right = 0
        for seed in range(20):
            rng = np.random.default_rng(seed)
            scores = np.tile(rng.random(200) < 0.7, (5, 1)).astype(float)
            scores[-1] = np.maximum(scores[-1], rng.random(200) < 0.05 / 0.3)
            outcome = benchmark.race(benchmark.World(scores.mean(axis=1), scores)).run()
            num_right += outcome.decision.ordering.number == 4
        assert num_right >= 17

    def test_a_later_race_with_fewer_examples_reuses_calls(self, tmp_path):
        options = {"log_dir": tmp_path, "max_metric_calls": 60}
        first = chosen(Engine(), **options).report
        with_demos = {**programs(), "shows more": student(demos=EXAMPLES[:2])}
        later = chosen(Engine(), with_demos, log_dir=tmp_path, max_metric_calls=80).report
        assert later.program_calls["resumed"] >= 0.75 * first.program_calls["total"]

    def test_an_error_names_the_program_that_raised_it(self, caplog):
        def broken(self, text):
            raise LookupError(text)

        with pytest.raises(LookupError) as caught:
            chosen(Engine(), {**programs(), "broken": Program(broken, inner=student())}, max_errors=3)
        assert "of program 'broken' on trainset[" in caught.value.__notes__[0]
        assert "the call of program 'broken' on trainset[" in caplog.text

    def test_a_program_that_fails_loses(self):
        def broken(self, text):
            raise LookupError(text)

        choice = chosen(Engine(), {**programs(), "broken": Program(broken, inner=student())}, max_errors=200)
        assert choice.name != "broken"
        assert [error.type for error in choice.report.errors] == ["LookupError"]


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ({}, "the number of programs must be at least 2; got 0"),
        ([], "the number of programs must be at least 2; got 0"),
        ({"a": student()}, "the number of programs must be at least 2; got 1"),
        (student(), "programs must be a dict that maps names to programs"),
        ("ab", "programs must be a dict that maps names to programs"),
        ({"a": student(), "b": "saved.json"}, r"programs\['b'\] must be a dspy.Module; got str"),
        ([student(), dspy.Predict], r"programs\['program 2'\] must be a dspy.Module"),
        ({"a": student(), 2: student()}, "programs must have non-empty strings as names; got 2"),
        (
            {"a": student(), "b": dspy.Predict("question -> answer")},
            r"the inputs \['question'\] of programs\['b'\];",
        ),
        (
            {"b": dspy.Predict("question -> answer"), "a": student()},
            r"inputs \['question'\] of programs\['b'\];",
        ),
        (
            [student(), dspy.Predict("text -> label: Literal['A', 'B']")],
            r"no example has .*\['A', 'B'\] of programs\['program 2'\] in",
        ),
    ],
)
def test_bad_programs_are_rejected_before_any_call(candidates, message):
    engine = Engine()
    with pytest.raises((TypeError, ValueError), match=message):
        chosen(engine, candidates)
    assert not engine.prompts


def test_the_budget_must_allow_two_examples_per_program():
    with pytest.raises(ValueError, match="max_metric_calls must be at least 6 for 3 programs; got 5"):
        chosen(Engine(), max_metric_calls=5)


class TestUserPrograms:
    @pytest.mark.parametrize(
        ("kind", "signal", "metric"),
        [
            (PLFewShot, "auto", exact),
            (PLFewShot, "score", F1("positive")),
            (PLReorder, "score", exact),
            (PLReorder, "auto", F1("positive")),
        ],
    )
    def test_a_good_program_wins_and_the_report_names_it(self, kind, signal, metric):
        """The good program answers correctly without a model."""
        right = {example.text: example.label for example in EXAMPLES}
        good = Program(lambda self, text: dspy.Prediction(label=right[text]), inner=student(demos=[]))
        others = {"good": good, "fewer": student(demos=DEMOS[1:3])}
        optimizer = kind(metric, max_metric_calls=150, signal=signal, display_progress=False)
        with using(Engine(), "fake/x"):
            program = optimizer.compile(student(demos=LEANING), trainset=EXAMPLES, programs=others)
        assert optimizer.report.returned.name == "good"
        assert [way.name for way in optimizer.report.programs] == ["good", "fewer"]
        assert isinstance(program, Program)
        assert "returned program 'good'" in str(optimizer.report)

    @pytest.mark.parametrize("metric", [exact, F1("positive")])
    def test_a_result_of_the_search_is_also_compared_with_the_best_user_program(self, metric, tmp_path):
        """The user's other program is correct on two thirds of the examples."""
        right = {example.text: example.label for example in EXAMPLES}

        def forward(self, text):
            return dspy.Prediction(label="positive" if int(text.split()[-1]) % 3 else right[text])

        optimizer = PLFewShot(metric, max_metric_calls=600, signal="score", display_progress=False)
        with using(Engine(), "fake/x"):
            optimizer.compile(
                student(demos=LEANING),
                trainset=EXAMPLES,
                programs={"fair": Program(forward, inner=student(demos=[]))},
            )
        report = optimizer.report
        assert report.returned.name == ""
        assert report.over_best_own.name == "fair"
        assert report.over_best_own.chosen == pytest.approx(report.comparison.chosen)
        assert report.over_best_own.probability > 3 * report.over_best_own.probability_worse
        assert "gain over 'fair'" in str(report)
        (fair,) = report.programs
        gain = report.comparison.expected_chosen[0] - fair.score
        assert gain == pytest.approx(report.over_best_own.expected_gain, abs=1e-6)
        assert fair.interval[0] <= fair.score <= fair.interval[1]
        report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == report

    def test_the_report_says_why_a_result_of_the_search_is_not_returned(self):
        """The user's other program is correct on four fifths of the examples."""
        labels = {example.text: example.label for example in EXAMPLES}

        def forward(self, text):
            is_right = digest(text) > 0.2
            label = next(label for label in LABELS if (label == labels[text]) == is_right)
            return dspy.Prediction(label=label)

        options = {"max_metric_calls": 150, "signal": "score", "num_threads": 1, "seed": 3}
        optimizer = PLFewShot(exact, display_progress=False, **options)
        with using(Engine(), "fake/x"):
            optimizer.compile(
                student(demos=LEANING),
                trainset=EXAMPLES,
                programs={"fair": Program(forward, inner=student(demos=[]))},
            )
        report = optimizer.report
        rejected = report.rejected
        assert report.returned.name == "fair"
        assert rejected.name == ""
        assert rejected.probability_worse < rejected.probability < 3 * rejected.probability_worse
        assert (
            "'fair' is returned: the best result of the search is expected to score "
            f"{rejected.expected_gain:.3f} more, but this is too uncertain (better with probability "
        ) in str(report)
        assert "it must be at least 3 times as likely to be better as worse)" in str(report)

    @pytest.mark.parametrize(
        ("optimizer", "candidates", "message"),
        [
            (PLFewShot(exact), {"a": 1}, r"programs\['a'\] must be a dspy.Module"),
            (
                PLFewShot(exact),
                {"a": dspy.Predict("question -> answer")},
                r"\['question'\] of programs\['a'\];",
            ),
            (PLFewShot(exact), [], "the number of programs must be at least 1"),
            (PLFewShot(exact, calibrate=True), [student()], "omit calibrate"),
            (PLReorder(exact, auto="paper"), [student()], "cannot compare programs"),
            (TopKOrder(exact), [student()], "cannot compare programs"),
        ],
    )
    def test_unsuitable_programs_and_optimizers_are_rejected_before_any_call(
        self, optimizer, candidates, message
    ):
        engine = Engine()
        with using(engine, "fake/x"), pytest.raises((TypeError, ValueError), match=message):
            optimizer.compile(student(), trainset=EXAMPLES, programs=candidates)
        assert not engine.prompts


def test_the_interval_of_a_race_counts_the_programs_that_dropped_out():
    scores = np.random.default_rng(1).random((6, 200))
    scores[0] += 0.3
    scores[1] += 0.25
    comparison = benchmark.race(benchmark.World(scores.mean(axis=1), scores)).run().decision.comparison
    assert comparison.num_candidates == 6


@pytest.mark.parametrize(("seed", "is_returned"), [(5, True), (12, False)])
def test_a_gain_must_be_half_again_as_likely_as_a_loss(seed, is_returned):
    """Both gains are less than three times as likely, as a result of a search would have to be."""
    rng = np.random.default_rng(seed)
    scores = (rng.random((2, 60)) < [[0.6], [0.68]]).astype(float)
    race = benchmark.race(benchmark.World(scores.mean(axis=1), scores))
    decision = race.run().decision
    gain = decision.candidates[1].gain
    assert 1.0 < gain.probability / gain.worse < 3.0
    assert (gain.probability / gain.worse >= 1.5) == is_returned
    assert decision.ordering.number == is_returned
    careful = benchmark.race(benchmark.World(scores.mean(axis=1), scores))
    careful.min_probability = 0.9
    assert careful.run().decision.ordering.number == 0


def test_a_small_budget_leaves_calls_for_later_rounds():
    """With 300 calls, each of 20 programs could be scored on 15 examples."""
    scores = np.random.default_rng(2).random((20, 200))
    race = benchmark.race(benchmark.World(scores.mean(axis=1), scores), max_calls=300)
    outcome = race.run()
    assert race.observations.count(outcome.decision.ordering) >= 20
    assert outcome.program_calls["total"] <= 300


def test_details_of_a_race_do_not_mention_a_final_comparison():
    details = chosen(Engine()).report.details()
    assert "final comparison" not in details
    assert "mean scores, on " in details


def test_a_race_chooses_as_well_as_a_full_comparison_with_half_the_calls():
    """The worlds are simulated by `benchmarks/choosing.py`."""
    shape = {"num_programs": 2, "kind": "one better", "num_examples": 200, "share": 1.0}
    rows = [benchmark.measured(seed, gap=gap, **shape) for gap in (0.0, 0.05, 0.1) for seed in range(40)]
    mean = {name: float(np.nanmean([row[name] for row in rows])) for name in rows[0]}
    assert mean["calls"] <= 0.5
    assert mean["right"] >= mean["rule"] - 0.05
    assert mean["score inside"] >= 0.9
    assert mean["false"] <= 0.1
