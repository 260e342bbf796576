"""Reports: their data, summary, details and figure."""

import contextlib
import html
import json
import re
import sys

import dspy
import pytest
from fakes import digest, engine_for, exact_match, fake_lm, interrupt, lm_of, questions, two_predictors

from plr_dspy import PLFewShot, PLReorder, Report
from plr_dspy.baselines import StaticOrder
from plr_dspy.report.schema import Alternative, CalibrationEffect, Evidence, FrontEntry, Signal
from plr_dspy.report.stop import StopReason

PNG = b"\x89PNG\r\n\x1a\n"
EXAMPLES = questions(120)
NASTY = '<script>alert(1)</script> & "q" costs $5 and $6 \' <img src="http://evil.example/x.png">'


def student(count=6):
    program = dspy.Predict("question -> answer")
    unseen = {"hint": None, "augmented": True}
    for i in range(count):
        beginning = NASTY if i % 2 else ""
        shown = {"question": f"{beginning} text {i}", "answer": f"answer {i % 3}"}
        program.demos.append(dspy.Example(**shown, **unseen))
    return program


def chain():
    program = two_predictors()
    hints = [{"question": f"q {i}", "hint": f"h {i}"} for i in range(4)]
    answers = [{"question": f"q {i}", "hint": "h", "answer": f"a {i}"} for i in range(3)]
    program.hint.demos = [dspy.Example(fields) for fields in hints]
    program.answer.predict.demos = [dspy.Example(fields) for fields in answers]
    return program


def compiled(program=None, *, lm=None, metric=exact_match, kind=PLReorder, examples=EXAMPLES, **options):
    """Return the report of a real compile run, even if the run is interrupted."""
    options = {"num_threads": 1, "display_progress": False, **options}
    if issubclass(kind, (PLReorder, PLFewShot)):
        options = {"max_metric_calls": 200, **options}
    optimizer = kind(metric, **options)
    lm = lm or fake_lm(EXAMPLES)[0]
    with dspy.context(lm=lm), contextlib.suppress(KeyboardInterrupt):
        optimizer.compile(program or student(), trainset=examples)
    return optimizer.report


@pytest.fixture(scope="module")
def report():
    compiled_report = compiled(max_metric_calls=600, seed=4)
    assert compiled_report.comparison.gain > 0
    return compiled_report


@pytest.fixture(scope="module")
def chosen():
    program = dspy.Predict("question -> answer")
    options = {"max_metric_calls": 300, "candidates": "labeled", "max_demos": 5}
    return compiled(program, kind=PLFewShot, **options)


PAPER = {"auto": "paper", "num_iterations": 2, "num_samples": 4, "max_metric_calls": None}
INTERRUPTED = {20: interrupt}
REPORTS = {
    "several predictors, mixtures": lambda: compiled(chain(), update="mixture"),
    "paper": lambda: compiled(**PAPER, examples=EXAMPLES[:40]),
    "nothing to compare": lambda: compiled(student(1)),
    "interrupted in a round": lambda: compiled(lm=lm_of(engine_for(EXAMPLES, at=INTERRUPTED))),
    "the order given": lambda: compiled(kind=StaticOrder),
    "by labels": lambda: by_hand(
        comparison=None, settings={"scored_on": "probing inputs", "method": "PDO"}
    ),
}


