"""Every mistake gets an error that names the argument and the cure, before any call is paid."""

import asyncio
import inspect

import dspy
import numpy as np
import pytest
from fakes import exact_match, fake_lm, questions, student

from plr_dspy import BatchCalibration, PLFewShot, PLReorder, order_sensitivity
from plr_dspy.baselines import PDO, DEmO, LocalE, StaticOrder, TopKOrder
from plr_dspy.optimizer.base import Reorderer

EXAMPLES = questions(120)


@pytest.fixture
def engine():
    lm, engine = fake_lm(EXAMPLES)
    with dspy.context(lm=lm):
        yield engine


def optimizer(**options):
    return PLReorder(**{"metric": exact_match, "num_threads": 4, "display_progress": False, **options})


class Wrapped(dspy.Module):
    def __init__(self):
        super().__init__()
        self.answer = student()

    def forward(self, question):
        return self.answer(question=question)


class Anything(Wrapped):
    def forward(self, **inputs):
        return self.answer(**inputs)


class Async(Wrapped):
    async def forward(self, question):
        return await self.answer.acall(question=question)


class OnlyAsync(dspy.Module):
    def __init__(self):
        super().__init__()
        self.answer = student()

    async def aforward(self, question):
        return await self.answer.acall(question=question)


class WithoutForward(dspy.Module):
    def __init__(self):
        super().__init__()
        self.answer = student()


class Frozen(Wrapped):
    def __init__(self):
        super().__init__()
        self.answer = Wrapped()
        self.answer._compiled = True


class Twins(Wrapped):
    def __init__(self):
        super().__init__()
        self.parts = {1: student(), "1": student()}


def knn_few_shot():
    embedder = dspy.Embedder(lambda texts: np.zeros((len(texts), 2)))
    return dspy.KNNFewShot(k=2, trainset=EXAMPLES[:9], vectorizer=embedder).compile(student())


def ensemble():
    return dspy.Ensemble(reduce_fn=dspy.majority).compile([student(), student()])


def without_demos(value):
    program = student()
    program.demos = value
    return program


async def async_metric(example, prediction):
    return 1.0


CONSTRUCTOR = [
    ({"metric": None}, TypeError, r"metric must be callable as metric\(example, prediction\); got None"),
    ({"metric": "exact_match"}, TypeError, "metric must be callable"),
    ({"metric": lambda: 1.0}, TypeError, "metric must be callable as .* its signature is"),
    ({"metric": lambda example: 1.0}, TypeError, "metric must be callable as"),
    ({"metric": lambda example, prediction, *, limit: 1.0}, TypeError, "metric must be callable as"),
    ({"metric": dspy.evaluate.SemanticF1}, TypeError, "metric .* is a class: pass an instance"),
    ({"metric": async_metric}, TypeError, "metric must not be async: pass metric=lambda"),
    ({"update": "adam"}, ValueError, "update must be one of"),
    ({"update": 3}, TypeError, "update object"),
    ({"auto": "extreme"}, ValueError, "auto must be one of .*light"),
    ({"auto": None}, ValueError, "auto=None needs a number of program calls: pass max_metric_calls"),
    ({"max_metric_calls": 0}, ValueError, "max_metric_calls must be at least 1"),
    ({"max_metric_calls": 10.5}, TypeError, "max_metric_calls must be a whole number"),
    ({"max_metric_calls": "1000"}, TypeError, "max_metric_calls must be a whole number"),
    ({"max_cost": 0}, ValueError, "max_cost must be a finite number above 0"),
    ({"max_cost": float("inf")}, ValueError, "max_cost must be a finite number above 0"),
    ({"max_cost": "$1"}, TypeError, "max_cost must be a number or None"),
    ({"max_seconds": 0}, ValueError, "max_seconds must be a finite number above 0"),
    ({"max_seconds": -5}, ValueError, "max_seconds must be a finite number above 0"),
    ({"max_seconds": float("nan")}, ValueError, "max_seconds must be a finite number above 0"),
    ({"max_seconds": "1h"}, TypeError, "max_seconds must be a number or None"),
    ({"max_seconds": True}, TypeError, "max_seconds must be a number or None"),
    ({"stop_at_score": float("inf")}, ValueError, "stop_at_score must be a finite number"),
    ({"stop_at_score": "90%"}, TypeError, "stop_at_score must be a number or None"),
    ({"patience": 0}, ValueError, "patience must be at least 1"),
    ({"patience": 1.5}, TypeError, "patience must be a whole number"),
    ({"num_iterations": -1}, ValueError, "num_iterations must be at least 1"),
    ({"num_samples": True}, TypeError, "num_samples must be a whole number"),
    ({"num_samples": np.bool_(True)}, TypeError, "num_samples must be a whole number"),
    ({"elite_fraction": 0.0}, ValueError, r"elite_fraction must lie in \(0, 1\]"),
    ({"elite_fraction": 20}, ValueError, r"elite_fraction must lie in \(0, 1\]"),
    ({"elite_fraction": float("nan")}, ValueError, r"elite_fraction must lie in \(0, 1\]"),
    ({"elite_fraction": "half"}, TypeError, r"elite_fraction must be a number in \(0, 1\]"),
    ({"num_final_draws": -1}, ValueError, "num_final_draws must be at least 0"),
    ({"num_demos": 1}, ValueError, "num_demos must be at least 2"),
    ({"num_threads": 0}, ValueError, "num_threads must be at least 1"),
    ({"max_errors": 0}, ValueError, "max_errors must be at least 1"),
    ({"seed": -1}, ValueError, "seed must be between 0 and"),
    ({"seed": 2**64}, ValueError, "seed must be between 0 and"),
    ({"seed": "today"}, TypeError, "seed must be a whole number"),
    ({"log_dir": 7}, TypeError, "log_dir must be the path of a folder"),
    ({"log_dir": b"folder"}, TypeError, "log_dir must be the path of a folder"),
    ({"log_dir": ""}, TypeError, "log_dir must be the path of a folder"),
]

