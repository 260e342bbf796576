"""Signature fields named like attributes of DSPy's classes, such as "base", "keys" or "completions"."""

import re

import dspy
import pytest
from fakes import OrderSensitiveEngine, using
from label_engines import KIND, LABELS, Classifier, leaning

from plr_dspy import F1, BatchCalibration, PLFewShot, PLReorder, evaluate_programs, headroom, load_program

TAKEN = ["completions", "config", "demos", "instance", "lm", "new_signature", "self", "signature"]
"""Names that a predictor's inputs cannot have, because arguments of DSPy's calls have these names."""


def names_of_dspy():
    """Return the names that DSPy's examples, predictions and predictors use."""
    names = {"args", "augmented", "base", "kwargs", "others", "prediction", "score", "trace", *TAKEN}
    for one in (dspy.Example(), dspy.Prediction(), dspy.Predict("question -> answer")):
        names |= {*dir(type(one)), *vars(one)}
    # DSPy cannot create signatures with these two names.
    return sorted(name for name in names - {"fields", "signature"} if not name.startswith("_"))


NAMES = names_of_dspy()
ASKED = [name for name in NAMES if name not in TAKEN]
PLACES = {"inputs": (ASKED, ["answer"]), "outputs": (["question"], NAMES)}


def signature(place):
    inputs, outputs = PLACES[place]
    return f"{', '.join(inputs)} -> {', '.join(outputs)}"


def examples(place, count=40):
    inputs, outputs = PLACES[place]

    def example(i):
        asked = {name: f"{name} number {i}" for name in inputs}
        answers = dict.fromkeys(outputs, f"answer {i % 3}")
        return dspy.Example(asked | answers).with_inputs(*inputs)

    return [example(i) for i in range(count)]


def engine(place):
    """Return an engine that gives unparsable answers to prompts without demos."""
    inputs, outputs = PLACES[place]
    answers = {}
    for example in examples(place):
        answers |= {example[name]: example[outputs[0]] for name in inputs}
    return OrderSensitiveEngine(answers, mumbles=lambda texts: len(texts) < 2)


def right(place):
    def metric(example, prediction, trace=None):
        return all(example[name] == prediction[name] for name in PLACES[place][1])

    return metric


def prompt(program, place):
    """Return the messages of a call on a new example."""
    asking = OrderSensitiveEngine({})
    with using(asking):
        program(**{name: f"{name} of a new example" for name in PLACES[place][0]})
    (messages,) = asking.requests
    return messages


def check_demos(program, place, folder):
    """Check that all demos have all fields, before and after saving."""
    program.save(folder / "program.json")
    loaded = load_program(dspy.Predict(signature(place)), folder / "program.json")
    *demos, _ = messages = prompt(program, place)
    assert len(demos) >= 2 * 2
    for texts, names in zip([demos[::2], demos[1::2]], PLACES[place], strict=True):
        for text in texts:
            shown = re.findall(r"\[\[ ## (\w+) ## \]\]", text)
            assert [name for name in shown if name != "completed"] == names
    assert prompt(loaded, place) == messages


OPTIONS = {"num_threads": 1, "display_progress": False, "max_metric_calls": 60}


@pytest.mark.parametrize("place", PLACES)
class TestEveryNameWorks:
    def test_when_demos_are_ordered(self, place, tmp_path):
        program = dspy.Predict(signature(place))
        program.demos = examples(place)[:4]
        with using(engine(place)):
            compiled = PLReorder(right(place), **OPTIONS).compile(program, trainset=examples(place))
        check_demos(compiled, place, tmp_path)

    @pytest.mark.parametrize(("candidates", "demos"), [("labeled", "retrieved"), ("bootstrapped", "fixed")])
    def test_when_demos_are_chosen(self, place, candidates, demos, tmp_path):
        numbers = {"min_demos": 2, "max_demos": 3}
        options = {**OPTIONS, "candidates": candidates, "demos": demos, **numbers}
        optimizer = PLFewShot(right(place), **options)
        student = dspy.Predict(signature(place))
        with using(engine(place)):
            compiled = optimizer.compile(student, trainset=examples(place))
        check_demos(compiled, place, tmp_path)

    def test_in_metrics_over_a_set(self, place, tmp_path):
        program = dspy.Predict(signature(place))
        program.demos = examples(place)[:4]
        (example,) = examples(place, 1)
        others = dict.fromkeys(PLACES[place][1], "other")
        for name in PLACES[place][1]:
            prediction = dspy.Prediction(others | {name: "answer 0"})
            assert F1(field=name)(example, prediction) == 1.0
        metric = F1(field=PLACES[place][1][-1])
        with using(engine(place)):
            compiled = PLReorder(metric, **OPTIONS).compile(program, trainset=examples(place))
        check_demos(compiled, place, tmp_path)

    def test_in_examples_with_lists(self, place):
        """A metric's changes to an example must not affect later calls of the metric."""

        def writing(example, prediction, trace=None):
            for name in PLACES[place][1]:
                assert example[name] == ["gold"]
                example[name].append("seen")
            return 1.0

        devset = examples(place, 5)
        for example in devset:
            for name in PLACES[place][1]:
                example[name] = ["gold"]
        with using(engine(place)):
            programs = {name: dspy.Predict(signature(place)) for name in ("one", "other")}
            for program in programs.values():
                program.demos = examples(place)[:2]
            options = {"num_threads": 1, "display_progress": False}
            evaluation = evaluate_programs(programs, writing, devset, **options)
        assert evaluation.num_failed == 0

    def test_in_headroom(self, place):
        program = dspy.Predict(signature(place))
        program.demos = examples(place)[:4]
        with using(engine(place)):
            assert headroom(
                program, right(place), examples(place), **{**OPTIONS, "max_metric_calls": 120}
            ).levers


@pytest.mark.parametrize(
    "name", ["augmented", "base", "copy", "demos", "items", "keys", "labels", "self", "signature_"]
)
def test_a_label_of_any_name_is_calibrated(name, tmp_path):
    classifies = dspy.Signature(f"text -> {name}").with_updated_fields(name, type_=KIND)
    student = dspy.Predict(classifies)
    fields = [{"text": f"text {i}", name: LABELS[i % 2]} for i in range(30)]
    trainset = [dspy.Example(row).with_inputs("text") for row in fields]
    with dspy.context(lm=Classifier(leaning(LABELS, 1.0)).lm(), adapter=dspy.ChatAdapter()):
        program = BatchCalibration(display_progress=False).compile(student, trainset=trainset)
        program.save(tmp_path / "program.json")
        loaded = load_program(student, tmp_path / "program.json")
        answer = dict(program(text="a new one").items())
        assert dict(loaded(text="a new one").items()) == answer
        scores = evaluate_programs({"it": loaded}, F1("positive"), trainset, display_progress=False)
    assert answer[name] in LABELS
    assert scores.num_failed == 0
