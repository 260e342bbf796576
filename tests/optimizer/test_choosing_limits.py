"""Choosing among whole programs: limits on calls, and how well a race chooses."""

from collections import Counter

import choosing as benchmark
import dspy
import numpy as np
import pytest
import yes_or_no
from choices import chosen, programs
from fakes import Program, digest, failure, interrupt
from label_world import DEMOS, EXAMPLES, Engine, comparable, student
from yes_or_no import Answering, examples

from plr_dspy import F1, BalancedAccuracy, MatthewsCorrelation, Report
from plr_dspy.report.stop import StopReason


class TestLimits:
    @pytest.mark.parametrize("budget", [9, 50, 100, None])
    def test_calls_are_counted_and_threads_do_not_change_the_result(self, budget):
        engine = Engine()
        report = chosen(engine, num_threads=8, max_metric_calls=budget).report
        assert comparable(report) == comparable(chosen(Engine(), max_metric_calls=budget).report)
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

    @pytest.mark.parametrize("max_seconds", [75, 120])
    def test_all_programs_are_scored_on_the_same_examples_before_time_runs_out(
        self, max_seconds, monkeypatch
    ):
        """The best of eight programs is listed last."""
        calls = []

        def answering(share):
            def forward(self, text):
                calls.append(text)
                is_right = digest(f"right {text}") < share
                return dspy.Prediction(label=right_answers[text] if is_right else "wrong")

            return Program(forward)

        right_answers = {example.text: example.label for example in EXAMPLES}
        competing = {
            f"right {share}": answering(share) for share in [0.10, 0.13, 0.16, 0.19, 0.22, 0.25, 0.28, 0.90]
        }
        monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", lambda: float(len(calls)))
        choice = chosen(Engine(), competing, max_seconds=max_seconds)
        assert len(calls) <= max_seconds
        assert len(choice.report.programs) == 8
        assert choice.name == "right 0.9"

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
            assert comparable(report) == comparable(chosen(Engine()).report)
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
        assert outcome.decision.candidate.number == 2

    def test_the_reason_for_an_early_end_says_if_no_score_differed(self):
        """Two programs that differ by 5 points agree on most examples, but the better one is still found."""
        equal = np.tile(np.arange(200) % 3 > 0, (2, 1)).astype(float)
        outcome = benchmark.race(benchmark.World(equal.mean(axis=1), equal)).run()
        num_examples = outcome.program_calls["total"] // 2
        assert 20 <= num_examples < 100
        assert outcome.stop.reason is StopReason.NO_DIFFERENCE
        for seed in range(10):
            better = equal.copy()
            better[
                1, np.random.default_rng(seed).choice(np.flatnonzero(equal[0] == 0), 10, replace=False)
            ] = 1.0
            outcome = benchmark.race(benchmark.World(better.mean(axis=1), better)).run()
            assert outcome.decision.candidate.number == 1
            assert outcome.stop.reason is not StopReason.NO_DIFFERENCE

    def test_the_reason_does_not_ignore_programs_that_dropped_out(self):
        equal = np.tile(np.arange(200) % 3 > 0, (3, 1)).astype(float)
        equal[2] *= np.arange(200) % 2
        outcome = benchmark.race(benchmark.World(equal.mean(axis=1), equal)).run()
        assert outcome.stop.reason is StopReason.DECIDED

    def test_failed_calls_differ_from_scored_calls(self):
        """A program that always fails drops out at once, so the race ends early."""

        def broken(self, text):
            raise LookupError(text)

        pair = {"works": student(), "broken": Program(broken, inner=student())}
        report = chosen(Engine(), pair, max_errors=200).report
        assert report.stop_reason is StopReason.DECIDED
        assert report.program_calls["total"] < 2 * len(EXAMPLES)

    def test_one_of_many_equal_programs_is_found_if_it_is_better_on_few_examples(self):
        """The last program is better on 5% of examples. In a third of the worlds, 20 examples hide this."""
        num_right = 0
        for seed in range(20):
            rng = np.random.default_rng(seed)
            scores = np.tile(rng.random(200) < 0.7, (5, 1)).astype(float)
            scores[-1] = np.maximum(scores[-1], rng.random(200) < 0.05 / 0.3)
            outcome = benchmark.race(benchmark.World(scores.mean(axis=1), scores)).run()
            num_right += outcome.decision.candidate.number == 4
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

        choice = chosen(
            Engine(), {**programs(), "broken": Program(broken, inner=student())}, max_errors=200
        )
        assert choice.name != "broken"
        assert [error.type for error in choice.report.errors] == ["LookupError"]


