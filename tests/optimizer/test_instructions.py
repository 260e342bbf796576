"""Instructions that PLFewShot chooses from: passed, proposed, or taken from other programs."""

import re
from collections import Counter
from functools import partial
from statistics import fmean

import dspy
import every_function
import fakes
import pytest
from fakes import (
    ProposingEngine,
    digest,
    engine_for,
    exact_match,
    failure,
    interrupt,
    lm_of,
    questions,
    set_price,
    student,
    using,
)
from label_world import EXAMPLES as LABELED
from label_world import Engine, exact
from label_world import student as classifier

from plr_dspy import F1, PlackettLuce, PlainTextAdapter, PLFewShot, PLReorder, Report, load_program
from plr_dspy.scoring.budget import cost_of

EXAMPLES = questions(90)
GOOD = "Think of the number."
BAD = "Answer like a pirate."
IDLE = "Give the answer."
SHARES = {GOOD: 0.9, BAD: 0.1, IDLE: 0.5}


def instructed_share(system, demos, asked):
    """Return a share that depends on the instruction and, to a lesser degree, on the demos."""
    share = next((share for text, share in SHARES.items() if text in system), 0.5)
    if not demos:
        return share
    return share + 0.2 * (fmean(map(digest, demos)) - 0.5)


def new_engine(share=instructed_share, **options):
    return engine_for(EXAMPLES, share=share, **options)


@pytest.fixture
def instructed():
    with using(new_engine()) as engine:
        yield engine


LIMITS = {"max_metric_calls": 120, "max_demos": 3, "candidates": "labeled"}


def compiled(*texts, program=None, metric=exact_match, trainset=EXAMPLES, **options):
    program = program or dspy.Predict("question -> answer")
    options = {"instructions": list(texts), **LIMITS, **options}
    return every_function.compiled(PLFewShot, metric, program, trainset, **options)


def comparable(report):
    """Return the data of a report, without values that may differ between runs."""
    data = report.to_dict()
    for name in ("seconds", "stopped", "program_calls", "settings", "tokens"):
        del data[name]
    return data


class TestChoice:
    def test_finds_the_instruction_that_helps(self, instructed, tmp_path):
        program, optimizer = compiled(BAD, GOOD, IDLE, max_metric_calls=200)
        assert program.signature.instructions == GOOD
        report = optimizer.report
        (entry,) = report.instructions
        assert (entry.predictor, entry.chosen) == ("self", 2)
        own = dspy.Predict("question -> answer").signature.instructions
        assert [choice.text for choice in entry.alternatives] == [own, BAD, GOOD, IDLE]
        assert [choice.origin for choice in entry.alternatives] == [
            "student",
            *(f"instructions[{i}]" for i in range(3)),
        ]
        scores = [choice.score for choice in entry.alternatives if choice.score is not None]
        assert max(scores) == entry.alternatives[2].score
        assert PlackettLuce.from_state(entry.distribution).num_items == 4
        assert not report.original_stays
        assert report.comparison.probability > 0.9
        assert f"instruction for self (instructions[1]): {GOOD}" in str(report)
        assert f"not scored (instructions[0]): {BAD}" in report.details() or f": {BAD}" in report.details()
        report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == report
        assert report.candidates[0].instructions == {"self": 0}
        assert 2 in [candidate.instructions["self"] for candidate in report.candidates]

    def test_each_instruction_has_the_score_of_its_best_prompt_on_the_front(self, instructed):
        kept = 0
        for seed in range(4):
            _, optimizer = compiled(BAD, program=student(2), max_metric_calls=60, seed=seed)
            report = optimizer.report
            kept += report.original_stays
            for number, choice in enumerate(report.instructions[0].alternatives):
                scores = [entry.score for entry in report.front if entry.instructions["self"] == number]
                assert choice.score == max(scores, default=None)
        assert kept

    def test_a_saved_program_keeps_its_instruction(self, instructed, tmp_path):
        program, _ = compiled(GOOD)
        program.save(tmp_path / "program.json")
        loaded = load_program(dspy.Predict("question -> answer"), tmp_path / "program.json")
        assert loaded.signature.instructions == GOOD
        assert loaded.dump_state() == program.dump_state()

    def test_the_students_own_instruction_is_kept_if_others_hurt(self, instructed):
        program = dspy.Predict("question -> answer")
        _, optimizer = compiled(BAD, program=program, candidates=[{"note": "not shown"}])
        assert optimizer.report.original_stays
        assert not optimizer.report.instructions[0].chosen
        assert optimizer.best_program.signature.equals(program.signature)
        assert "no other program in the final comparison is expected to do better" in str(optimizer.report)

    def test_instructions_can_be_chosen_without_demos(self, instructed):
        program, optimizer = compiled(BAD, GOOD, candidates=[{"note": "not shown"}])
        assert program.signature.instructions == GOOD
        assert program.demos == []
        assert optimizer.report.slots == []
        assert optimizer.report.returned.num_demos == 0

    def test_instructions_are_not_counted_as_demos(self, instructed):
        program, optimizer = compiled(GOOD, IDLE, program=student(2))
        for entry in optimizer.report.best_by_number:
            other = optimizer.program_with(entry.num_demos)
            assert len(other.demos) == len(entry.ordering["self"]) == entry.num_demos <= 3
            texts = [choice.text for choice in optimizer.report.instructions[0].alternatives]
            assert other.signature.instructions == texts[entry.instructions["self"]]
        (returned,) = (entry for entry in optimizer.report.front if entry.is_returned)
        assert returned.num_demos == len(program.demos)
        assert optimizer.report.original.num_demos == 2

    def test_duplicate_and_blank_instructions_are_dropped(self, instructed):
        own = "Given the fields `question`, produce the fields `answer`."
        _, optimizer = compiled(GOOD, " ", f"\n{GOOD}\n", own)
        (entry,) = optimizer.report.instructions
        assert [choice.text for choice in entry.alternatives] == [own, GOOD]
        assert [unused.reason for unused in entry.dropped] == [
            "empty",
            "the prompt is the same as with instructions[0]",
            "the prompt is the same as with student",
        ]
        assert "not used (instructions[1]): empty" in optimizer.report.details()

    @pytest.mark.parametrize(
        "texts", [[""], [" ", "\n"], ["Given the fields `question`, produce the fields `answer`."]]
    )
    def test_instructions_without_a_usable_text_are_rejected(self, instructed, texts):
        with pytest.raises(
            ValueError,
            match=r"for predictor 'self' must be usable; got none \(instructions\[0\]: .*pass other instructions",
        ):
            compiled(*texts)
        two = fakes.two_predictors()
        (name, _), (other, _) = two.named_predictors()
        with pytest.raises(ValueError, match=f"for predictor {other!r} must be usable"):
            compiled(instructions={name: [GOOD], other: [""]}, program=two)
        assert instructed.num_calls == 0

    def test_max_demo_tokens_does_not_limit_instructions(self, instructed):
        program, optimizer = compiled(GOOD, "Give the number. " * 50, max_demo_tokens=60)
        assert program.signature.instructions == GOOD
        assert all(entry.tokens <= 60 for entry in optimizer.report.best_by_number)


