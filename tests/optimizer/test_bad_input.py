"""Errors about bad input, raised before any program call, and the fixes that they state."""

import inspect
import re

import dspy
import numpy as np
import pandas
import pytest
from fakes import OnlyAsync, Wrapped, exact_match, questions, student

from plr_dspy import F1, BatchCalibration, PLFewShot, PLReorder, headroom
from plr_dspy.baselines import PDO, DEmO, LocalE, StaticOrder, TopKOrder

EXAMPLES = questions(120)


FREE = "question -> answer"
LABELS = "question -> answer: Literal['answer 0', 'answer 1', 'answer 2']"


def optimizer(**options):
    defaults = {"metric": exact_match, "num_threads": 4, "display_progress": False}
    return PLReorder(**{**defaults, **options})


class Async(Wrapped):
    async def forward(self, question):
        return await self.answer.acall(question=question)


async def async_metric(example, prediction):
    return 1.0


CONSTRUCTOR = {
    "metric": [
        None,
        "exact_match",
        lambda: 1.0,
        lambda example: 1.0,
        lambda example, prediction, *, limit: 1.0,
        dspy.evaluate.SemanticF1,
        async_metric,
    ],
    "update": ["adam", 3],
    "auto": ["extreme", None],
    "max_metric_calls": [0, 10.5, "1000"],
    "max_cost": [0, float("inf"), "$1"],
    "max_seconds": [0, -5, float("nan"), "1h", True],
    "stop_at_score": [float("inf"), "90%"],
    "patience": [0, 1.5],
    "num_iterations": [-1],
    "num_samples": [True, np.bool_(True), 0],
    "elite_fraction": [0.0, 20, float("nan"), "half"],
    "num_final_draws": [-1],
    "num_threads": [0],
    "max_errors": [0],
    "seed": [-1, 2**64, "today"],
    "log_dir": [7, b"folder", ""],
    "signal": ["logprob", "", None, 1, ["auto"], True],
    "min_probability": [1.1, -0.1, "sure"],
}
OF_FEWSHOT = {"candidates": ["some", ["text"]], "max_demos": [None]}


def with_demos_none():
    program = student()
    program.demos = None
    return program


def with_name_of_lm():
    program = student()
    program.lm = "x"
    return program


