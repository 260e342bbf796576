"""Saving and loading programs: plain, calibrated, and with calibrated parts."""

import json
from functools import partial
from itertools import product
from typing import Literal

import dspy
import pytest
from fakes import Program
from label_engines import Classifier, classifier, leaning
from label_world import EXAMPLES, student

from plr_dspy import (
    BatchCalibration,
    CalibratedProgram,
    Calibration,
    PlainTextAdapter,
    completion_lm,
    load_program,
)
from plr_dspy.baselines import PerInputOrder

LABELS = ("negative", "positive")
FOUND = Calibration(LABELS, (0.7, -0.7))


def outer():
    def answers(self, text):
        predictions = [step(text=text) for step in [*self.steps, *self.parts.values()]]
        label = predictions[0].label
        return dspy.Prediction(label=label, steps=[step.toDict() for step in predictions])

    steps = [classifier(), classifier(module=dspy.ChainOfThought)]
    return Program(answers, steps=steps, parts={"a b": classifier()})


STUDENTS = {
    "module": partial(classifier, module=dspy.ChainOfThought),
    "predictor": classifier,
    "larger": outer,
}


def calibrated(program=None, **options):
    options = {"prior": dict.fromkeys(LABELS, 0.5), "display_progress": False, **options}
    return BatchCalibration(**options).compile(program or student(), trainset=EXAMPLES[:30])


def answers_of(program):
    return [program(text=f"text {i}").toDict() for i in range(5)]


@pytest.fixture
def lm():
    lm = Classifier(leaning(list(LABELS), 1.0)).lm()
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        yield lm


@pytest.mark.parametrize(
    ("kind", "what"),
    [*product(STUDENTS, ["nothing", "the whole"]), *product(["larger"], ["parts", "parts, the whole"])],
)
def test_loaded_programs_give_the_same_answers(kind, what, lm, tmp_path, caplog):
    program = STUDENTS[kind]()
    for predictor in program.predictors():
        predictor.demos = [dspy.Example(text="a", label="negative", reasoning="b")]
    if "parts" in what:
        program.steps[1] = calibrated(program.steps[1])
        program.parts["a b"] = calibrated(program.parts["a b"])
    if "whole" in what:
        program = calibrated(program, predictor="steps[0]" if kind == "larger" else None)
    program.save(tmp_path / "program.json")
    caplog.clear()
    loaded = load_program(STUDENTS[kind](), tmp_path / "program.json")
    answers = answers_of(program)
    assert answers_of(loaded) == answers
    assert str(answers[0]).count("probabilities") == ("whole" in what) + 2 * ("parts" in what)
    assert not caplog.records


def larger(part):
    return Program(lambda self, text: self.part(text=text), part=part)


class TestPartsOfLargerPrograms:
    def test_are_saved_and_loaded_by_dspy_itself(self, lm, tmp_path):
        outer = larger(calibrated())
        outer.part._compiled = True  # Optimizers set this flag, and DSPy does not save flagged modules.
        outer.save(tmp_path / "outer.json")
        loaded = larger(CalibratedProgram(student()))
        loaded.load(tmp_path / "outer.json")
        assert loaded.part.calibration == outer.part.calibration
        assert loaded(text="text 1").toDict() == outer(text="text 1").toDict()

    @pytest.mark.parametrize("wrap", [lambda program: program, PerInputOrder])
    def test_that_order_demos_for_each_input_keep_the_orders(self, wrap, lm, tmp_path):
        order = {"permutations": {"self": [4, 3, 2, 1, 0]}, "content_free": [0.5, 0.5]}
        outer = larger(PerInputOrder(student(), [order]))
        outer.save(tmp_path / "outer.json")
        loaded = load_program(larger(wrap(student(demos=[]))), tmp_path / "outer.json")
        assert loaded.part.orders == (order,)
        assert loaded(text="text 1").toDict() == outer(text="text 1").toDict()

    def test_without_a_calibration_in_the_file_are_an_error(self, tmp_path):
        larger(student()).save(tmp_path / "outer.json")
        with pytest.raises(ValueError, match="cannot be loaded into the student"):
            load_program(larger(CalibratedProgram(student())), tmp_path / "outer.json")

    def test_that_were_compiled_separately_need_the_fix_in_the_error(self, tmp_path):
        """DSPy omits compiled parts from a larger program's file, so loading the file is an error."""
        part = dspy.Module()
        plain = dspy.Module()
        part.step = dspy.LabeledFewShot(k=2).compile(student(), trainset=EXAMPLES)
        plain.step = student()
        part._compiled = True
        larger(part).save(tmp_path / "outer.json")
        with pytest.raises(ValueError, match="set their _compiled to False"):
            load_program(larger(plain), tmp_path / "outer.json")
        part._compiled = False
        larger(part).save(tmp_path / "outer.json")
        assert len(load_program(larger(plain), tmp_path / "outer.json").predictors()[-1].demos) == 2