def asks_for_hint(system):
    outputs = system.split("Your output fields are:")[-1]
    return "hint" in outputs.split("All interactions")[0]


class TestSeveralPredictors:
    def test_each_has_its_own_instructions(self):
        def share(system, demos, asked):
            if asks_for_hint(system):
                return float(GOOD in system)
            return 0.3 if "wrong" in asked else 0.9

        with using(new_engine(share)):
            texts = {"hint": [BAD, GOOD], "answer.predict": [IDLE]}
            program, optimizer = compiled(program=fakes.two_predictors(), instructions=texts)
        assert program.hint.signature.instructions == GOOD
        first, second = optimizer.report.instructions
        assert (first.predictor, second.predictor) == ("hint", "answer.predict")
        assert second.alternatives[1].origin == "instructions['answer.predict'][0]"

    @pytest.mark.parametrize(
        ("instructions", "message"),
        [
            (
                [GOOD],
                "instructions must be a dict that maps predictor names to lists of strings, because the student has 2",
            ),
            (
                {"hints": [GOOD]},
                r"names of the student's predictors, \['hint', 'answer.predict'\]; got \['hints'\]",
            ),
        ],
    )
    def test_names_must_be_known(self, instructed, instructions, message):
        optimizer = PLFewShot(exact_match, instructions=instructions, display_progress=False)
        for method in (optimizer.compile, optimizer.estimate):
            with pytest.raises(ValueError, match=message):
                method(fakes.two_predictors(), trainset=EXAMPLES)
        assert instructed.num_calls == 0


class TestCalls:
    def test_calls_with_the_students_own_instruction_are_reused(self, tmp_path):
        with using(new_engine()) as engine:
            compiled(log_dir=tmp_path, instructions=None)
            before = engine.num_calls
            _, optimizer = compiled(GOOD, log_dir=tmp_path)
            assert engine.num_calls - before < optimizer.report.program_calls["total"]
            asked = Counter(engine.requests)
            compiled(log_dir=tmp_path, instructions=None)
        assert engine.requests == asked


def sharing_share(system, demos, asked, clash=0.0):
    """Return a share that depends on the instruction and the last demo, plus `clash` if both are good."""
    last = demos[-1] if demos else ""
    share = 0.3 + 0.3 * (GOOD in system) + 0.3 * ("nice" in last) - 0.2 * ("poor" in last)
    return share + clash * (GOOD in system and "nice" in last)


def sharing_engine(**options):
    return new_engine(sharing_share, **options)