TEXT = dspy.Example(text="t", answer="a").with_inputs("text")
COMPILE = [
    (lambda: None, {}, "student must be a dspy.Module; got NoneType"),
    (lambda: Wrapped, {}, "student must be a dspy.Module; .*pass an instance"),
    (Async, {}, r"async program.*dspy.syncify\(program\)"),
    (OnlyAsync, {}, r"async program.*dspy.syncify\(program\)"),
    (student, {"trainset": EXAMPLES[:7]}, "trainset must contain at least two .*pass more examples"),
    (
        student,
        {"trainset": [EXAMPLES[-1]] * 30},
        r"got 30 examples \(1 usable\): pass more examples, or fewer demos",
    ),
    (
        student,
        {"trainset": None},
        "trainset must be a list of dspy.Example or of dicts, .*; got NoneType: pass a list",
    ),
    (
        student,
        {"trainset": "data.json"},
        "trainset must be a list of dspy.Example .*; got str: pass a list",
    ),
    (
        student,
        {"trainset": iter(EXAMPLES)},
        r"trainset must be a list of dspy.Example .*pass list\(trainset\)",
    ),
    (
        student,
        {"trainset": pandas.DataFrame({"question": ["q"]})},
        r"got DataFrame: pass trainset.to_dict\('records'\)",
    ),
    (
        lambda: student(["a", "b"]),
        {},
        "demo 0 of predictor 'self' of student must be a .* or a dict; got 'a': use",
    ),
    (
        with_demos_none,
        {},
        "the demos of predictor 'self' of student must be a list; got None: set demos to a list",
    ),
    (
        with_name_of_lm,
        {},
        r"the lm of predictor 'self' of student must be a dspy.LM; got 'x': use dspy.LM\('x'\)",
    ),
    (
        student,
        {"adapter": dspy.ChatAdapter},
        r"adapter must be an instance .*configure\(adapter=dspy.ChatAdapter\(\)",
    ),
    (student, {"adapter": "chat"}, "adapter must be an instance of dspy.Adapter; got 'chat'"),
    (
        student,
        {"trainset": [("q", "a")]},
        r"trainset\[0\] must be a dspy.Example or a dict; got tuple: pass .* a dict",
    ),
    (
        student,
        {"trainset": [{"text": "t"}]},
        r"trainset must have columns for .*\['question'\]; got the columns \['text'\]",
    ),
    (Wrapped, {"valset": [{"text": "t"}]}, r"valset must have columns for .*\['question'\].*pass inputs="),
    (
        student,
        {"trainset": [dspy.Example(question=None)]},
        r"trainset\[0\] must have values for .*\['question'\]; got None",
    ),
    (student, {"inputs": "question"}, r"inputs must be a list .*; got 'question': pass \['question'\]"),
    (student, {"inputs": []}, r"inputs must be a list .*; got \[\]: pass a list"),
    (student, {"inputs": ["question", "answer"]}, "inputs must not name outputs .*: remove 'answer'"),
    (
        student,
        {"inputs": ["text"]},
        r"inputs must equal the inputs .*; got \['text'\], but trainset\[0\] declares \['question'\]",
    ),
    (
        student,
        {"trainset": [{"question": "q"}], "inputs": ["question", "text"]},
        r"trainset\[0\] must have the inputs .*; got the columns \['question'\]: add \['text'\]",
    ),
    (
        student,
        {"trainset": [*EXAMPLES, TEXT]},
        r"\[120\] must have the inputs \['question'\] of student; its inputs are \['text'\]: rename",
    ),
    (student, {"valset": [1]}, r"valset\[0\] must be a dspy.Example or a dict; got int"),
    (
        student,
        {"valset": EXAMPLES[:6]},
        "an example that no demo shows, and trainset must have one whose inputs are not in valset; got",
    ),
    (student, {"seed": -3}, "seed"),
    (student, {"seed": 1.5}, "seed"),
    (student, {"lm": None}, r"no LM is configured: call dspy.configure\(lm=dspy.LM\(...\)\)"),
    (student, {"lm": "openai/gpt"}, r"lm must be a dspy.LM.*dspy.configure\(lm=dspy.LM\('openai/gpt'\)\)$"),
    (student, {"lm": dspy.LM}, r"lm must be a dspy.LM.*dspy.LM\(\.\.\.\)\)$"),
]


def wrong_values():
    for kind, arguments in ((PLReorder, CONSTRUCTOR), (PLFewShot, OF_FEWSHOT)):
        for name, values in arguments.items():
            for value in values:
                yield kind, name, value


@pytest.mark.parametrize(("kind", "name", "value"), list(wrong_values()))
def test_constructor_arguments_are_checked(kind, name, value):
    options = {"metric": exact_match}
    if name == "auto":
        options["max_metric_calls"] = None
    with pytest.raises((TypeError, ValueError), match=name):
        kind(**{**options, name: value})


def flags_and_numbers():
    """For each optimizer class, yield each flag and number with a value of the wrong type."""
    baselines = (TopKOrder, StaticOrder, PDO, LocalE, DEmO)
    for kind in (PLReorder, PLFewShot, BatchCalibration, headroom, *baselines):
        for name, parameter in inspect.signature(kind).parameters.items():
            said = str(parameter.annotation)
            if said in ("bool", "Flag"):
                yield pytest.param(kind, name, "no", id=f"{kind.__name__}-{name}")
            elif re.search(r"\b(int|Count|WholeNumber|Seed)\b", said):
                yield pytest.param(kind, name, True, id=f"{kind.__name__}-{name}")