class TestData:
    def test_a_report_agrees_with_the_compile(self, report):
        (slot,) = report.slots
        calls = report.program_calls
        assert len(slot.distributions[0]["logits"]) == 6
        questions_of_demos = [demo["question"] for demo in slot.demos]
        assert questions_of_demos == [demo.question for demo in student().demos]
        for demo in slot.demos:
            assert set(demo) == {"question", "answer"}, "demos must have only fields in the prompt"
        phases = [calls[phase] for phase in ("search", "race", "final")]
        assert sum(phases) == calls["total"]
        assert all(phases)
        assert report.history[-1].program_calls == calls["search"]
        assert report.tokens["fake/order-sensitive"]["prompt_tokens"] > 0
        assert report.settings["seed"] == 4
        (best,) = [c for c in report.candidates if c.ordering["self"] == slot.ordering]
        assert best.score == report.comparison.chosen
        assert best.expected_gain == max(candidate.expected_gain for candidate in report.candidates)
        assert best.probability == report.comparison.probability
        usable = report.settings["num_train"] + report.settings["num_selection"]
        assert 0 < report.evidence.num_differing <= report.evidence.num_met <= usable
        assert report.original.num_demos == report.returned.num_demos == 6
        assert report.original.num_calls >= report.comparison.num_examples
        assert report.original.num_failed == report.returned.num_failed == 0

    def test_failed_calls_are_counted_for_both_programs(self):
        """The report is the same for any number of threads."""

        def metric(example, prediction):
            if digest(example.question) < 0.3:
                raise LookupError(f"{example.question}: no verdict")
            return exact_match(example, prediction)

        options = {"metric": metric, "max_errors": 10_000, "seed": 1}
        one = compiled(num_threads=1, **options)
        many = compiled(num_threads=32, **options)
        settings = {**many.settings, "num_threads": 1}
        assert many.model_copy(update={"seconds": one.seconds, "settings": settings}) == one
        assert one.tokens
        for state in (one.original, one.returned):
            assert 0 < state.num_failed < state.num_calls
        failed = sum(error.count for error in one.errors)
        assert f"program calls ({failed} failed)" in str(one)

    def test_a_report_can_be_saved_and_loaded(self, report, chosen, tmp_path):
        for saved in (report, chosen):
            saved.save(tmp_path / "report.json")
            assert Report.load(tmp_path / "report.json") == saved
            data = json.loads(json.dumps(saved.to_dict()))
            assert Report.model_validate(data) == saved
        path = tmp_path / "odd.json"
        for text in ("[1]", "{}", "not JSON", '{"schema_version": 25}'):
            path.write_text(text)
            with pytest.raises(
                ValueError, match=r"odd\.json is not a plr_dspy report: pass a file written by"
            ):
                Report.load(path)

    def test_older_versions_are_loaded_if_their_fields_are_known(self, chosen, tmp_path):
        path = tmp_path / "report.json"
        data = chosen.to_dict() | {"schema_version": 23}
        # Reports no longer contain these fields.
        data["unknown"] = []
        data["rejected"] = None
        data["scarce_classes"] = {}
        data["original"]["num_maybe_truncated"] = 0
        path.write_text(json.dumps(data))
        assert Report.load(path) == chosen
        for version in (22, 26):
            path.write_text(json.dumps(data | {"schema_version": version}))
            message = rf"must have a schema version from 23 to 25; got {version}: load it with the plr_dspy version"
            with pytest.raises(ValueError, match=message):
                Report.load(path)

    def test_demos_are_formatted_as_in_prompts_shortened_and_without_keys(self):
        lm, _ = fake_lm(EXAMPLES)
        lm.kwargs["api_key"] = "verysecret1"
        program = dspy.Predict("question, tags: list[str] -> answer")
        long = "x" * 490 + "verysecret1" * 9
        others = {"tags": ["a", "ö"], "answer": "a"}
        program.demos = [dspy.Example(question=text, **others) for text in (long, "short")]
        examples = [dspy.Example(question=q, tags=[], answer="a") for q in "123456789"]
        examples = [example.with_inputs("question", "tags") for example in examples]
        static = compiled(program, lm=lm, kind=StaticOrder, examples=examples)
        first = static.slots[0].demos[0]
        assert first["tags"] == '["a", "ö"]'
        assert len(first["question"]) == 500
        assert first["question"].endswith("…")
        assert "verys" not in json.dumps(static.to_dict())


def candidate(gain, probability, worse):
    return {
        "ordering": {},
        "score": 0.5,
        "expected_gain": gain,
        "probability": probability,
        "probability_worse": worse,
    }