def share_of(program, **options):
    (predictor,) = program.predictors()
    shown = [demo.question for demo in predictor.demos if "question" in demo]
    return sharing_share(predictor.signature.instructions, shown, "", **options)


def with_demos(kind, instruction=IDLE, fields="question -> answer"):
    """Return a program with `instruction` and three demos of `kind`, such as "nice"."""
    program = dspy.Predict(dspy.Signature(fields, instruction))
    program.demos = [dspy.Example(question=f"{kind} {i}", answer=str(i), hint="a hint") for i in range(3)]
    return program


def joined(engine, programs, program=None, **options):
    """Compile a program, by default one with good demos, with `programs` as further candidates."""
    options = {"instructions": None, "max_metric_calls": 150, **options}
    with using(engine):
        chosen, optimizer = compiled(program=program or with_demos("nice"), programs=programs, **options)
    return chosen, optimizer.report


@pytest.fixture(scope="module")
def with_other():
    """Return the engine, program and report of a compile with one other program."""
    engine = sharing_engine()
    return engine, *joined(engine, {"other": with_demos("poor", GOOD)})


class TestUserPrograms:
    """Demos and instructions that the user's programs contribute to the search."""

    def test_a_good_instruction_is_combined_with_good_demos(self, with_other, tmp_path):
        _, program, report = with_other
        assert program.signature.instructions == GOOD
        assert share_of(program) == pytest.approx(0.9)
        (entry,) = report.instructions
        assert [choice.origin for choice in entry.alternatives] == ["student", "other"]
        (slot,) = report.slots
        assert slot.origins[:6] == ["student"] * 3 + ["other"] * 3
        assert [way.name for way in report.programs] == ["other"]
        report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == report

    def test_the_result_is_about_as_good_as_the_better_part_alone(self):
        """The good demos and the good instruction each score 0.6 alone, but only 0.2 together."""
        shares = []
        for seed in range(4):
            engine = new_engine(partial(sharing_share, clash=-0.7))
            program, _ = joined(engine, [with_demos("poor", GOOD)], seed=seed)
            shares.append(share_of(program, clash=-0.7))
        assert min(shares) >= 0.5
        assert sum(shares) / len(shares) >= 0.59

    def test_identical_demos_and_instructions_join_once(self):
        examples = with_demos("poor", GOOD)
        examples.demos += [EXAMPLES[0], *with_demos("nice").demos]
        others = {"first": examples, "second": with_demos("poor", GOOD), "third": with_demos("other")}
        _, report = joined(sharing_engine(), others)
        (slot,) = report.slots
        assert Counter(slot.origins).items() >= {"student": 3, "first": 4, "third": 3}.items()
        (entry,) = report.instructions
        assert [choice.origin for choice in entry.alternatives] == ["student", "first"]
        assert [unused.reason for unused in entry.dropped] == ["the prompt is the same as with first"]

    def test_limits_and_the_users_lists_are_respected(self):
        given = [dspy.Example(question="mine", answer="1")]
        long = with_demos("poor", GOOD)
        long.demos.append(dspy.Example(question="long " * 200, answer="1"))
        options = {"max_demos": 2, "max_demo_tokens": 150, "instructions": [BAD]}
        program, report = joined(sharing_engine(), {"other": long}, candidates=given, **options)
        (slot,) = report.slots
        assert slot.origins == ["student"] * 3 + ["other"] * 3 + ["candidates[0]"]
        assert [choice.origin for choice in report.instructions[0].alternatives] == [
            "student",
            "instructions[0]",
            "other",
        ]
        assert all(entry.num_demos <= 2 or entry.num_demos == 3 for entry in report.best_by_number)
        assert len(program.demos) <= 3

    def test_demos_of_user_programs_are_not_scored(self):
        other = with_demos("poor", GOOD)
        other.demos = EXAMPLES[:10]
        engine = sharing_engine()
        joined(engine, [other])
        scored = {
            int(number) for texts in engine.requests for number in re.findall(r"question (\d+)", texts[-1])
        }
        assert scored
        assert not scored & set(range(10))

    def test_predictors_match_by_name_and_fields_or_by_fields_alone(self):
        def unknown(self, question):
            return dspy.Prediction(answer="?")

        fields = "question -> hint"
        named = fakes.two_predictors()
        named.run = unknown
        named.hint = with_demos("c", BAD, fields)
        named.other = with_demos("d", GOOD, fields)
        others = {
            "renamed": fakes.Program(unknown, hinting=with_demos("a", GOOD, fields), again=with_demos("b")),
            "named": named,
            "ambiguous": fakes.Program(
                unknown, x=with_demos("e", IDLE, fields), y=with_demos("f", BAD, fields)
            ),
        }
        _, report = joined(sharing_engine(), others, fakes.two_predictors())
        slots = {slot.predictor: slot for slot in report.slots}
        assert Counter(slots["hint"].origins) == {"renamed": 3, "named": 3}
        assert not {"renamed", "named", "ambiguous"} & set(slots["answer.predict"].origins)
        (entry,) = report.instructions
        assert (entry.predictor, [choice.origin for choice in entry.alternatives]) == (
            "hint",
            ["student", "renamed", "named"],
        )

    def test_a_program_with_other_fields_contributes_no_demos_but_can_win(self):
        right = {example.question: example.answer for example in EXAMPLES}
        other = with_demos("poor", GOOD, "question, hint -> answer")
        best = fakes.Program(lambda self, question: dspy.Prediction(answer=right[question]), inner=other)
        program, report = joined(sharing_engine(), {"best": best})
        assert report.returned.name == "best"
        assert isinstance(program, fakes.Program)
        assert "best" not in report.slots[0].origins
        assert not report.instructions

    def test_plreorder_orders_only_the_students_own_demos(self):
        optimizer = PLReorder(exact_match, max_metric_calls=150, num_threads=1, display_progress=False)
        with using(sharing_engine()):
            optimizer.compile(
                with_demos("nice"), trainset=EXAMPLES, programs={"other": with_demos("poor", GOOD)}
            )
        assert len(optimizer.report.slots[0].demos) == 3
        assert not optimizer.report.instructions