@pytest.mark.parametrize("metric", [yes_or_no.exact, F1("yes"), BalancedAccuracy()])
@pytest.mark.parametrize("first", ["flaky", "steady"])
def test_failed_calls_lower_the_score_of_every_program(metric, first):
    """Of 100 examples, the flaky program fails on 30, and the steady program is wrong on 10."""
    yes = range(0, 100, 2)
    candidates = {
        "flaky": Answering(yes, failing=range(35, 65)),
        "steady": Answering([*yes, *range(1, 20, 2)]),
    }
    candidates = dict(sorted(candidates.items(), reverse=first == "steady"))
    choice = chosen(Engine(), candidates, metric, examples(100, yes), max_errors=200)
    assert choice.name == "steady"
    scores = {program.name: program.score for program in choice.report.programs}
    assert scores["flaky"] < 0.85


@pytest.mark.parametrize("metric", [F1("yes"), BalancedAccuracy()])
@pytest.mark.parametrize("first", ["flaky", "steady"])
def test_failed_calls_count_like_unparsable_replies(metric, first):
    yes = range(0, 200, 5)
    results = []
    for problem in ("failing", "unread"):
        flaky = Answering(yes, **{problem: range(1, 100, 5)})
        candidates = {"flaky": flaky, "steady": Answering(list(yes)[8:])}
        candidates = dict(sorted(candidates.items(), reverse=first == "steady"))
        choice = chosen(Engine(), candidates, metric, examples(200, yes), max_errors=400)
        results.append((choice.name, {way.name: way.score for way in choice.report.programs}))
    (chosen_if_failing, scores_if_failing), (chosen_if_unread, scores_if_unread) = results
    assert chosen_if_failing == chosen_if_unread
    assert scores_if_failing == pytest.approx(scores_if_unread, abs=0.001)


@pytest.mark.parametrize("metric", [F1(), F1("yes"), BalancedAccuracy(), MatthewsCorrelation()])
def test_all_examples_may_have_the_same_label(metric, tmp_path):
    candidates = {"all": Answering(range(20)), "most": Answering(range(18))}
    for program in candidates.values():
        program.step = dspy.Predict("number: int -> label")  # declares no labels
    choice = chosen(Engine(), candidates, metric, examples(20, range(20)))
    assert choice.name == "all"
    for program in choice.report.programs:
        low, high = program.interval
        assert 0.0 <= low <= program.score <= high <= 1.0
    choice.report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == choice.report


def test_the_budget_must_allow_two_examples_per_program():
    with pytest.raises(ValueError, match="max_metric_calls must be at least 6 for 3 programs; got 5"):
        chosen(Engine(), max_metric_calls=5)


def test_the_interval_of_a_race_counts_the_programs_that_dropped_out():
    scores = np.random.default_rng(1).random((6, 200))
    scores[0] += 0.3
    scores[1] += 0.25
    comparison = benchmark.race(benchmark.World(scores.mean(axis=1), scores)).run().decision.comparison
    assert comparison.num_candidates == 6


@pytest.mark.parametrize(("seed", "is_returned"), [(5, True), (12, False)])
def test_a_gain_must_be_half_again_as_likely_as_a_loss(seed, is_returned):
    """A search would reject both gains, because it requires a gain to be three times as likely as a loss."""
    rng = np.random.default_rng(seed)
    scores = (rng.random((2, 60)) < [[0.6], [0.68]]).astype(float)
    race = benchmark.race(benchmark.World(scores.mean(axis=1), scores))
    decision = race.run().decision
    gain = decision.results[1].gain
    assert 1.0 < gain.probability / gain.worse < 3.0
    assert (gain.probability / gain.worse >= 1.5) == is_returned
    assert decision.candidate.number == is_returned
    careful = benchmark.race(benchmark.World(scores.mean(axis=1), scores))
    careful.min_probability = 0.9
    assert careful.run().decision.candidate.number == 0


def test_a_small_budget_leaves_calls_for_later_rounds():
    """Scoring all 20 programs on 15 examples would use up the 300 calls."""
    scores = np.random.default_rng(2).random((20, 200))
    race = benchmark.race(benchmark.World(scores.mean(axis=1), scores), max_calls=300)
    outcome = race.run()
    assert race.observations.count(outcome.decision.candidate) >= 20
    assert outcome.program_calls["total"] <= 300


def test_a_race_chooses_as_well_as_a_full_comparison_with_half_the_calls():
    """The worlds are simulated by `benchmarks/choosing.py`."""
    shape = {"num_programs": 2, "kind": "one better", "num_examples": 200, "share": 1.0}
    rows = [benchmark.measured(seed, gap=gap, **shape) for gap in (0.0, 0.05, 0.1) for seed in range(40)]
    mean = {name: float(np.nanmean([row[name] for row in rows])) for name in rows[0]}
    assert mean["calls"] <= 0.5
    assert mean["right"] >= mean["rule"] - 0.05
    assert mean["score inside"] >= 0.9
    assert mean["false"] <= 0.1