def by_hand(ordering=(1, 0), *, others=((0.1, 0.95),), gain=0.1, num_usable=40, **changes):
    """Return a hand-made report of a compile run with two demos. The original order scored 0.5.

    Args:
        others: For each other candidate, the expected gain and the probability of a gain.
    """
    expected, probability = (0.0, 0.0) if list(ordering) == [0, 1] else others[0]
    slot = {
        "predictor": "self",
        "ordering": ordering,
        "original": [0, 1],
        "blocks": [[0, 1]],
        "distributions": [{"logits": [0.0, 1.0]}],
        "demos": [{}, {}],
    }
    comparison = {
        "original": 0.5,
        "chosen": 0.5 + gain,
        "gain": gain,
        "interval": (-0.1, 0.3),
        "num_examples": 8,
        "num_candidates": 1 + len(others),
        "expected_gain": expected,
        "gain_interval": (expected - 0.05, expected + 0.05),
        "expected_chosen": (0.52 + expected, 0.45, 0.75),
        "expected_original": (0.52, 0.4, 0.6),
        "probability": probability,
        "probability_worse": 0.05,
    }
    state = {"num_demos": 2, "demo_tokens": None, "num_calls": 20, "num_failed": 5}
    data = {
        "original": state,
        "returned": state,
        "comparison": comparison,
        "slots": [slot],
        "candidates": [
            candidate(0.0, 0.0, worse=0.0),
            *(candidate(*numbers, worse=0.3) for numbers in others),
        ],
        "program_calls": {"total": 100},
        "seconds": 1.0,
        "stopped": "budget used up",
        "stop_reason": "budget used up",
        "plr_dspy_version": "0",
        "dspy_version": "0",
        "settings": {"num_train": num_usable - 8, "num_selection": 8, "racing": True},
    }
    settings = {**data["settings"], **changes.pop("settings", {})}
    return Report(**{**data, **changes, "settings": settings})


NOT_SURE = "+0.012, but this is too uncertain (better with probability 0.60, worse with 0.30; {})\n"
KEPT = "your program is kept: no other program in the final comparison is expected to do better\n"
NOTHING_DIFFERED = "scores did not differ between prompts on 19 examples: check that the metric compares"