class InstructedLabels(Engine):
    """An engine that gives the correct label a higher probability if the instruction is good."""

    def complete(self, request):
        self.is_good = GOOD in str(request.system)
        return super().complete(request)


class TestCombinations:
    @pytest.mark.parametrize("demos", ["auto", "retrieved"])
    def test_retrieved_demos_keep_the_students_own_instruction(self, instructed, demos, caplog):
        _, optimizer = compiled(GOOD, BAD, demos=demos)
        assert ("instructions are tried without demos" in caplog.text) == (demos == "retrieved")
        report = optimizer.report
        assert len(report.instructions[0].alternatives) == 3
        if report.retrieves:
            assert not report.other_instructions
        variations = [c for c in report.candidates[1:] if not any(c.ordering.values())]
        assert variations or demos == "auto"

    def test_the_estimate_assumes_the_longest_instruction(self, instructed):
        def estimated(*texts):
            optimizer = PLFewShot(exact_match, instructions=list(texts) or None, max_metric_calls=200)
            return optimizer.estimate(dspy.Predict("question -> answer"), trainset=EXAMPLES)

        without = estimated()
        long = estimated("long " * 3000, "lang " * 2000)
        # Bootstrap calls show only the student's own instruction, because the student is the teacher.
        more = 3000 * (long.program_calls - long.bootstrap_calls)
        assert long.prompt_tokens == pytest.approx(without.prompt_tokens + more, rel=0.01)
        assert instructed.num_calls == 0


def proposing(*texts, engine=None, **options):
    """Compile with proposed instructions. Return the program, the optimizer and the prompt model's engine."""
    engine = engine or ProposingEngine(*texts)
    model = lm_of(engine, "fake/proposer")
    limits = {"num_instructions": len(texts) or 3, **options}
    program, optimizer = compiled(instructions="propose", prompt_model=model, **limits)
    return program, optimizer, engine


INSTRUCTED_AT_LENGTH = dspy.Signature("question -> answer", "Name the number of the answer. " * 400)


def described_tool(number):
    def search(query: str, limit: int = 5) -> str:
        return ""

    return dspy.Tool(search, name=f"search_{number}", desc=f"Search database {number} for a query. " * 12)


TOOLS = [described_tool(number) for number in range(12)]


LONG = {
    "instruction": dspy.Predict(INSTRUCTED_AT_LENGTH),
    "code": dspy.ReAct("question -> answer", tools=TOOLS),
}
with_long_prompts = pytest.mark.parametrize("program", LONG.values(), ids=LONG)
"""A mark for tests of programs that make the prompts of the prompt model long."""