@pytest.mark.parametrize(
    "value", [[], {}, {"self": []}, {"self": "x"}, "Be good.", ["a", None], "proposed"]
)
def test_the_error_describes_valid_instructions_in_words(value):
    message = (
        "instructions must be 'propose', a non-empty list of strings, or a dict from predictor names to such lists; "
        f"got {value!r}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PLFewShot(exact_match, instructions=value)
    optimizer = PLFewShot(exact_match)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        optimizer.instructions = value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PLReorder(), "^metric is missing: pass metric=...$"),
        (
            lambda: PLReorder("f1:yes"),
            r"got 'f1:yes': pass the metric itself, not its name, as in metric=F1\('positive'\)",
        ),
        (
            lambda: PLFewShot(F1),
            r"got <class .*F1'>: pass an instance of this class, as in metric=F1\(...\)",
        ),
        (
            lambda: PLReorder(exact_match, max_calls=9),
            "^PLReorder has no argument max_calls; got max_calls=9: omit max_calls, or pass max_metric_calls or ",
        ),
        (
            lambda: BatchCalibration(F1()),
            "BatchCalibration takes no positional arguments; got .*: pass all arguments by",
        ),
        (
            lambda: PLFewShot(exact_match, prompt_model="openai/x"),
            r"prompt_model must be a dspy.LM or None; for example, dspy.LM\(.*got 'openai/x'$",
        ),
        (
            lambda: PLFewShot(exact_match, demos="auto", embedder="x"),
            "embedder must be a dspy.Embedder .*got 'x'$",
        ),
    ],
)
def test_errors_of_constructors_state_a_fix(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_each_requirement_is_stated_once():
    with pytest.raises(ValueError, match=r"^instructions must have at least 1 character; got ''$"):
        headroom(student(), exact_match, EXAMPLES, instructions=["", ""])
    with pytest.raises(
        ValueError, match=r"^candidates must be 'both', .* or a non-empty list of demos; got \[\]$"
    ):
        PLFewShot(exact_match, candidates=[])


@pytest.mark.parametrize(("kind", "name", "wrong"), list(flags_and_numbers()))
def test_strings_are_not_bools_and_bools_are_not_numbers(engine, kind, name, wrong):
    arguments = () if kind is BatchCalibration else (exact_match,)
    with pytest.raises((TypeError, ValueError), match=name):
        if kind is headroom:
            kind(student(), exact_match, EXAMPLES, **{name: wrong})
        else:
            kind(*arguments, **{name: wrong})
    assert engine.num_calls == 0


@pytest.mark.parametrize(
    ("kind", "options", "later", "said"),
    [
        (PLFewShot, {}, {"min_demos": 20}, "min_demos must be at most max_demos=8"),
        (PLReorder, {}, {"auto": None}, "auto=None needs a number of program calls"),
        (PLReorder, {"signal": "score"}, {"calibrate": True}, "calibrate needs log-probabilities"),
        (
            PLReorder,
            {"auto": "paper"},
            {"calibrate": True},
            "but calibrate needs .*: omit calibrate, or pass another budget, such as auto='light'",
        ),
        (
            PLFewShot,
            {"demos": "retrieved", "calibrate": True},
            {"max_metric_calls": 0},
            "calibrate=True needs program",
        ),
        (PLFewShot, {"demos": "fixed"}, {"max_metric_calls": 0}, "demos='fixed' needs program calls"),
        (
            PLFewShot,
            {"demos": "retrieved"},
            {"max_metric_calls": 0, "candidates": "bootstrapped"},
            "candidates='bootstrapped' needs program calls",
        ),
        (
            PLReorder,
            {"auto": "paper"},
            {"signal": "logprobs"},
            "but signal=.logprobs. needs .*: omit signal=.logprobs.",
        ),
        (
            PDO,
            {"setting": "prior", "prior": {"a": 1}},
            {"setting": "few-shot"},
            "prior requires setting='prior",
        ),
        (
            PLFewShot,
            {"demos": "retrieved", "instructions": ["Think."]},
            {"max_metric_calls": 0},
            "instructions=.* needs program calls",
        ),
        (
            PLFewShot,
            {"instructions": ["Think."]},
            {"prompt_model": dspy.LM("fake/x")},
            "prompt_model needs instructions",
        ),
        (
            PLFewShot,
            {},
            {"num_instructions": 3},
            "num_instructions needs instructions='propose'; got None: pass instructions='propose', or omit num_",
        ),
        (
            PLFewShot,
            {"instructions": ["Think."]},
            {"num_instructions": 3},
            "num_instructions needs instructions=",
        ),
        (PLFewShot, {"instructions": "propose"}, {"num_instructions": 0}, "num_instructions"),
        (PLReorder, {}, {"max_metric_calls": 10**20}, "max_metric_calls must be less than"),
        (PLReorder, {}, {"num_demos": 1}, "num_demos must be greater than or equal to 2; got 1$"),
        (PLReorder, {}, {"max_cost": np.arange(1000.0)}, "max_cost must be a valid number"),
        (PLReorder, {}, {"calibrate": "half"}, "must be a valid boolean; got 'half'; calibrate must be a"),
        (PLReorder, {}, {"calibrate": {"a": "half"}}, "calibrate must be a valid number"),
    ],
)
def test_attributes_set_later_are_checked_before_any_call(engine, kind, options, later, said):
    optimizer = kind(exact_match, **options)
    with pytest.raises((TypeError, ValueError), match=said) as caught:
        for name, value in later.items():
            setattr(optimizer, name, value)
        optimizer.compile(student(), trainset=EXAMPLES)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert engine.num_calls == 0
    with pytest.raises((TypeError, ValueError), match=said):
        kind(exact_match, **{**options, **later})


@pytest.mark.parametrize(("make", "options", "message"), COMPILE)
def test_compile_and_estimate_check_their_arguments(engine, make, options, message):
    """Neither method calls the program."""
    settings = {name: value for name, value in options.items() if name in ("lm", "adapter")}
    data = {name: value for name, value in options.items() if name not in settings}
    for method in ("compile", "estimate"):
        with dspy.context(**settings), pytest.raises((TypeError, ValueError), match=message):
            getattr(optimizer(), method)(make(), **{"trainset": EXAMPLES, **data})
    assert engine.num_calls == 0


def test_few_examples_that_can_be_scored_are_reported(engine, caplog):
    reorder = optimizer(max_metric_calls=500)
    trainset = EXAMPLES[-6:] * 20
    valset = [EXAMPLES[10]] * 5 + EXAMPLES[11:13]
    reorder.compile(student(EXAMPLES[:3]), trainset=trainset, valset=valset)
    assert reorder.report.settings["num_train"] == 6
    assert reorder.report.settings["num_selection"] == 3
    assert "only 9 of 127 examples can be used for scoring" in caplog.text


@pytest.mark.parametrize(
    ("value", "field"), [(np.zeros(2), "answer"), ({1: "a"}, "note"), (10**30, "answer")]
)
def test_demos_that_json_cannot_store_cause_a_warning(engine, caplog, tmp_path, value, field):
    demos = [dspy.Example(**{**example, field: value}) for example in EXAMPLES[:3]]
    program = student([*EXAMPLES[3:5], *demos])
    for _ in range(2):
        reorder = optimizer(max_metric_calls=60, log_dir=tmp_path / "log")
        result = reorder.compile(program, trainset=EXAMPLES)
    assert reorder.report.program_calls["resumed"] == reorder.report.program_calls["total"] > 0
    warnings = [message for message in caplog.messages if "x.json" in message]
    assert len(warnings) == 2  # Each compile warns once.
    said = f"demo 2 of predictor 'self' has a value of type {type(value).__name__} in field {field!r}"
    assert said in warnings[0]
    with pytest.raises(RuntimeError):
        result.save(tmp_path / "x.json")
    reorder.report.save(tmp_path / "report.json")
    result.save(tmp_path / "whole", save_program=True)
    assert str(dspy.load(tmp_path / "whole", allow_pickle=True).demos) == str(result.demos)


def test_an_unwritable_log_dir_is_rejected(engine, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "calls.jsonl").mkdir()
    for folder in (tmp_path / "file", "a\0b", tmp_path):
        with pytest.raises(ValueError, match="log_dir must be a writable folder"):
            optimizer(log_dir=folder).compile(student(), trainset=EXAMPLES)
    assert engine.num_calls == 0


def test_an_lm_set_on_the_program_is_enough(engine):
    reorder = optimizer(max_metric_calls=60)
    program = student()
    program.lm = dspy.settings.lm
    with dspy.context(lm=None):
        assert reorder.compile(program, trainset=EXAMPLES).lm is program.lm


@pytest.mark.parametrize(
    ("signature", "options", "message"),
    [
        (FREE, {"metric": F1("typo")}, "for this metric, at least one example must have the label 'typo'"),
        (
            FREE,
            {"max_cost": 1.0},
            "max_cost cannot be applied, because the price of fake/order-sensitive is unknown",
        ),
        (
            FREE,
            {"calibrate": True},
            "calibrate needs the log-probabilities of labels, but they are not available",
        ),
        (FREE, {"signal": "logprobs"}, "signal='logprobs' needs the log-probabilities"),
        (LABELS, {"calibrate": {"answer 0": 0.25}}, "a share above 0 for each of the labels"),
    ],
)
@pytest.mark.parametrize("kind", [PLFewShot, PLReorder])
def test_a_small_budget_hides_no_error_in_other_arguments(engine, kind, signature, options, message):
    small = kind(**{"metric": exact_match, "max_metric_calls": 5, **options})
    for method in (small.estimate, small.compile):
        with pytest.raises(ValueError, match=message):
            method(student(4, signature), trainset=EXAMPLES)
    with pytest.raises(ValueError, match="max_metric_calls must be at least"):
        kind(exact_match, max_metric_calls=5).compile(student(), trainset=EXAMPLES)
    assert engine.num_calls == 0


def least(error):
    number = re.search(r"max_metric_calls must be at least (\d+)", str(error.value))
    return int(number.group(1))


def compiled(reorder=None, program=None, **data):
    reorder = reorder or optimizer(max_metric_calls=120)
    return reorder.compile(program or student(5), **{"trainset": EXAMPLES[:60], **data})


class TestFixes:
    """Checks that the fix in an error message works."""

    def test_of_a_program_named_student(self, engine):
        fewshot = PLFewShot(exact_match, max_metric_calls=120, display_progress=False)
        message = "programs must not have the name 'student'.* under another name, such as 'program 1'"
        with pytest.raises(ValueError, match=message):
            compiled(fewshot, programs={"student": student(3)})
        compiled(fewshot, programs={"program 1": student(3)})
        assert [program.name for program in fewshot.report.programs] == ["program 1"]
        compiled(programs={"student": student(3)})

    def test_of_overlapping_sets(self, engine):
        message = r"got 60 examples in trainset \(0 usable\) and .* in valset"
        with pytest.raises(ValueError, match=message):
            compiled(valset=EXAMPLES[:60])
        compiled(trainset=EXAMPLES[:40], valset=EXAMPLES[40:60])
        message = r"trainset and valset must each contain an example.*pass more examples"
        with pytest.raises(ValueError, match=message):
            compiled(trainset=EXAMPLES[:6], valset=EXAMPLES[5:6])
        compiled(valset=EXAMPLES[5:6])

    def test_of_a_large_num_samples(self, engine):
        options = {"max_metric_calls": 60, "num_samples": 50}
        message = r"with num_samples=50 .*or reduce num_samples$"
        with pytest.raises(ValueError, match=message) as error:
            compiled(optimizer(**options))
        for fix in ({"num_samples": 5}, {"max_metric_calls": least(error)}):
            optimizer(**{**options, **fix}).estimate(student(5), trainset=EXAMPLES[:60])

    def test_of_a_small_budget_for_the_paper(self, engine):
        message = r"increase max_metric_calls, or use auto='light'$"
        with pytest.raises(ValueError, match=message) as error:
            compiled(optimizer(auto="paper", max_metric_calls=100))
        enough = {"auto": "paper", "max_metric_calls": least(error)}
        for options in (enough, {"max_metric_calls": 100}):
            optimizer(**options).estimate(student(5), trainset=EXAMPLES[:60])

    def test_of_frozen_parts(self, engine):
        program = Wrapped()
        program.answer = Wrapped()
        program.answer._compiled = True
        message = "pass the sub-module itself, or set its _compiled to False"
        with pytest.raises(ValueError, match=message):
            compiled(program=program)
        compiled(program=program.answer)
        program.answer._compiled = False
        compiled(program=program)

    def test_of_ensembles_and_missing_demos(self, engine):
        members = [student(5), student(EXAMPLES[:4])]
        members = [compiled(program=member) for member in members]
        ensemble = dspy.Ensemble(reduce_fn=dspy.majority).compile(members)
        assert ensemble(question="question 50").answer
        message = r"none were added: choose demos with PLFewShot .*, or set num_demos"
        with pytest.raises(ValueError, match=message):
            compiled(optimizer(num_demos=None), student([]))
        with pytest.raises(ValueError, match="pass at least 3 examples"):
            PLReorder(exact_match).compile(student([]), trainset=EXAMPLES[:2])
        compiled(optimizer(num_demos=4, max_metric_calls=120), student([]))