def with_model(program, lm):
    program.set_lm(lm)
    return program


class TestModelsOfStudents:
    @pytest.mark.parametrize("make", [dspy.LM, completion_lm])
    @pytest.mark.parametrize("wrap", [lambda program: program, larger, CalibratedProgram])
    def test_stay_if_the_file_names_the_same_model(self, make, wrap, tmp_path, caplog):
        saved, own = (
            make("hosted_vllm/a", api_base=f"http://{name}/v1", api_key=name, temperature=0.5)
            for name in ("saved", "own")
        )
        wrap(with_model(student(), saved)).save(tmp_path / "program.json")
        (predictor,) = load_program(
            wrap(with_model(student(), own)), tmp_path / "program.json"
        ).predictors()
        assert predictor.lm is own
        assert not caplog.records

    def test_get_the_saved_settings(self, tmp_path):
        own = dspy.LM("openai/a", api_base="http://own", api_key="own", temperature=0.0)
        saved = dspy.LM("openai/a", api_base="http://saved", temperature=0.5)
        with_model(student(), saved).save(tmp_path / "program.json")
        program = with_model(student(), own)
        assert load_program(program, tmp_path / "program.json").lm.kwargs == {
            **own.kwargs,
            "temperature": 0.5,
        }
        assert own.kwargs["temperature"] == 0.0
        unsafe = load_program(program, tmp_path / "program.json", allow_unsafe_lm_state=True)
        assert unsafe.lm.kwargs == saved.kwargs

    @pytest.mark.parametrize(
        ("model", "setting"),
        [("openai/a", {"top_p": 0.3}), ("openai/gpt-5", {"max_tokens": 20_000, "temperature": 1.0})],
    )
    def test_get_settings_that_the_students_model_lacks_or_names_otherwise(self, model, setting, tmp_path):
        saved = dspy.LM(model, **setting)
        with_model(student(), saved).save(tmp_path / "program.json")
        own = dspy.LM(model, api_key="own", temperature=1.0, max_tokens=16_000)
        loaded = load_program(with_model(student(), own), tmp_path / "program.json")
        settings = {name: value for name, value in saved.kwargs.items() if value is not None}
        assert loaded.lm.kwargs == {**settings, "api_key": "own"}

    @pytest.mark.parametrize("make", [dspy.LM, completion_lm])
    def test_are_replaced_if_the_file_has_another_engine(self, make, tmp_path):
        other = {dspy.LM: completion_lm, completion_lm: dspy.LM}[make]
        with_model(student(), make("hosted_vllm/a", api_base="http://saved/v1")).save(
            tmp_path / "program.json"
        )
        own = other("hosted_vllm/a", api_base="http://own/v1")
        if make is completion_lm:
            with pytest.raises(ValueError, match="allow_unsafe_lm_state"):
                load_program(with_model(student(), own), tmp_path / "program.json")
        else:
            assert load_program(with_model(student(), own), tmp_path / "program.json").lm is not own

    def test_are_replaced_if_the_file_names_another_model(self, tmp_path):
        with_model(student(), dspy.LM("openai/saved")).save(tmp_path / "program.json")
        program = with_model(student(), dspy.LM("openai/own", api_key="own"))
        assert load_program(program, tmp_path / "program.json").lm.model == "openai/saved"