class TestProposals:
    def test_are_searched_and_reported_separately_from_program_calls(self, instructed):
        program, optimizer, engine = proposing(BAD, GOOD, IDLE, max_metric_calls=200)
        assert program.signature.instructions == GOOD
        report = optimizer.report
        (entry,) = report.instructions
        assert [choice.origin for choice in entry.alternatives] == [
            "student",
            *(f"proposed[{i}]" for i in range(3)),
        ]
        assert instructed.num_calls == report.program_calls["total"] <= 200
        assert (report.proposals.num_texts, report.proposals.model) == (4, "fake/proposer")
        assert len(engine.prompts) == 13
        assert report.tokens["fake/proposer"]["prompt_tokens"] == 100 * len(engine.prompts)
        assert "4 instructions proposed by" in report.details()
        assert Report.model_validate_json(report.model_dump_json()) == report

    @pytest.mark.parametrize("demos", ["fixed", "auto", "retrieved"])
    def test_proposals_before_the_search_see_no_scored_example(self, instructed, demos):
        _, _, engine = proposing(GOOD, BAD, demos=demos, max_metric_calls=80)
        before = [prompt for prompt in engine.prompts if "new_instruction" not in prompt]
        shown = {int(number) for prompt in before for number in re.findall(r"question (\d+)", prompt)}
        scored = {
            int(number)
            for texts in instructed.requests
            for number in re.findall(r"question (\d+)", texts[-1])
        }
        assert shown
        assert not shown & scored

    def test_are_dropped_with_a_reason_if_they_are_unusable(self, instructed, monkeypatch):
        set_price(monkeypatch, "fake/order-sensitive", 1e-6, max_input_tokens=400)
        _, optimizer, _ = proposing(GOOD, "", GOOD, "very long " * 400)
        (entry,) = optimizer.report.instructions
        assert [choice.text for choice in entry.alternatives[1:]] == [GOOD]
        reasons = {unused.origin: unused.reason for unused in entry.dropped}
        assert reasons == {
            "proposed[1]": "empty",
            "proposed[2]": "the prompt is the same as with proposed[0]",
            "proposed[3]": "too long for the model's context window",
            "from failures[0]": "the prompt is the same as with proposed[0]",
        }

    def test_texts_of_the_user_are_dropped_if_they_exceed_the_context_window(self, instructed, monkeypatch):
        set_price(monkeypatch, "fake/order-sensitive", 1e-6, max_input_tokens=400)
        long = "very long " * 400
        programs = {"other": with_demos("poor", long)}
        _, optimizer = compiled(GOOD, long, programs=programs)
        (entry,) = optimizer.report.instructions
        assert [choice.text for choice in entry.alternatives[1:]] == [GOOD]
        too_long = "too long for the model's context window"
        reasons = {unused.origin: unused.reason for unused in entry.dropped}
        assert reasons == {"instructions[1]": too_long, "other": too_long}
        with pytest.raises(ValueError, match=f"got none .*{too_long}"):
            compiled(long)

    def test_a_long_text_is_kept_if_the_students_own_is_as_long(self, instructed, monkeypatch):
        set_price(monkeypatch, "fake/order-sensitive", 1e-6, max_input_tokens=400)
        program = dspy.Predict(dspy.Signature("question -> answer", "very long " * 400))
        _, optimizer = compiled("many words " * 300, program=program)
        assert len(optimizer.report.instructions[0].alternatives) == 2

    def test_a_report_begins_with_the_reason_if_no_proposal_is_usable(self, instructed):
        own = "Given the fields `question`, produce the fields `answer`."
        _, optimizer, _ = proposing("", "", own, max_metric_calls=80)
        first_line = str(optimizer.report).splitlines()[0]
        assert first_line == (
            "no proposed instruction could be used (empty; the prompt is the same as with student): "
            "try another prompt_model, or pass instructions as a list"
        )
        _, optimizer, _ = proposing("", GOOD, max_metric_calls=80)
        assert "could be used" not in str(optimizer.report)

    def test_each_predictor_gets_its_own_proposals(self, instructed):
        texts = [f"Text {i}." for i in range(4)]
        engine = ProposingEngine(*texts, revise=lambda content: " ")
        _, optimizer, _ = proposing(engine=engine, program=fakes.two_predictors(), num_instructions=2)
        assert [len(entry.alternatives) for entry in optimizer.report.instructions] == [3, 3]
        assert engine.proposed == 4

    @pytest.mark.parametrize("number", [2, 11])
    def test_a_compile_resumed_after_an_interrupt_reuses_the_proposals(self, tmp_path, number):
        engine = ProposingEngine(BAD, GOOD, IDLE, at={number: interrupt})
        with using(new_engine()):
            with pytest.raises(KeyboardInterrupt):
                proposing(engine=engine, log_dir=tmp_path, max_metric_calls=80, max_errors=1)
            _, resumed, _ = proposing(engine=engine, log_dir=tmp_path, max_metric_calls=80)
            num_prompts = len(engine.prompts)
            _, again, _ = proposing(engine=engine, log_dir=tmp_path, max_metric_calls=80)
        assert len(engine.prompts) == num_prompts <= 13 + 3
        assert [choice.text for choice in resumed.report.instructions[0].alternatives[1:]] == [
            BAD,
            GOOD,
            IDLE,
        ]
        assert comparable(again.report) == comparable(resumed.report)

    @pytest.mark.parametrize("number", [2, 11])
    def test_failed_proposals_are_not_repeated_after_the_end(self, tmp_path, number):
        engine = ProposingEngine(BAD, GOOD, IDLE, at={number: failure})
        with using(new_engine()):
            _, first, _ = proposing(engine=engine, log_dir=tmp_path, max_metric_calls=80)
            num_prompts = len(engine.prompts)
            _, again, _ = proposing(engine=engine, log_dir=tmp_path, max_metric_calls=80)
        assert len(engine.prompts) == num_prompts
        assert comparable(again.report) == comparable(first.report)

    def test_other_demos_need_new_proposals(self, instructed, tmp_path):
        engine = ProposingEngine(GOOD)
        options = {"num_instructions": 1, "max_metric_calls": 80, "log_dir": tmp_path}
        for candidates in ("labeled", "bootstrapped", "labeled"):
            proposing(engine=engine, candidates=candidates, **options)
        assert engine.proposed == 2

    def test_a_prompt_model_that_is_down_raises_an_error(self, instructed):
        engine = ProposingEngine(GOOD, at=dict.fromkeys(range(100), failure))
        with pytest.raises(
            RuntimeError, match=r"prompt_model proposed no instruction \(LMUnexpectedError.*as a list"
        ):
            proposing(engine=engine)
        assert instructed.num_calls == 0

    def test_a_prompt_model_that_fails_later_loses_only_some_proposals(self, instructed, caplog):
        engine = ProposingEngine(GOOD, BAD, at=dict.fromkeys(range(8, 100), failure))
        program, optimizer, _ = proposing(engine=engine, num_instructions=4)
        assert "instructions were proposed (LMUnexpectedError" in caplog.text
        assert program.signature.instructions == GOOD
        errors = [error for error in optimizer.report.errors if error.outcome == "gave no instruction"]
        assert errors[0].examples[0].startswith("instruction ")

    def test_max_cost_includes_proposals(self, monkeypatch):
        for model in ("fake/proposer", "fake/order-sensitive"):
            set_price(monkeypatch, model, 1e-5)
        with using(new_engine()):
            _, unlimited, _ = proposing(GOOD, BAD, IDLE)
            assert (
                unlimited.report.cost
                > cost_of({"fake/proposer": unlimited.report.tokens["fake/proposer"]})
                > 0
            )
            limit = 0.5 * unlimited.report.cost
            _, limited, _ = proposing(GOOD, BAD, IDLE, max_cost=limit)
            estimate = limited.estimate(dspy.Predict("question -> answer"), trainset=EXAMPLES)
        assert limited.report.cost <= limit
        assert estimate.proposal_calls == 13
        assert "about 13 calls to the prompt model" in str(estimate)
        without = PLFewShot(exact_match, max_metric_calls=200, max_demos=3, candidates="labeled")
        with using(new_engine()):
            assert (
                without.estimate(dspy.Predict("question -> answer"), trainset=EXAMPLES).cost < estimate.cost
            )

    @with_long_prompts
    def test_the_estimate_includes_long_code_and_instructions(self, instructed, program, monkeypatch):
        set_price(monkeypatch, "fake/proposer", 1e-5)
        set_price(monkeypatch, "fake/order-sensitive", 1e-9)
        engine = ProposingEngine(GOOD, BAD, tokens=fakes.prompt_tokens)
        _, optimizer, _ = proposing(engine=engine, program=program, num_instructions=2)
        estimate = optimizer.estimate(program, trainset=EXAMPLES)
        assert optimizer.report.cost <= estimate.cost <= 3 * optimizer.report.cost

    @with_long_prompts
    def test_a_prompt_with_long_code_or_instructions_is_not_sent_if_it_exceeds_the_share(
        self, instructed, program, monkeypatch
    ):
        """Proposals may use 40% of `max_cost`, so that enough is left for the search."""
        set_price(monkeypatch, "fake/proposer", 1e-5)
        set_price(monkeypatch, "fake/order-sensitive", 1e-9)
        costs = [0.0]

        def count(request):
            tokens = fakes.prompt_tokens(request)
            costs.append(1e-5 * (tokens["input_tokens"] + 5))
            return tokens

        def used(**limits):
            costs.clear()
            engine = ProposingEngine(GOOD, BAD, tokens=count)
            _, optimizer, _ = proposing(engine=engine, program=program, num_instructions=2, **limits)
            assert optimizer.report.program_calls["final"] > 0
            return list(costs)

        unlimited = used()
        for_description = sum(unlimited[:3])
        for number in (1, 4, 5, 6):
            max_cost = (for_description + 0.9 * sum(unlimited[3 : 3 + number])) / 0.4
            assert sum(used(max_cost=max_cost)) <= 0.4 * max_cost

    def test_replies_without_token_counts_raise_an_error(self, instructed, monkeypatch, caplog):
        for model in ("fake/proposer", "fake/order-sensitive"):
            set_price(monkeypatch, model, 1e-5)
        engine = ProposingEngine(GOOD)

        def complete(request, whole=engine.complete):
            response = whole(request)
            object.__setattr__(response, "usage", type(response.usage)())
            return response

        monkeypatch.setattr(engine, "complete", complete)
        with pytest.raises(
            ValueError, match="because the number of tokens in each reply of fake/proposer is unknown"
        ):
            proposing(engine=engine, max_cost=10.0)
        assert "of max_cost and max_seconds" not in caplog.text
        assert instructed.num_calls == 0

    def test_an_adapter_that_shows_no_instruction_is_rejected_before_any_call(self, instructed):
        with dspy.context(adapter=PlainTextAdapter(show_instructions=False)):
            engine = ProposingEngine(GOOD)
            with pytest.raises(ValueError, match="got PlainTextAdapter, which omits them"):
                proposing(engine=engine)
        assert not engine.prompts


