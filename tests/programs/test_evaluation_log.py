"""Evaluations with `log_dir`: they reuse the calls of an earlier evaluation."""

import dspy
import pytest
from fakes import LabelEngine, failure, interrupt, lm_of
from yes_or_no import LABELS, YES_OR_NO, Answering, examples

import plr_dspy
from plr_dspy import F1, evaluate_programs


def accuracy(example, prediction, trace=None):
    return example.label == prediction.label


def recall_of_yes(example, prediction, trace=None):
    return example.label == "no" or prediction.label == "yes"


class TestLogFolder:
    """Evaluations that reuse the calls in a log folder."""

    NUM_EXAMPLES = 12
    DEVSET = examples(NUM_EXAMPLES, yes=range(6))

    @pytest.fixture
    def engine(self):
        engine = LabelEngine(LABELS, lambda demos, text: [0.4, 0.6] if int(text) % 4 else [0.6, 0.4])
        engine.mumbles = lambda demos, text: int(text) == 7
        with dspy.context(lm=lm_of(engine), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            yield engine

    @staticmethod
    def program(instruction):
        return dspy.Predict(dspy.Signature(YES_OR_NO, instruction))

    @pytest.fixture
    def programs(self):
        return {"a": self.program("Label it."), "b": self.program("Say yes or no.")}

    @pytest.fixture
    def evaluate(self, tmp_path):
        def evaluate(programs, metric=None, devset=self.DEVSET, **options):
            metric = metric or {"accuracy": accuracy, "f1": F1("yes")}
            options = {"log_dir": tmp_path / "log", "num_threads": 1, "display_progress": False, **options}
            return evaluate_programs(programs, metric, devset, **options)

        return evaluate

    def test_only_missing_and_failed_calls_are_made(self, engine, programs, evaluate):
        whole = evaluate(programs, log_dir=None)
        num_calls = engine.requests
        assert num_calls == 2 * self.NUM_EXAMPLES
        engine.at = {num_calls + 3: failure, num_calls + 20: interrupt}
        with pytest.raises(KeyboardInterrupt):
            evaluate(programs)
        assert engine.requests == num_calls + 21
        assert evaluate(programs) == whole
        assert engine.requests == num_calls + 24 + 2
        assert evaluate(programs) == whole
        assert engine.requests == num_calls + 24 + 2

    def test_programs_may_be_added_and_omitted(self, engine, programs, evaluate):
        evaluate(programs)
        copies = {**programs, "c": programs["a"].deepcopy()}
        evaluate(copies)
        assert engine.requests == 2 * self.NUM_EXAMPLES
        del copies["a"]
        evaluate(copies)
        assert engine.requests == 2 * self.NUM_EXAMPLES

    def test_a_program_can_be_repaired_after_too_many_failures(self, engine, programs, evaluate):
        broken = {"fine": programs["a"], "broken": Answering([], failing=range(12))}
        with pytest.raises(ConnectionError) as raised:
            evaluate(broken, max_errors=2)
        (note,) = raised.value.__notes__
        assert "Run the same code again to resume; you can change the programs first" in note
        assert "accept_changes" not in note
        num_calls = engine.requests
        repaired = {"fine": programs["a"], "broken": Answering([])}
        assert evaluate(repaired)["accuracy"].num_examples == self.NUM_EXAMPLES
        assert engine.requests == num_calls

    def test_calls_belong_to_the_program_and_not_to_its_name(self, engine, programs, evaluate):
        first = evaluate({"old": programs["a"]}, accuracy).programs["old"]
        assert evaluate({"new": programs["a"]}, accuracy).programs["new"] == first
        assert engine.requests == self.NUM_EXAMPLES
        changed = Answering([], unread=range(4))
        assert evaluate({"old": changed}, accuracy).programs["old"].num_unread == 4
        both = {"new": changed, "old": programs["a"]}
        assert evaluate(both, accuracy).programs["old"].score == first.score
        assert engine.requests == self.NUM_EXAMPLES

    @pytest.mark.parametrize(
        ("changes", "difference"),
        [
            ({"metric": recall_of_yes}, "the metric"),
            ({"metric": {"accuracy": accuracy}}, "the metric accuracy"),
            ({"devset": DEVSET[1:]}, "the examples"),
        ],
    )
    def test_other_metrics_and_examples_are_rejected(self, engine, programs, evaluate, changes, difference):
        evaluate(programs, accuracy)
        num_calls = engine.requests
        with pytest.raises(
            ValueError, match=f"belongs to another run: .*{difference} changed.*another log_dir"
        ):
            evaluate(programs, **{"metric": accuracy, **changes})
        assert engine.requests == num_calls

    def test_accepted_changes_do_not_include_unscored_metrics(self, engine, programs, evaluate):
        """Calls without a metric's score must not count as incorrect."""
        evaluate(programs, accuracy)
        num_calls = engine.requests
        for metric in ({"accuracy": accuracy}, F1("yes")):
            with pytest.raises(ValueError, match=r"log_dir must hold calls that the metric.* scored"):
                evaluate(programs, metric, accept_changes=True)
        assert evaluate(programs, recall_of_yes, accept_changes=True).num_examples == self.NUM_EXAMPLES
        assert engine.requests == num_calls

    @pytest.mark.parametrize("first", ["compile", "evaluate"])
    @pytest.mark.parametrize("accepted", [False, True])
    def test_a_folder_holds_either_a_compile_or_an_evaluation(
        self, engine, programs, evaluate, tmp_path, first, accepted
    ):
        def compile_program(**options):
            options |= {"log_dir": tmp_path / "log", "num_threads": 1, "display_progress": False}
            optimizer = plr_dspy.PLFewShot(accuracy, max_metric_calls=40, **options)
            optimizer.compile(programs["a"], trainset=examples(40, yes=range(20)))

        def evaluate_all(**options):
            evaluate(programs, **options)

        runs = [compile_program, evaluate_all]
        message = "its calls were made by an optimizer, not by evaluate_programs. Pass another log_dir.$"
        if first == "evaluate":
            runs.reverse()
            message = (
                "its calls were made by evaluate_programs, not by an optimizer. Pass another log_dir.$"
            )
        run, other = runs
        run()
        num_calls = engine.requests
        with pytest.raises(ValueError, match=message):
            other(accept_changes=accepted)
        run()
        assert engine.requests == num_calls