COMPILE = [
    (lambda: None, {}, TypeError, "student must be a dspy.Module; got NoneType"),
    (lambda: Wrapped, {}, TypeError, "student must be a dspy.Module; .*pass an instance, not the class"),
    (lambda: "question -> answer", {}, TypeError, "student must be a dspy.Module; got str"),
    (dspy.Module, {}, TypeError, "student must have a forward method.*define one"),
    (WithoutForward, {}, TypeError, "student must have a forward method.*define one"),
    (Async, {}, TypeError, r"async program.*dspy.syncify\(program\)"),
    (OnlyAsync, {}, TypeError, r"async program.*dspy.syncify\(program\)"),
    (Frozen, {}, ValueError, "no predictors.*compile the sub-module itself"),
    (Twins, {}, ValueError, "several predictors of one name.*rename"),
    (knn_few_shot, {}, TypeError, "KNNFewShot.*use an optimizer that leaves demos"),
    (ensemble, {}, TypeError, "Ensemble: compile its members"),
    (lambda: student(["text", "more"]), {}, TypeError, "demo 0 of predictor 'self' must be a dspy.Example"),
    (
        lambda: student([dspy.Example(q="q", a=str(i)) for i in range(4)]),
        {},
        ValueError,
        "demos of predictor 'self' hold .*'a', 'q'.*rename the fields",
    ),
    (lambda: without_demos(None), {}, TypeError, "demos of predictor 'self' must be a list; got NoneType"),
    (lambda: student([]), {"num_demos": None}, ValueError, "student has no demos to order.*pass num_demos"),
    (student, {"trainset": []}, ValueError, "trainset must hold .*pass more examples"),
    (student, {"trainset": EXAMPLES[:7]}, ValueError, "trainset must hold at least two .*pass more examples"),
    (student, {"trainset": None}, TypeError, "trainset must be a list of dspy.Example; got NoneType"),
    (student, {"trainset": "data.json"}, TypeError, "trainset must be a list of dspy.Example; got str"),
    (student, {"trainset": np.array([1, 2])}, TypeError, "trainset must be a list of dspy.Example"),
    (student, {"trainset": iter(EXAMPLES)}, TypeError, "trainset must be a list of dspy.Example"),
    (
        student,
        {"trainset": [{"question": "q"}]},
        TypeError,
        r'trainset\[0\] must be a dspy.Example; got dict: make each one .*with_inputs\("question"\)',
    ),
    (
        student,
        {"trainset": [("question 1", "answer 1")]},
        TypeError,
        r'got tuple: make each one dspy.Example\(...\).with_inputs\("question"\)$',
    ),
    (
        student,
        {"trainset": [dspy.Example(question="q")] * 9},
        ValueError,
        r'trainset\[0\] has no inputs: name those of each example by with_inputs\("question"\)$',
    ),
    (
        Wrapped,
        {"valset": [dspy.Example(question="q")] * 9},
        ValueError,
        r'valset\[0\] has no inputs: name those of each example by with_inputs\("question"\)$',
    ),
    (
        student,
        {"trainset": [dspy.Example(text="t")] * 9},
        ValueError,
        r'has no inputs: .*with_inputs\("question"\)',
    ),
    (
        Anything,
        {"trainset": [{"question": "q"}] * 9},
        TypeError,
        r"got dict: make each one dspy.Example\(...\).with_inputs\(...\)$",
    ),
    (
        student,
        {"trainset": [*EXAMPLES, dspy.Example(text="t", answer="a").with_inputs("text")]},
        ValueError,
        r"trainset\[120\] must give the program's inputs: it needs \['question'\]; it has \['text'\]: rename",
    ),
    (
        Wrapped,
        {"trainset": [e.with_inputs("question", "answer") for e in EXAMPLES]},
        ValueError,
        r"trainset\[0\] must give the program's inputs: forward\(question\) cannot take them.*rename",
    ),
    (student, {"valset": [1]}, TypeError, r"valset\[0\] must be a dspy.Example; got int"),
    (student, {"valset": EXAMPLES[:6]}, ValueError, "valset must hold an example that no demo shows"),
    (
        student,
        {"valset": [dspy.Example(text="t").with_inputs("text")]},
        ValueError,
        r"valset\[0\] must give the program's inputs",
    ),
    (student, {"seed": -3}, ValueError, "seed must be between 0 and"),
    (student, {"seed": 1.5}, TypeError, "seed must be a whole number"),
    (student, {"max_metric_calls": 12}, ValueError, r"max_metric_calls must be at least \d+ .*raise it"),
    (
        student,
        {"auto": "paper", "max_metric_calls": 50},
        ValueError,
        r"max_metric_calls must be at least \d+ with auto='paper'.*use auto='light'",
    ),
    (student, {"lm": None}, ValueError, r"no LM is configured: call dspy.configure"),
    (student, {"lm": "openai/gpt"}, TypeError, r"lm must be a dspy.LM.*dspy.LM\('openai/gpt'\)"),
    (student, {"adapter": "json"}, TypeError, "adapter must be a dspy.Adapter; got 'json': pass one"),
]