class TestFiles:
    @pytest.mark.parametrize("kind", ["predictor", "module"])
    def test_the_student_itself_cannot_load_a_calibrated_program(self, kind, lm, tmp_path):
        calibrated(STUDENTS[kind]()).save(tmp_path / "program.json")
        with pytest.raises(KeyError):
            STUDENTS[kind]().load(tmp_path / "program.json")

    @pytest.mark.parametrize(
        ("saved", "into", "match"),
        [
            (
                student(),
                CalibratedProgram(student()),
                r"got an uncalibrated program: pass student\.program as the student",
            ),
            (student(), larger(student()), "cannot be loaded into the student .*'part'"),
            (larger(student()), student(), "cannot be loaded into the student .*'signature'"),
            (
                CalibratedProgram(student(Literal["a", "b"]), Calibration.none("ab")),
                student(),
                "must have the program's labels",
            ),
            (CalibratedProgram(student(), FOUND), larger(student()), r"load.*\['part'\]; got 'self'"),
            (CalibratedProgram(student(), FOUND), dspy.Predict("text -> label"), "few possible values"),
            (larger(CalibratedProgram(student(), FOUND)), student(), "cannot be loaded into the student"),
            (
                dspy.Predict("text -> mood"),
                student(),
                r"must hold .* the student's fields \['text', 'label'\]",
            ),
            (
                dspy.Predict("text, tone -> label"),
                student(),
                r"must hold .* the student's fields \['text', 'label'\]",
            ),
            (
                CalibratedProgram(
                    dspy.Predict("headline -> topic: Literal['a', 'b']"), Calibration.none("ab")
                ),
                student(),
                r"must hold a program with the student's fields \['text', 'label'\]; got .*'topic'\]",
            ),
            (
                CalibratedProgram(student(), FOUND),
                dspy.Predict("headline -> topic"),
                r"must hold a program with the student's fields \['headline', 'topic'\]; got .*'label'\]",
            ),
            (
                larger(dspy.Predict("text -> mood")),
                larger(student()),
                "must hold a program with the student's fields",
            ),
        ],
    )
    def test_of_another_program(self, tmp_path, saved, into, match):
        saved.save(tmp_path / "program.json")
        with pytest.raises(ValueError, match=match):
            load_program(into, tmp_path / "program.json")

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"of_tomorrow": [1.0]}, "of_tomorrow"),
            ({"offsets": [0.7]}, "finite offset for each label"),
            ({"offsets": ["a", "b"]}, r"(?s)offsets\.0.*valid number"),
        ],
    )
    def test_with_an_invalid_calibration(self, tmp_path, change, match):
        path = tmp_path / "program.json"
        CalibratedProgram(student(), FOUND).save(path)
        state = json.loads(path.read_text())
        state["calibration"]["found"] |= change
        path.write_text(json.dumps(state))
        with pytest.raises(ValueError, match=match):
            load_program(student(), path)

    @pytest.mark.parametrize(
        ("name", "text", "match"),
        [
            ("x.json", "", "holds no saved program"),
            ("x.json", "[]", "holds no saved program"),
            ("x.json", '{"schema_version": 3}', "holds no saved program"),
            ("x.pkl", "", r"path must end in \.json; got .*x\.pkl': save the program with program\.save"),
            ("x", "", r"path must end in \.json"),
        ],
    )
    def test_without_a_program(self, tmp_path, name, text, match):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=match):
            load_program(student(), tmp_path / name)

    def test_the_student_must_be_a_program(self, tmp_path):
        with pytest.raises(TypeError, match=r"student must be a dspy\.Module; got ProgramMeta"):
            load_program(dspy.Predict, tmp_path / "x.json")


def test_warns_once_about_another_model_and_adapter(lm, tmp_path, caplog):
    calibrated().save(tmp_path / "program.json")
    caplog.clear()
    load_program(student(), tmp_path / "program.json")
    assert not caplog.records
    other = Classifier(leaning(list(LABELS), 1.0)).lm("fake/y")
    with dspy.context(lm=other, adapter=PlainTextAdapter()):
        load_program(student(), tmp_path / "program.json")
    (record,) = caplog.records
    assert "the adapter ChatAdapter, but is used with PlainTextAdapter" in record.getMessage()
    assert "the model fake/x, but is used with fake/y" in record.getMessage()