class TestText:
    def test_the_summary_is_short_and_part_of_the_details(self, report):
        lines = str(report).splitlines()
        details = report.details()
        assert 8 <= len(lines) <= 12
        c = report.comparison
        (before, low, high) = c.expected_original
        (after, *_) = c.expected_chosen
        assert lines[1] == "scores expected on new examples, with 95% intervals:"
        rows = [" ".join(line.split()) for line in lines[2:6]]
        assert rows[0] == f"your program, 6 demos {before:.3f} [{low:.3f}, {high:.3f}]"
        assert rows[1].startswith(f"returned program, 6 demos {after:.3f} [")
        assert rows[2].startswith(f"gain {c.expected_gain:+.3f} [")
        assert rows[3].startswith(f"a random order of 6 demos {report.random.score:.3f}")
        assert "plr_dspy.load_program" in lines[-2]
        assert all(line in details for line in lines[:-1])
        assert (
            f"mean scores in the final comparison, on {c.num_examples} examples: {c.original:.3f} -> {c.chosen:.3f}"
        ) in details
        ordering = report.slots[0].ordering
        assert f"demos in the order {ordering}, with the last demo next to the question" in details
        assert "race " in details
        assert "metric exact_match, seed 4" in details

    def test_counts_of_one_are_singular_and_zero_has_no_sign(self):
        program = {
            "name": "one\n two",
            "score": -1e-5,
            "interval": (-0.0004, 1.0),
            "num_examples": 1,
            "num_demos": 1,
        }
        longer = program | {"name": "a longer name", "num_examples": 2}
        report = by_hand(programs=[program, longer], program_calls={"total": 1})
        lines = str(report).splitlines()
        assert "PLReorder: 1 program call, 1 s; budget used up" in lines
        assert "; 1 call; " in repr(report)
        assert "  one two, 1 demo        0.000 [0.000, 1.000] on 1 example" in lines
        assert "  a longer name, 1 demo  0.000 [0.000, 1.000] on 2 examples" in lines

    @pytest.mark.parametrize(("probability", "may_be_chance"), [(0.6, True), (0.95, False)])
    def test_the_gain_of_a_returned_user_program_may_be_chance(self, probability, may_be_chance):
        returned = {"num_demos": 2, "demo_tokens": None, "num_calls": 20, "num_failed": 0, "name": "theirs"}
        report = by_hand(returned=returned, others=((0.02, probability),))
        gain = f"gain +0.020 [-0.030, +0.070], better with probability {probability:.2f}"
        text = " ".join(str(report).split())
        assert gain in text
        assert ("worse with 0.05: may be chance" in text) == may_be_chance
        assert f": {gain}" in repr(report)

    def test_the_gain_over_the_best_user_program_is_shown(self):
        report = by_hand()
        over = {**dict(report.comparison), "name": "theirs", "expected_gain": 0.03, "probability": 0.8}
        text = " ".join(str(by_hand(over_best_own=over)).split())
        assert (
            "gain over 'theirs' +0.030 [+0.050, +0.150], better with probability 0.80, worse with" in text
        )

    def test_a_calibrated_program_states_the_assumed_label_shares(self):
        applied = CalibrationEffect(
            original=0.5, original_calibrated=0.7, shares=[0.8, 0.2], offsets=[0.1, -0.1], applied=True
        )
        signal = Signal(used="logprobs", reason="", labels=["a", "b"])
        text = str(by_hand(calibration=applied, signal=signal, settings={"calibrate": True}))
        assert "returned program, 2 demos, calibrated" in text
        assumed = "label shares are assumed to be 'a' 0.80, 'b' 0.20"
        assert f"calibrated: {assumed}; at every call, the program needs a model that" in text
        effect = applied.model_copy(update={"applied": False})
        assert "label shares" not in str(by_hand(calibration=effect, signal=signal))

    def test_a_calibrated_order_is_also_compared_with_the_calibrated_student(self):
        comparison = dict(by_hand().comparison)
        evidence = Evidence(num_met=40, num_differing=9, num_compared=40)
        for better, is_sure in ((0.95, True), (0.8, False)):
            both = {**comparison, "over_calibrated": better, "worse_than_calibrated": 0.03}
            text = " ".join(str(by_hand(comparison=both, evidence=evidence)).split())
            assert f"gain over your program, calibrated better with probability {better:.2f}" in text
            assert ("worse with 0.03: may be chance only more examples" in text) != is_sure
        kept = {**candidate(0.1, 0.9, worse=0.02), "over_calibrated": 0.599, "worse_than_calibrated": 0.4}
        text = str(by_hand([0, 1], candidates=[candidate(0.0, 0.0, worse=0.0), kept]))
        over_student = "better with probability 0.90, worse with 0.02"
        over_calibrated = "better with probability 0.59, worse with 0.40"
        expected = (
            f"uncertain ({over_student}; compared with your program, calibrated: {over_calibrated}; it must"
        )
        assert expected in text
        assert "as likely to be better as worse, which fails for your program, calibrated)" in text
        kept |= {"probability": 0.5}
        text = str(
            by_hand([0, 1], candidates=[candidate(0.0, 0.0, worse=0.0), {**kept, "probability_worse": 0.4}])
        )
        assert "which fails for your program and for your program, calibrated)" in text
        kept |= {"over_calibrated": 0.9, "worse_than_calibrated": 0.0}
        text = str(
            by_hand(
                [0, 1], candidates=[candidate(0.0, 0.0, worse=0.0), kept], settings={"min_probability": 0.7}
            )
        )
        assert "min_probability is 0.7, which fails for your program)" in text

    def test_probabilities_close_to_0_are_not_shown_as_0(self):
        text = " ".join(str(by_hand(others=((0.1, 0.001),))).split())
        assert "better with probability <0.01, worse with 0.05: may be chance" in text
        others = [candidate(0.0, 0.0, worse=0.0), candidate(0.1, 0.001, worse=0.0002)]
        text = str(by_hand([0, 1], candidates=others, settings={"min_probability": 0.5}))
        assert "better with probability <0.01, worse with 0.01;" in text

    def test_if_the_original_is_kept_the_details_have_the_scores_of_all_finalists(self):
        report = by_hand([0, 1], others=[(-0.1, 0.2), (-0.2, 0.1)])
        scores = "your program 0.500; the other finalists 0.500, 0.500"
        line = f"mean scores in the final comparison, on 8 examples: {scores}"
        assert line in report.details().splitlines()

    def test_labels_without_a_compared_example_are_named(self):
        comparison = {**dict(by_hand().comparison), "unseen_labels": ["b", "c"]}
        text = str(by_hand(comparison=comparison))
        assert "\nlabels without a compared example: 'b', 'c'; scores and gains ignore them, and" in text
        comparison["unseen_labels"] = [*"bcdefghijklm"]
        assert "example: 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k' and 2 more; scores" in str(
            by_hand(comparison=comparison)
        )
        assert "compared example" not in str(by_hand())

    @pytest.mark.parametrize(("random_score", "is_named"), [(0.52, False), (0.55, True)])
    def test_as_many_random_demos_are_named_only_if_they_score_more_than_the_students(
        self, random_score, is_named
    ):
        """The student is kept, and is expected to score .52."""
        random = Alternative(name="2 random demos", score=random_score, num_examples=32, num_demos=2)
        state = {"num_demos": 2, "demo_tokens": 30, "num_calls": 20, "num_failed": 0}
        text = str(by_hand([0, 1], original=state, returned=state, random=random))
        assert ("do better than 2 random demos" in text) == is_named
        more = random.model_copy(update={"num_demos": 8, "name": "8 random demos"})
        assert "do better than 8 random demos" in str(
            by_hand([0, 1], original=state, returned=state, random=more)
        )

    def test_calibrated_random_demos_that_score_more_lead_to_batch_calibration(self):
        random = Alternative(name="8 random demos, calibrated", score=0.7, num_examples=32, num_demos=8)
        settings = {"calibrate": True, "metric": "F1(label='b')"}
        text = str(by_hand([0, 1], random=random, settings=settings))
        assert (
            "do better than 8 random demos, calibrated\nBatchCalibration(metric=F1(label='b')) calibrates"
            in text
        )
        assert (
            "calibrates your program, or random demos, without a search: compare the results with" in text
        )
        assert "BatchCalibration" not in str(by_hand([0, 1], random=random))

    @pytest.mark.parametrize(
        ("calibrated", "probability", "advised"),
        [(0.675, 0.9, True), (0.675, 0.8, False), (0.62, 0.9, False)],
    )
    def test_calibration_is_advised_if_it_probably_scores_more(self, calibrated, probability, advised):
        """The returned program scores .62."""
        effect = CalibrationEffect(
            original=0.5, original_calibrated=calibrated, probability=probability, offsets=[0.1, -0.1]
        )
        text = str(by_hand(calibration=effect))
        assert (
            "if calibrated, your program is expected to score 0.675: use BatchCalibration" in text
        ) == advised
        assert ("BatchCalibration" in text) == advised

    @pytest.mark.parametrize(
        ("ordering", "random_score", "named"),
        [
            ((1, 0), 0.57, "the returned program is not expected to do better than always answering 'b'"),
            (
                (1, 0),
                0.62,
                "the returned program is not expected to do better than 8 random demos or always answering 'b'",
            ),
            ((0, 1), 0.5, "your program is not expected to do better than always answering 'b'"),
        ],
    )
    def test_simpler_methods_that_score_as_high_are_named(self, ordering, random_score, named):
        """The returned program is expected to score .62, and your program .52."""
        random = Alternative(name="8 random demos", score=random_score, num_examples=32)
        constant = Alternative(name="always answering 'b'", score=0.73, num_examples=40)
        text = str(by_hand(ordering, random=random, constant=constant))
        assert re.search(rf"\n  8 random demos +{random_score:.3f}\n  always answering 'b' +0\.730\n", text)
        assert f"\n{named}\n" in text
        lower = random.model_copy(update={"score": 0.4})
        assert "do better than" not in str(by_hand(ordering, random=lower))

    def test_a_metric_over_a_set_must_also_measure_less_than_a_simpler_method(self):
        """The program is expected to score .62, less than the constant answer, but scored .8."""
        constant = Alternative(name="always answering 'b'", score=0.73, num_examples=40)
        for metric, is_named in (("exact", True), ("F1('b')", False)):
            settings = {"num_train": 32, "num_selection": 8, "racing": True, "metric": metric}
            text = str(by_hand(gain=0.3, constant=constant, settings=settings))
            assert ("not expected to do better than always answering 'b'" in text) == is_named

    @pytest.mark.parametrize(
        ("count", "words"),
        [("num_unread", "could not be parsed"), ("num_truncated", "were cut off at max_tokens")],
    )
    @pytest.mark.parametrize(("number", "warned"), [(1, False), (2, True), (10, True)])
    @pytest.mark.parametrize(
        ("ordering", "broken", "name"),
        [
            ((1, 0), "original", "your program"),
            ((1, 0), "returned", "the returned program"),
            ((0, 1), "original", "your program"),
        ],
    )
    def test_a_warning_about_unusable_replies_comes_first(
        self, count, words, number, warned, ordering, broken, name
    ):
        state = {"num_demos": 2, "demo_tokens": None, "num_calls": 20, "num_failed": number}
        states = {"original": state, "returned": state}
        states[broken] = {**state, count: number}
        lines = str(by_hand(ordering, **states)).splitlines()
        share = f"({5 * number}%)"
        sentence = f"{number} of 20 replies of {name} {words} {share}"
        assert lines[0].startswith(sentence) == warned
        assert lines[warned].startswith("PLReorder: ")

    def test_a_much_cheaper_prompt_is_reported_if_it_is_as_good(self, chosen):
        def entry(number, score, *, cost=None, **flags):
            data = {
                "name": f"{number} demos",
                "num_examples": 20,
                "num_demos": number,
                "score": score,
                "kind": "fixed",
                "prompt_tokens": 100 + 30 * number,
                "cost": cost,
                "is_as_good": False,
                "is_returned": False,
            }
            return FrontEntry(**data | flags)

        returned = entry(4, 0.8, cost=0.25, is_as_good=True, is_returned=True)
        front = [
            entry(0, 0.4),
            entry(1, 0.79, cost=0.124, is_as_good=True),
            entry(2, 0.7, is_as_good=True),
            returned,
        ]
        report = by_hand(front=front)
        assert (
            "\na cheaper prompt is probably as good, within 0.01: 1 demos (130 prompt tokens, $0.12 per 1,000 "
            "predictions instead of 220 prompt tokens, $0.25 per 1,000 predictions); to build it, "
            "call optimizer.program_with(within=0.01)\n"
        ) in str(report)
        from_few = entry(1, 0.79, is_as_good=True, num_examples=4)
        hardly_cheaper = entry(1, 0.79, is_as_good=True, prompt_tokens=215)
        for others in (
            [returned],
            [entry(0, 0.9), returned],
            [from_few, returned],
            [hardly_cheaper, returned],
            [],
        ):
            assert "a cheaper prompt" not in str(by_hand(front=others))
        slot = chosen.slots[0]
        for demo in slot.ordering:
            assert f"demo {demo} ({slot.origins[demo]}): " in chosen.details()
        assert f"({chosen.returned.prompt_tokens} prompt tokens)" in str(chosen)

    @pytest.mark.parametrize(
        ("probability", "claim"),
        [
            (0.9, "better with probability 0.90\n"),
            (0.89, "better with probability 0.89, worse with 0.05: may be chance\n"),
        ],
    )
    def test_a_gain_with_a_low_probability_may_be_chance(self, probability, claim):
        report = by_hand(others=[(0.02, probability)])
        assert f"+0.020 [-0.030, +0.070], {claim}" in str(report)
        assert ("may be chance" in repr(report)) == (probability < 0.9)

    @pytest.mark.parametrize(
        ("gain", "least", "reason"),
        [
            (0.012, 0.9, NOT_SURE.format("min_probability is 0.9")),
            (0.012, None, NOT_SURE.format("it must be at least 3 times as likely to be better as worse")),
            (0.0, 0.9, KEPT),
        ],
    )
    def test_the_report_explains_why_the_original_is_kept(self, gain, least, reason):
        others = [(-0.1, 0.9), (gain, 0.6), (-0.2, 0.1)]
        settings = {"min_probability": least}
        text = str(by_hand([0, 1], others=others, settings=settings))
        assert reason in text
        assert "your program is kept" in text
        assert "returned program" not in text

    @pytest.mark.parametrize("first", ["", "mine"], ids=["PLFewShot", "choose_program"])
    def test_a_user_program_needs_lower_odds(self, first):
        report = by_hand([0, 1], others=[(0.012, 0.6)])
        theirs = report.candidates[1].model_copy(update={"name": "theirs"})
        state = report.original.model_copy(update={"name": first})
        states = {"original": state, "returned": state}
        report = report.model_copy(update={"candidates": [report.candidates[0], theirs], **states})
        text = str(report)
        assert "it must be at least 1.5 times as likely to be better as worse)" in text
        kept = "'mine' is kept" if first else "your program is kept"
        assert kept in text
        assert text.count("first program 'mine'") == bool(first)

    def test_rounded_probabilities_do_not_seem_to_meet_the_rule(self):
        report = by_hand([0, 1], others=[(0.012, 0.484)])
        worse = report.candidates[1].model_copy(update={"probability_worse": 0.162})
        text = str(report.model_copy(update={"candidates": [report.candidates[0], worse]}))
        assert "better with probability 0.48, worse with 0.17; it must be at least 3 times" in text

    def test_the_report_says_if_a_loss_is_more_likely_than_the_expected_gain(self):
        """The score model expects a gain, but the few scores that differ show a loss."""
        report = by_hand([0, 1], others=[(0.012, 0.2)])
        text = "+0.012, but is more likely to be worse (better with probability 0.20, worse with 0.30)"
        assert f"\nyour program is kept: the best other program is expected to gain {text}\n" in str(report)

    def test_a_metric_over_a_set_is_measured_on_all_answers(self):
        details = by_hand(settings={"metric": "F1(label='b')"}).details()
        assert "values of the metric, from all answers, on 8 examples: 0.500 -> 0.600, gain" in details

    @pytest.mark.parametrize(
        ("num_usable", "evidence", "settings", "advice"),
        [
            (100, (19, 0, 19), {}, NOTHING_DIFFERED),
            (40, (40, 1, 31), {}, "\na larger budget (max_metric_calls) would reduce the uncertainty"),
            (40, (40, 1, 32), {}, "\nonly more examples"),
            (40, (40, 9, 4), {"racing": False}, "\nonly more examples"),
            (40, (8, 0, 4), {"racing": False}, "\nonly more examples"),
            (40, (40, 9, 4), {"max_metric_calls": 302}, "\nonly more examples"),
            (40, (40, 9, 4), {"max_metric_calls": 301}, "\na larger budget"),
        ],
    )
    def test_the_report_advises_how_to_reduce_the_uncertainty(self, num_usable, evidence, settings, advice):
        num_met, num_differing, num_compared = evidence
        evidence = Evidence(num_met=num_met, num_differing=num_differing, num_compared=num_compared)
        options = {
            "num_usable": num_usable,
            "evidence": evidence,
            "settings": {"most_useful_calls": 302, **settings},
        }
        text = str(by_hand(others=[(0.1, 0.8)], **options))
        assert advice in text

    @pytest.mark.parametrize(
        ("reason", "limit"), [(StopReason.COST, "max_cost"), (StopReason.TIME, "max_seconds")]
    )
    def test_the_advice_names_the_limit_that_ended_the_search(self, reason, limit):
        evidence = Evidence(num_met=40, num_differing=9, num_compared=4)
        settings = {"most_useful_calls": 302}
        text = str(by_hand(others=[(0.1, 0.8)], evidence=evidence, settings=settings, stop_reason=reason))
        assert f"\na larger budget ({limit}) would reduce the uncertainty" in text

    @pytest.mark.parametrize("reason", [StopReason.STOP_AT_SCORE, StopReason.PATIENCE])
    def test_a_search_that_ended_early_needs_no_larger_budget(self, reason):
        evidence = Evidence(num_met=40, num_differing=9, num_compared=4)
        settings = {"most_useful_calls": 302}
        text = str(by_hand(others=[(0.1, 0.8)], evidence=evidence, settings=settings, stop_reason=reason))
        assert "more calls would reduce the uncertainty, but the search ended early" in text
        assert "larger budget" not in text

    @pytest.mark.parametrize("reason", [StopReason.INTERRUPTED, StopReason.TIME])
    def test_no_order_is_chosen_by_label_probabilities_if_the_run_ends_early(self, reason):
        options = {"comparison": None, "candidates": [], "stop_reason": reason}
        text = str(by_hand([0, 1], settings={"scored_on": "probing inputs"}, **options))
        assert "the order was chosen" not in text

    @pytest.mark.parametrize(
        ("ordering", "other", "is_advised"),
        [
            ((1, 0), (0.1, 0.8), True),
            ((0, 1), (0.1, 0.6), True),
            ((1, 0), (0.1, 0.95), False),
            ((0, 1), (-0.1, 0.2), False),
        ],
    )
    def test_after_a_decided_race_an_evaluation_on_other_examples_is_advised(
        self, ordering, other, is_advised
    ):
        evidence = Evidence(num_met=20, num_differing=9, num_compared=20)
        text = str(by_hand(ordering, others=[other], evidence=evidence, stop_reason=StopReason.DECIDED))
        assert ("\nfor a narrower interval, score the programs on other examples" in text) == is_advised
        assert "a larger budget" not in text

    def test_an_order_chosen_by_label_probabilities_has_no_score(self):
        options = {"comparison": None, "candidates": [], "stop_reason": StopReason.ALL_ASKED}
        text = str(by_hand(settings={"scored_on": "probing inputs"}, **options))
        assert "chosen according to label probabilities, so its score is not known" in text
        assert "your program, 2 demos" not in text


