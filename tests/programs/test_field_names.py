"""Fields may be called as what DSPy's own classes are made of, such as "base", "keys" or "completions"."""

import re

import dspy
import pytest
from fakes import OrderSensitiveEngine, using
from label_engines import KIND, LABELS, Classifier, leaning

from plr_dspy import F1, BatchCalibration, PLFewShot, PLReorder, evaluate_programs, load_program, order_sensitivity

TAKEN = ["completions", "config", "demos", "instance", "lm", "new_signature", "self", "signature"]
"""What no input of a predictor can be called: DSPy's calls have arguments of these names."""


def names_of_dspy():
    """What examples, predictions and predictors have, and what their calls take, by name."""
    names = {"args", "augmented", "base", "kwargs", "others", "prediction", "score", "trace", *TAKEN}
    for one in (dspy.Example(), dspy.Prediction(), dspy.Predict("question -> answer")):
        names |= {*dir(type(one)), *vars(one)}
    # DSPy can make no signature with these two.
    return sorted(name for name in names - {"fields", "signature"} if not name.startswith("_"))


NAMES = names_of_dspy()
ASKED = [name for name in NAMES if name not in TAKEN]
PLACES = {"inputs": (ASKED, ["answer"]), "outputs": (["question"], NAMES)}


def signature(place):
    inputs, outputs = PLACES[place]
    return f"{', '.join(inputs)} -> {', '.join(outputs)}"


def examples(place, count=40):
    inputs, outputs = PLACES[place]
    asked = [{name: f"{name} number {i}" for name in inputs} for i in range(count)]
    return [
        dspy.Example({**a, **dict.fromkeys(outputs, f"answer {i % 3}")}).with_inputs(*a) for i, a in enumerate(asked)
    ]


def engine(place):
    """Gives no answer where it is shown no demos."""
    answers = {example[name]: example[PLACES[place][1][0]] for example in examples(place) for name in PLACES[place][0]}
    return OrderSensitiveEngine(answers, mumbles=lambda texts: len(texts) < 2)


def right(place):
    return lambda example, prediction, trace=None: all(example[n] == prediction[n] for n in PLACES[place][1])


def prompt(program, place):
    """The messages of a call on an example that nothing has seen."""
    asking = OrderSensitiveEngine({})
    with using(asking):
        program(**{name: f"{name} of a new example" for name in PLACES[place][0]})
    (messages,) = asking.requests
    return messages


def check_demos(program, place, folder):
    """All fields are in all demos, also when the program is saved and loaded."""
    program.save(folder / "program.json")
    loaded = load_program(dspy.Predict(signature(place)), folder / "program.json")
    *demos, _ = messages = prompt(program, place)
    assert len(demos) >= 2 * 2
    for told, names in zip([demos[::2], demos[1::2]], PLACES[place], strict=True):
        for text in told:
            assert [name for name in re.findall(r"\[\[ ## (\w+) ## \]\]", text) if name != "completed"] == names
    assert prompt(loaded, place) == messages


OPTIONS = {"num_threads": 1, "display_progress": False, "max_metric_calls": 60}


@pytest.mark.parametrize("place", PLACES)
class TestEveryNameWorks:
    def test_in_demos_that_are_ordered(self, place, tmp_path):
        program = dspy.Predict(signature(place))
        program.demos = examples(place)[:4]
        with using(engine(place)):
            found = PLReorder(right(place), **OPTIONS).compile(program, trainset=examples(place))
        check_demos(found, place, tmp_path)

    @pytest.mark.parametrize("candidates", ["labeled", "bootstrapped"])
    @pytest.mark.parametrize("demos", ["fixed", "retrieved"])
    def test_in_demos_that_are_chosen(self, place, candidates, demos, tmp_path):
        options = {**OPTIONS, "candidates": candidates, "demos": demos, "min_demos": 2, "max_demos": 3}
        with using(engine(place)):
            found = PLFewShot(right(place), **options).compile(dspy.Predict(signature(place)), trainset=examples(place))
        check_demos(found, place, tmp_path)

    def test_in_metrics_over_a_set(self, place, tmp_path):
        program = dspy.Predict(signature(place))
        program.demos = examples(place)[:4]
        (example,) = examples(place, 1)
        for name in PLACES[place][1]:
            prediction = dspy.Prediction(dict.fromkeys(PLACES[place][1], "other") | {name: "answer 0"})
            assert F1(field=name)(example, prediction) == 1.0
        metric = F1(field=PLACES[place][1][-1])
        with using(engine(place)):
            found = PLReorder(metric, **OPTIONS).compile(program, trainset=examples(place))
        check_demos(found, place, tmp_path)

    def test_in_examples_that_hold_lists(self, place):
        """What a metric writes to them is not kept."""

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
            told = evaluate_programs(programs, writing, devset, num_threads=1, display_progress=False)
        assert told.num_failed == 0

    def test_in_a_measurement(self, place):
        program = dspy.Predict(signature(place))
        program.demos = examples(place)[:4]
        options = {**OPTIONS, "max_metric_calls": 100}
        with using(engine(place)):
            told = order_sensitivity(program, right(place), examples(place), **options)
        assert told is not None


@pytest.mark.parametrize(
    "name", ["augmented", "base", "copy", "demos", "items", "keys", "labels", "self", "signature_"]
)
def test_a_label_of_every_name_is_calibrated(name, tmp_path):
    student = dspy.Predict(dspy.Signature(f"text -> {name}").with_updated_fields(name, type_=KIND))
    trainset = [dspy.Example({"text": f"text {i}", name: LABELS[i % 2]}).with_inputs("text") for i in range(30)]
    with dspy.context(lm=Classifier(leaning(LABELS, 1.0)).lm(), adapter=dspy.ChatAdapter()):
        program = BatchCalibration(display_progress=False).compile(student, trainset=trainset)
        program.save(tmp_path / "program.json")
        loaded = load_program(student, tmp_path / "program.json")
        answers = [dict(each(text="a new one").items()) for each in (program, loaded)]
        scores = evaluate_programs({"it": loaded}, F1("positive"), trainset, display_progress=False)
    assert answers[0] == answers[1]
    assert answers[0][name] in LABELS
    assert scores.num_failed == 0
