"""Programs saved as pickles, because their demos contain values that JSON cannot store, such as sets."""

import datetime
import pickle

import dspy
import pytest
from fakes import Program, questions, using
from label_engines import LABELS, Classifier, classifier, leaning

from plr_dspy import BatchCalibration, PLFewShot, PLReorder, load_program
from plr_dspy.cli import commands as cli

PLAIN = {"num_threads": 1, "display_progress": False}
UNSAVEABLE = {"seen": {1, 2}, "when": datetime.timedelta(1)}
"""Values in demos that JSON cannot store."""
SIGNATURE = "question -> answer"


def predict():
    return dspy.Predict(SIGNATURE)


def with_demos():
    program = predict()
    program.demos = [dspy.Example({**example, **UNSAVEABLE}) for example in questions(4)]
    return program


def ordered():
    optimizer = PLReorder(lambda *_: 1.0, max_metric_calls=40, **PLAIN)
    return optimizer.compile(with_demos(), trainset=questions(30))


def retrieving():
    trainset = [dspy.Example({**example, **UNSAVEABLE}) for example in questions(30)]
    trainset = [example.with_inputs("question") for example in trainset]
    options = {"demos": "retrieved", "candidates": "labeled", "max_metric_calls": 0, **PLAIN}
    return PLFewShot(lambda *_: 1.0, **options).compile(predict(), trainset=trainset)


def calibrated():
    trainset = [dspy.Example(text=f"text {i}", label=LABELS[i % 2]) for i in range(30)]
    trainset = [example.with_inputs("text") for example in trainset]
    optimizer = BatchCalibration(display_progress=False)
    return optimizer.compile(classifier(), trainset=trainset)


def with_part(part):
    return Program(lambda self, text: self.part(text=text), part=part)


def larger():
    return Program(lambda self, question: self.part(question=question), part=predict())


def in_a_larger_program():
    program = larger()
    program.part.demos = with_demos().demos
    return program


def prompt(program):
    with using(Classifier(leaning(LABELS, 0.0))):
        try:
            program(question="question 7")
        except Exception:
            assert dspy.settings.lm.history
        return dspy.settings.lm.history[-1]["messages"]


@pytest.mark.filterwarnings("ignore")
class TestPrograms:
    @pytest.mark.parametrize(
        ("make", "student"),
        [(with_demos, predict), (ordered, predict), (retrieving, predict), (in_a_larger_program, larger)],
    )
    def test_send_the_same_prompts_after_loading(self, make, student, tmp_path):
        with using(Classifier(leaning(LABELS, 0.0))):
            program = make()
        with pytest.raises(RuntimeError, match=r"consider saving the state in \.pkl"):
            program.save(tmp_path / "program.json")
        program.save(tmp_path / "program.pkl")
        loaded = load_program(student(), tmp_path / "program.pkl", allow_pickle=True)
        assert prompt(loaded) == prompt(program)
        assert len(prompt(program)) > 2 + 2 * 3

    @pytest.mark.parametrize("place", ["alone", "in a larger program"])
    def test_keep_their_calibration(self, place, tmp_path):
        lm = Classifier(leaning(LABELS, 1.0)).lm()
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            student = classifier()
            program = calibrated()
            if place != "alone":
                student = with_part(student)
                program = with_part(program)
            program.save(tmp_path / "program.pkl")
            loaded = load_program(student, tmp_path / "program.pkl", allow_pickle=True)
            answer = program(text="new").toDict()
            assert loaded(text="new").toDict() == answer
        assert "probabilities" in answer


class Bomb:
    def __reduce__(self):
        return print, ("a pickle was read",)


class TestPicklesAreNotReadUnlessAllowed:
    def test_by_load_program(self, tmp_path, capsys):
        (tmp_path / "program.pkl").write_bytes(pickle.dumps(Bomb()))
        message = r"program\.pkl is a pickle, and loading a pickle can run code.*allow_pickle=True"
        with pytest.raises(ValueError, match=message):
            load_program(predict(), tmp_path / "program.pkl")
        assert capsys.readouterr().out == ""

    def test_by_a_calibrated_program(self, tmp_path, capsys):
        (tmp_path / "program.pkl").write_bytes(pickle.dumps(Bomb()))
        lm = Classifier(leaning(LABELS, 1.0)).lm()
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            program = calibrated()
            with pytest.raises(ValueError, match="allow_pickle=True"):
                program.load(tmp_path / "program.pkl")
            program.save(tmp_path / "program.pkl")
            program.load(tmp_path / "program.pkl", allow_pickle=True)
        assert "a pickle was read" not in capsys.readouterr().out

    def test_by_the_command_line_which_has_no_option_to_allow_them(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "program.pkl").write_bytes(pickle.dumps(Bomb()))
        lines = ["import dspy", f"program = dspy.Predict({SIGNATURE!r})", "metric = print"]
        (tmp_path / "app.py").write_text("\n".join(lines) + "\n")
        (tmp_path / "data.jsonl").write_text('{"question": "a", "answer": "b"}\n')
        words = "evaluate app.py:program --metric app.py:metric --data data.jsonl"
        words += " --inputs question --lm openai/x --demos program.pkl"
        assert cli.main(words.split()) == cli.USER_ERROR
        output = capsys.readouterr()
        assert "program.pkl is a pickle" in output.err
        assert "program.save('program.json')" in output.err
        assert output.out == ""

    def test_json_files_need_no_permission(self, tmp_path):
        program = predict()
        program.demos = questions(2)
        program.save(tmp_path / "program.json")
        assert load_program(predict(), tmp_path / "program.json", allow_pickle=True).demos == [
            dict(d) for d in program.demos
        ]


@pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps([1]), pickle.dumps(3)])
def test_files_without_a_saved_program_are_rejected(data, tmp_path):
    (tmp_path / "program.pkl").write_bytes(data)
    with pytest.raises(ValueError, match=r"program\.pkl holds no saved program"):
        load_program(predict(), tmp_path / "program.pkl", allow_pickle=True)


def test_a_pickle_of_another_program_is_rejected(tmp_path):
    larger().save(tmp_path / "program.pkl")
    with pytest.raises(ValueError, match="cannot be loaded into the student"):
        load_program(predict(), tmp_path / "program.pkl", allow_pickle=True)


def test_paths_without_a_known_suffix_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in \.json or \.pkl"):
        load_program(predict(), tmp_path / "program")