class TestFigure:
    @pytest.mark.parametrize("kind", REPORTS)
    def test_every_report_can_be_plotted_and_printed(self, kind):
        report = REPORTS[kind]()
        assert report.plot()._repr_png_().startswith(PNG)
        assert report._repr_html_().startswith(f"<pre>{report.settings['method']}: ")
        assert str(report).splitlines()[0] == report.details().splitlines()[0]
        assert html.unescape(report._repr_html_()) == f"<pre>{report}</pre>"

    def test_the_figure_shows_the_rounds_and_both_programs(self, report):
        (scores,) = report.plot().axes
        assert len(scores.containers) == 2
        lines = {line.get_label(): line for line in scores.get_lines()}
        calls = [iteration.program_calls for iteration in report.history]
        assert lines["mean of the round"].get_xdata().tolist() == calls
        best = [iteration.best_score_so_far for iteration in report.history]
        assert lines["best so far, estimated"].get_ydata().tolist() == best


class TestSpecialCases:
    def test_demos_are_shortened_to_one_line_without_escaping(self, report):
        """Special characters in demos are printed unchanged."""
        text = '$x$\n id="a" 中文 <!-- --> \\1 ' + "x" * 99
        odd = {"demos": [{"q": f"{i} {text}", "a": "b"} for i in range(2)]}
        report = by_hand()
        slot = report.slots[0].model_copy(update=odd)
        report = report.model_copy(update={"slots": [slot]})
        details = report.details()
        assert '  demo 1: q: 1 $x$ id="a" 中文 <!-- --> \\1 xxxxx' in details
        assert "…  | a" not in details
        report.plot()

    def test_only_plots_need_matplotlib(self, report, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        monkeypatch.delitem(sys.modules, "plr_dspy.report.figure", raising=False)
        assert report._repr_html_()
        assert str(report)
        assert report.details()
        message = r"^plots need matplotlib: .*'plr-dspy\[plots\]'$"
        with pytest.raises(ImportError, match=message):
            report.plot()


def test_a_report_says_if_nothing_was_compared():
    text = str(by_hand(comparison=None, candidates=[], stop_reason=StopReason.BUDGET))
    assert "nothing was compared with your program" in text
    assert "to resume" not in text


@pytest.mark.parametrize("reason", [StopReason.INTERRUPTED, StopReason.ERROR, StopReason.UNREADABLE])
class TestUnfinishedRuns:
    """Reports on runs that ended with an interrupt or an error."""

    def test_nothing_is_said_to_be_returned(self, chosen, reason):
        unfinished = {"comparison": None, "candidates": [], "stop_reason": reason}
        text = chosen.model_copy(update=unfinished).details()
        assert "so nothing was returned; optimizer.best_program is the best program so far" in text
        # A resumed run would end again, because its replies cannot be parsed.
        can_resume = reason is not StopReason.UNREADABLE
        assert (
            "if log_dir is set, repeat the run with the same arguments to resume it" in text
        ) == can_resume
        assert "(best so far)" in text
        for word in (
            "(returned)",
            "returned program",
            "nothing was compared",
            "save the program",
            "was chosen",
        ):
            assert word not in text

    def test_a_race_has_no_best_program(self, reason):
        race = {"num_train": 30, "num_selection": 0, "racing": True}
        text = str(by_hand(comparison=None, candidates=[], stop_reason=reason, settings=race))
        assert "the run did not finish, so no program was chosen" in text
        assert "best_program" not in text


def test_calls_that_make_demos_are_counted_apart():
    calls = {"bootstrap": 16, "search": 67, "race": 0, "final": 0, "total": 83, "resumed": 0}
    assert "83 program calls (16 to make demos)" in str(by_hand(program_calls=calls))


def test_a_kept_program_has_a_reason_if_calls_were_made():
    calls = {"search": 67, "race": 0, "final": 0, "total": 67, "resumed": 0}
    same = by_hand(
        comparison=None, candidates=[], program_calls=calls, stop_reason=StopReason.NO_DIFFERENCE
    )
    kept = same.model_copy(update={"slots": [], "returned": same.original})
    assert "your program is kept: no prompt scored higher than another" in str(kept)