WORD = "Use the code word zebra."


def coded_engine(**options):
    """Return an engine that is accurate only with a code word in the instruction."""
    return new_engine(lambda system, demos, asked: 0.95 if "zebra" in system else 0.45, **options)


def with_feedback(example, prediction, trace=None):
    score = exact_match(example, prediction)
    return dspy.Prediction(score=score, feedback="" if score else "The code word zebra is missing.")


def revise(content):
    return WORD if "zebra is missing" in content else "Try harder."


def revising(metric=with_feedback, engine=None, **options):
    """Compile with instructions proposed before and during the search."""
    engine = engine or ProposingEngine(IDLE, revise=revise)
    options = {"num_instructions": 1, "max_metric_calls": 150, **options}
    program, optimizer, _ = proposing(engine=engine, metric=metric, **options)
    return program, optimizer.report, engine


@pytest.fixture(scope="module")
def whole():
    """Return the engine, program, report and prompt model's engine of an uninterrupted compile."""
    with using(coded_engine()) as engine:
        return engine, *revising()


def questions_in(text):
    return set(re.findall(r"question \d+", text))


class TestProposalsFromFailures:
    """Instructions that the prompt model proposes from failures and feedback, halfway through the search."""

    @pytest.mark.parametrize("max_metric_calls", [150, 300])
    def test_an_instruction_that_follows_the_feedback_is_found(self, whole, max_metric_calls):
        engine, program, report, proposer = whole
        if max_metric_calls != 150:
            with using(coded_engine()) as engine:
                program, report, proposer = revising(max_metric_calls=max_metric_calls)
        assert program.signature.instructions == WORD
        (entry,) = report.instructions
        assert [choice.origin for choice in entry.alternatives] == [
            "student",
            "proposed[0]",
            "from failures[0]",
        ]
        assert entry.chosen == 2
        assert PlackettLuce.from_state(entry.distribution).num_items == 3
        assert engine.num_calls == report.program_calls["total"] <= max_metric_calls
        assert report.proposals.num_texts == 2
        assert report.tokens["fake/proposer"]["prompt_tokens"] == 100 * len(proposer.prompts)
        assert "from failures[0]" in str(report)
        assert Report.model_validate_json(report.model_dump_json()) == report

    def test_examples_that_the_prompt_model_saw_are_not_scored(self):
        asked_with_word = set()

        def share(system, demos, asked):
            if "zebra" in system:
                asked_with_word.update(questions_in(asked))
                return 0.95
            return 0.45

        with using(new_engine(share)):
            _, _, proposer = revising()
        shown = questions_in(proposer.prompts[-1])
        assert shown
        assert asked_with_word
        assert not shown & asked_with_word

    def test_without_feedback_the_labels_are_shown(self):
        with using(coded_engine()):
            _, _, proposer = revising(exact_match)
        assert "The score is 0. The right output is {'answer': 'answer" in proposer.prompts[-1]

    def test_nothing_is_proposed_without_failures(self):
        with using(new_engine()):
            _, report, proposer = revising(lambda example, prediction: 1.0)
        assert report.proposals.num_texts == 1
        assert not any("new_instruction" in prompt for prompt in proposer.prompts)

    @pytest.mark.parametrize("text", [IDLE, " "])
    def test_an_unusable_proposal_changes_nothing(self, text):
        with using(coded_engine()) as engine:
            _, report, _ = revising(engine=ProposingEngine(IDLE, revise=lambda content: text))
        (entry,) = report.instructions
        assert [choice.origin for choice in entry.alternatives] == ["student", "proposed[0]"]
        expected = ["from failures[0]"] if text == IDLE else []
        assert [unused.origin for unused in entry.dropped] == expected
        assert engine.num_calls == report.program_calls["total"] <= 150

    @pytest.mark.parametrize("demos", ["auto", "retrieved"])
    def test_retrieved_demos_and_user_programs_can_be_combined(self, demos):
        programs = {"other": with_demos("poor", BAD)}
        with using(coded_engine()):
            program, report, _ = revising(demos=demos, programs=programs, max_metric_calls=300)
        (entry,) = report.instructions
        origins = [choice.origin for choice in entry.alternatives]
        assert origins == ["student", "proposed[0]", "other", "from failures[0]"]
        assert program.signature.instructions == WORD

    def test_an_interrupted_proposal_is_repeated(self, tmp_path, whole):
        uninterrupted, _, report, paid = whole
        proposer = ProposingEngine(IDLE, revise=revise, at={len(paid.prompts) - 1: interrupt})
        with using(coded_engine()) as engine:
            with pytest.raises(KeyboardInterrupt):
                revising(engine=proposer, log_dir=tmp_path)
            _, resumed, _ = revising(engine=proposer, log_dir=tmp_path)
        assert comparable(resumed) == comparable(report)
        assert engine.num_calls == uninterrupted.num_calls
        assert len(proposer.prompts) == len(paid.prompts) + 1

    def test_an_error_of_the_prompt_model_does_not_end_the_compile(self, tmp_path, caplog, whole):
        *_, paid = whole
        proposer = ProposingEngine(
            IDLE, revise=revise, at=dict.fromkeys(range(len(paid.prompts) - 1, 99), failure)
        )
        with using(coded_engine()) as engine:
            _, report, _ = revising(engine=proposer, log_dir=tmp_path, max_errors=1)
            calls = engine.num_calls
            _, again, _ = revising(engine=proposer, log_dir=tmp_path, max_errors=1)
        assert (
            "without an instruction for self from failures, because the prompt model failed" in caplog.text
        )
        (error,) = (error for error in report.errors if error.outcome == "gave no instruction")
        assert error.examples == ["instruction for self from failures"]
        assert calls == report.program_calls["total"] == engine.num_calls
        assert comparable(again) == comparable(report)

    def test_each_predictor_gets_a_proposal_from_its_own_failures(self):
        def share(system, demos, asked):
            if asks_for_hint(system):
                return float(WORD in system)
            return 0.4 if "wrong" in asked else 0.95

        with using(new_engine(share)) as engine:
            program, report, proposer = revising(program=fakes.two_predictors(), max_metric_calls=200)
        assert program.hint.signature.instructions == WORD
        for entry in report.instructions:
            assert [choice.origin for choice in entry.alternatives][2:] == ["from failures[0]"]
        of_hint, of_answer = proposer.prompts[-2:]
        assert "wrong" in of_hint
        assert "because" in of_answer
        assert "because" not in of_hint
        assert engine.num_calls == 2 * report.program_calls["total"]

    @pytest.mark.parametrize(
        ("metric", "options"),
        [(exact, {}), (F1("positive"), {"calibrate": True}), (F1("positive"), {"signal": "score"})],
    )
    def test_log_probabilities_calibration_and_metrics_over_a_set_can_be_combined(self, metric, options):
        proposer = ProposingEngine(BAD, revise=lambda content: GOOD)
        with using(InstructedLabels(), "fake/x"):
            program, report, _ = revising(
                metric, proposer, program=classifier(), trainset=LABELED, max_metric_calls=200, **options
            )
            assert program(text=LABELED[0].text).label
        (predictor,) = program.predictors()
        (entry,) = report.instructions
        assert predictor.signature.instructions == entry.alternatives[entry.chosen].text
        assert [choice.text for choice in entry.alternatives][2:] == [GOOD]
        assert entry.alternatives[2].score is not None

    def test_an_expensive_prompt_model_makes_no_further_proposals(self, monkeypatch, caplog):
        set_price(monkeypatch, "fake/proposer", 1e-4)
        set_price(monkeypatch, "fake/order-sensitive", 1e-6)

        def with_long_feedback(example, prediction, trace=None):
            judged = with_feedback(example, prediction)
            judged.feedback *= 60
            return judged

        with using(coded_engine()):
            _, unlimited, _ = revising(with_long_feedback, max_cost=100.0)
            assert unlimited.proposals.num_texts == 2
            _, limited, _ = revising(with_long_feedback, max_cost=0.9)
        assert limited.proposals.num_texts == 1
        assert "without an instruction for self from failures: cost limit" in caplog.text
        assert limited.cost <= 0.9

    def test_prompts_with_long_inputs_are_not_sent_if_they_exceed_the_share(self, monkeypatch, caplog):
        """The program adds passages to its prompts, so the inputs are much longer than the examples."""

        def retrieve(self, question):
            return self.answer(context="many words " * 500, question=question)

        set_price(monkeypatch, "fake/proposer", 1e-5)
        set_price(monkeypatch, "fake/order-sensitive", 1e-9)
        program = fakes.Program(retrieve, answer=dspy.Predict("context, question -> answer"))

        def limited(max_cost):
            engine = ProposingEngine(IDLE, revise=revise, tokens=fakes.prompt_tokens)
            with using(coded_engine()):
                _, report, _ = revising(program=program, engine=engine, max_cost=max_cost)
            return report

        unlimited = limited(100.0)
        assert unlimited.proposals.num_texts == 2
        assert unlimited.cost > 0.08
        report = limited(0.5)
        assert "without an instruction for answer from failures: cost limit" in caplog.text
        assert report.cost < 0.04
        assert report.program_calls["final"] > 0
        assert limited(1.2).proposals.num_texts == 2