def test_there_are_forty_at_least():
    assert len(CONSTRUCTOR) + len(COMPILE) >= 40


@pytest.mark.parametrize(("options", "error", "message"), CONSTRUCTOR)
def test_constructor(options, error, message):
    with pytest.raises(error, match=message) as caught:
        optimizer(**options)
    assert type(caught.value) is error


def flags_and_numbers():
    """Each argument that is a bool, with a text, and each that is a whole number, with a bool."""
    common = [name for name in inspect.signature(Reorderer).parameters if name != "metric"]
    kinds = [
        PLReorder,
        PLFewShot,
        BatchCalibration,
        TopKOrder,
        StaticOrder,
        PDO,
        LocalE,
        DEmO,
        order_sensitivity,
    ]
    for kind in kinds:
        parameters = dict(inspect.signature(kind).parameters)
        if "common" in parameters:
            parameters |= {name: inspect.signature(Reorderer).parameters[name] for name in common}
        for name, parameter in parameters.items():
            wrong = {"bool": "no", "int": True, "int | None": True}.get(parameter.annotation)
            if wrong is not None:
                yield pytest.param(kind, {name: wrong}, id=f"{kind.__name__}-{name}")


@pytest.mark.parametrize(("kind", "wrong"), list(flags_and_numbers()))
def test_a_text_is_no_bool_and_a_bool_no_number(engine, kind, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(TypeError, match=rf"^{name} must be .*; got {value!r}$"):
        if kind is order_sensitivity:
            kind(student(), exact_match, EXAMPLES, **wrong)
        elif kind is BatchCalibration:
            kind(**wrong)
        else:
            kind(exact_match, **wrong)
    assert engine.num_calls == 0


@pytest.mark.parametrize("method", ["compile", "estimate"])
@pytest.mark.parametrize(("make", "options", "error", "message"), COMPILE)
def test_compile(engine, make, options, error, message, method):
    arguments = {
        "trainset": EXAMPLES,
        **{k: v for k, v in options.items() if k in ("trainset", "valset", "seed")},
    }
    settings = {k: v for k, v in options.items() if k in ("lm", "adapter")}
    reorder = optimizer(**{k: v for k, v in options.items() if k not in arguments and k not in settings})
    program = make()
    with dspy.context(**settings), pytest.raises(error, match=message) as caught:
        getattr(reorder, method)(program, **arguments)
    assert type(caught.value) is error
    assert engine.num_calls == 0


def test_an_example_that_is_given_again_is_no_further_evidence(engine, caplog):
    reorder = optimizer(max_metric_calls=500)
    reorder.compile(
        student(EXAMPLES[:3]), trainset=EXAMPLES[-6:] * 20, valset=[EXAMPLES[10]] * 5 + EXAMPLES[11:13]
    )
    assert (reorder.report.settings["num_train"], reorder.report.settings["num_selection"]) == (6, 3)
    assert "only 9 of the 127 examples can score orders of the demos (the others are" in caplog.text
    with pytest.raises(ValueError, match="1 are left, the others are shown by demos or given twice"):
        optimizer().compile(student(), trainset=[EXAMPLES[-1]] * 30)


def test_demos_that_no_prompt_shows_are_warned_of(engine, caplog):
    demos = [*EXAMPLES[:3], dspy.Example(question="without an answer")]
    optimizer(max_metric_calls=60).compile(student(demos), trainset=EXAMPLES)
    assert "demos [3] of predictor 'self' are in no prompt" in caplog.text


@pytest.mark.parametrize(
    "value", [np.int64(3), np.zeros(2), {1, 2}, {1: "a"}, 10**30, np.datetime64("2024-01-01"), object()]
)
@pytest.mark.parametrize("field", ["answer", "note"])
def test_demos_that_json_cannot_hold_are_warned_of(engine, caplog, tmp_path, value, field):
    """The budget is well spent: the program can be pickled, and used as it is."""
    demos = [dspy.Example(**{**example, field: value}) for example in EXAMPLES[:3]]
    program = student([*EXAMPLES[3:5], *demos])
    for _ in range(2):
        reorder = optimizer(max_metric_calls=100, log_dir=tmp_path / "log")
        result = reorder.compile(program, trainset=EXAMPLES)
    assert reorder.report.program_calls["resumed"] == reorder.report.program_calls["total"] > 0
    warnings = [record.getMessage() for record in caplog.records if "x.json" in record.getMessage()]
    assert len(warnings) == 2  # one a compile
    kind = type(value).__name__
    assert f"demo 2 of predictor 'self' holds a {kind} in field {field!r}" in warnings[0]
    assert "2 more fields" in warnings[0]
    with pytest.raises(RuntimeError):
        result.save(tmp_path / "x.json")
    result.save(tmp_path / "x.pkl")
    assert str(reorder.report)
    reorder.report.save(tmp_path / "report.json")
    reorder.report.to_html(tmp_path / "report.html")


def test_a_log_dir_that_no_system_has(engine):
    with pytest.raises(ValueError, match="log_dir must be a folder"):
        optimizer(log_dir="a\0b").compile(student(), trainset=EXAMPLES)


def test_a_judge_that_insists_on_a_trace(engine):
    class Judge(dspy.Module):
        def forward(self, example, prediction, trace):
            return exact_match(example, prediction)

    assert optimizer(metric=Judge(), max_metric_calls=100).compile(student(), trainset=EXAMPLES)


def test_an_unwritable_log_dir(engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="log_dir must be a folder that can be written to"):
        optimizer(log_dir=tmp_path / "file").compile(student(), trainset=EXAMPLES)
    assert engine.num_calls == 0


@pytest.mark.parametrize(
    ("value", "error", "num_calls", "message"),
    [
        (
            None,
            TypeError,
            1,
            "metric must return a number, a bool or a Prediction with a score; got NoneType",
        ),
        ({"score": 1.0}, TypeError, 1, "metric must return a number.*got dict"),
        ("yes", TypeError, 1, "metric must return a number.*got str"),
        (float("nan"), ValueError, 3, "metric must return a finite number; got nan"),
    ],
)
def test_a_metric_of_no_use_ends_the_compile_with_what_it_returned(engine, value, error, num_calls, message):
    """At its first value, if this is no number: no later one would be any better."""
    reorder = optimizer(metric=lambda example, prediction: value, max_errors=3, num_threads=1)
    with pytest.raises(error, match=message):
        reorder.compile(student(), trainset=EXAMPLES)
    assert engine.num_calls == num_calls
    (found,) = reorder.report.errors
    assert (found.count, found.outcome) == (num_calls, "not scored")
    with pytest.raises(error, match=message):
        order_sensitivity(
            student(), reorder.metric, EXAMPLES, max_errors=3, num_threads=1, display_progress=False
        )
    assert engine.num_calls == 2 * num_calls


def test_a_metric_of_no_use_ends_the_calls_under_way(engine):
    reorder = optimizer(metric=lambda example, prediction: None, max_errors=50, num_threads=4)
    with pytest.raises(TypeError, match="got NoneType") as told:
        reorder.compile(student(), trainset=EXAMPLES)
    assert engine.num_calls <= 4
    if hasattr(told.value, "add_note"):
        assert "the first value of the metric is no number" in told.value.__notes__[0]


def test_an_async_program_made_synchronous(engine):
    class AsyncEngine:
        async def complete(self, request):
            return engine.complete(request)

    lm = dspy.LM("fake/order-sensitive", engine=engine, async_engine=AsyncEngine(), cache=False)
    with dspy.context(lm=lm):
        compiled = optimizer(max_metric_calls=600).compile(dspy.syncify(OnlyAsync()), trainset=EXAMPLES)
        plain = optimizer(max_metric_calls=600).compile(Wrapped(), trainset=EXAMPLES)
        assert compiled.answer.demos == plain.answer.demos
        assert compiled(question="question 50").answer == plain(question="question 50").answer
    assert plain.reorder_report["comparison"]["chosen"] > plain.reorder_report["comparison"]["original"]


def test_inside_a_running_event_loop(engine):
    """As in a notebook."""

    async def cell():
        return optimizer(max_metric_calls=200).compile(Wrapped(), trainset=EXAMPLES)

    assert asyncio.run(cell()).reorder_report["program_calls"]["total"] > 0


def test_examples_in_both_sets_only_choose(engine, caplog):
    reorder = optimizer()
    reorder.compile(student(), trainset=EXAMPLES, valset=EXAMPLES[80:])
    assert "40 examples are in both trainset and valset" in caplog.text
    assert reorder.report.settings["num_train"] == 80 - 6


def test_one_prompt_only(engine, caplog):
    program = student(EXAMPLES[:1])
    compiled = optimizer().compile(program, trainset=EXAMPLES)
    assert compiled.demos == program.demos
    assert "nothing to compare" in caplog.text
    assert engine.num_calls == 0


@pytest.mark.parametrize("hook", ["work", "plan", "search", "check", "arguments"])
def test_an_attribute_of_a_subclass_that_hides_a_method_is_named(engine, hook):
    class Own(PLReorder):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            setattr(self, hook, False)

    with pytest.raises(TypeError, match=f"Own.{hook} must be the method"):
        Own(exact_match, display_progress=False).compile(student(), trainset=EXAMPLES)
    assert engine.num_calls == 0
