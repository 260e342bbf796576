"""Comparisons of programs by `evaluate_programs`: scores, differences, intervals, and failed calls."""

import dspy
import numpy as np
import pytest
from dspy.utils.exceptions import AdapterParseError
from fakes import (
    LabelEngine,
    Program,
    engine_for,
    exact_match,
    failure,
    interrupt,
    lm_of,
    questions,
    student,
    using,
)
from label_engines import exact

import plr_dspy
from plr_dspy import (
    F1,
    BalancedAccuracy,
    CalibratedProgram,
    Calibration,
    ConfusionMetric,
    MatthewsCorrelation,
    evaluate_programs,
)

LABELS = ["no", "yes"]
YES_OR_NO = "number -> label: Literal['no', 'yes']"


class Answering(dspy.Module):
    """A program that answers "yes" to the numbers in `yes`, and "no" to all others.

    For the numbers in `unread`, the reply cannot be parsed. For those in `failing`, the call fails.
    """

    def __init__(self, yes, *, unread=(), failing=()):
        super().__init__()
        self.step = dspy.Predict("number -> label: Literal['no', 'yes']")
        self.yes = set(yes)
        self.unread = set(unread)
        self.failing = set(failing)

    def forward(self, number):
        if number in self.failing:
            raise ConnectionError("no route")
        if number in self.unread:
            raise AdapterParseError("Fake", self.step.signature, "gibberish")
        return dspy.Prediction(label="yes" if number in self.yes else "no")


def examples(count, yes):
    labels = ["yes" if n in yes else "no" for n in range(count)]
    rows = [dspy.Example(number=n, label=label) for n, label in enumerate(labels)]
    return [row.with_inputs("number") for row in rows]


@pytest.fixture(autouse=True)
def quiet():
    engine = LabelEngine(LABELS, lambda demos, text: [0.5, 0.5])
    with dspy.context(lm=lm_of(engine), num_threads=1):
        yield


def evaluated(programs, metric, devset):
    return evaluate_programs(programs, metric, devset, display_progress=False)


def evaluated_alone(program, metric, devset):
    return evaluated({"it": program}, metric, devset).programs["it"]


def test_accuracy_and_difference():
    devset = examples(20, range(5))
    half = Answering(range(2, 8), unread=[19])
    evaluation = evaluated({"never": Answering([]), "half": half}, exact, devset)
    never, half = evaluation.programs.values()
    assert never.score == 0.75
    assert half.score == 14 / 20
    assert half.difference == pytest.approx(-0.05)
    assert half.num_unread == 1
    assert never.difference is None
    low, high = half.interval
    assert low < half.score < high
    low, high = half.difference_interval
    assert low < half.difference < high
    text = str(evaluation)
    assert "half         0.700 [" in text
    assert evaluation.constant.label == "no"
    assert evaluation.constant.score == 0.75
    assert "\n  always 'no'  0.750, without any call" in text
    assert "replies that could not be parsed: 1" in text


def test_the_constant_answer_has_the_best_score_of_all_labels():
    devset = examples(20, range(5))
    calls = []

    def judged(example, prediction):
        calls.append(prediction)
        dspy.Predict("label -> verdict")(label=prediction.label)
        return exact(example, prediction)

    metrics = {"F1": F1("yes"), "judged": judged}
    evaluations = evaluated({"never": Answering([])}, metrics, devset)
    constant = evaluations["F1"].constant
    assert constant.label == "yes"
    assert constant.score == pytest.approx(0.4)
    assert evaluations["judged"].constant is None
    assert len(calls) == len(devset) + 1


def minus(example, prediction):
    return exact(example, prediction) - 1.0


def test_intervals_of_a_metric_without_positive_values():
    program = Answering(range(20))
    devset = examples(20, range(18))
    counted = evaluated_alone(program, exact, devset)
    lost = evaluated_alone(program, minus, devset)
    assert lost.interval == pytest.approx([end - 1.0 for end in counted.interval])


def test_intervals_of_differences_cover_the_range_of_scores():
    devset = examples(20, range(18))

    def marks(example, prediction):
        return 5.0 * exact(example, prediction)

    programs = {"good": Answering(range(18)), "bad": Answering(range(18, 20))}
    low, high = evaluated(programs, marks, devset).programs["bad"].difference_interval
    assert low < -4.0 < high


def test_an_unparsable_reply_gets_the_worst_score():
    """Otherwise, a program could improve its score by not answering."""
    programs = {"wrong": Answering([0, 1]), "unread": Answering([], unread=[0, 1])}
    wrong, unread = evaluated(programs, minus, examples(4, [3])).programs.values()
    assert wrong.score == unread.score == -0.75
    assert unread.difference == 0.0
    low, high = unread.difference_interval
    assert low < 0.0 < high


def test_a_metric_over_a_set_and_a_calibrated_program():
    devset = examples(20, range(5))
    programs = {"never": Answering([]), "some": Answering(range(3, 8))}
    never, some = evaluated(programs, F1("yes"), devset).programs.values()
    assert never.score == 0.0
    assert some.score == pytest.approx(2 * 2 / (5 + 5))
    assert some.difference == pytest.approx(0.4)
    devset = [dspy.Example(text=text, label="yes").with_inputs("text") for text in "0123"]
    calibration = Calibration(("no", "yes"), (0.0, float(np.log(3.0))))
    classifier = dspy.Predict("text -> label: Literal['no', 'yes']")
    program = CalibratedProgram(classifier, calibration)
    assert evaluated_alone(program, exact, devset).score == 1.0


@pytest.mark.parametrize(("recall", "alarms"), [(0.7, 0.3), (0.1, 0.02)])
def test_intervals_of_a_metric_over_a_set_have_the_stated_coverage(recall, alarms):
    """Some of the programs find no positive example, and each draw of examples has different labels."""
    rng = np.random.default_rng(0)
    inside = np.zeros(2)
    worlds = 100
    truth = 2 * recall * 0.15 / (0.15 + recall * 0.15 + alarms * 0.85)

    def program(is_yes):
        rates = np.where(is_yes, recall, alarms)
        return Answering(np.flatnonzero(rng.random(40) < rates).tolist())

    for _ in range(worlds):
        is_yes = rng.random(40) < 0.15
        programs = {"one": program(is_yes), "other": program(is_yes)}
        devset = examples(40, np.flatnonzero(is_yes).tolist())
        one, other = evaluated(programs, F1("yes"), devset).programs.values()
        low, high = one.interval
        inside[0] += low < truth < high
        low, high = other.difference_interval
        inside[1] += low < 0 < high
    assert (inside >= 0.94 * worlds).all(), inside


@pytest.mark.parametrize("metric", [F1("yes"), F1(), MatthewsCorrelation(), plr_dspy.BalancedAccuracy()])
@pytest.mark.parametrize("right", [0.95, 0.9])
def test_intervals_have_the_stated_coverage_if_all_answers_may_be_correct(metric, right):
    rng = np.random.default_rng(0)
    inside = 0
    truth = 2 * right - 1 if isinstance(metric, MatthewsCorrelation) else right
    for _ in range(40):
        wrong = {n for n in range(20) if rng.random() > right}
        program = Answering(wrong ^ {*range(0, 20, 2)})
        devset = examples(20, range(0, 20, 2))
        low, high = evaluated_alone(program, metric, devset).interval
        assert low < high
        inside += low < truth <= high
    assert inside >= 33


@pytest.mark.parametrize("recall", [0.05, 0.1, 0.2])
def test_intervals_of_differences_have_the_stated_coverage_if_both_programs_rarely_answer_yes(recall):
    """Neither program may find an example with the label, so all observed differences have little influence."""
    devset = examples(100, range(10))
    true_f1 = 2 * recall * 0.1 / (0.1 + recall * 0.1 + 0.05 * 0.9)
    num_covered = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        yes = [n for n in range(100) if rng.random() < (recall if n < 10 else 0.05)]
        programs = {"never": Answering([]), "rarely": Answering(yes)}
        low, high = evaluated(programs, F1("yes"), devset).programs["rarely"].difference_interval
        num_covered += low <= true_f1 <= high
    assert num_covered >= 9


@pytest.mark.parametrize("metric", [plr_dspy.BalancedAccuracy(), F1("yes")])
def test_the_interval_is_wide_after_a_perfect_recall_of_five_examples(metric):
    """Two false positives do not make this recall more certain."""
    yes = set(range(5))
    programs = {"right": Answering(yes), "alarms": Answering({*yes, 50, 51})}
    evaluation = evaluated(programs, metric, examples(100, yes))
    for result in evaluation.programs.values():
        low, high = result.interval
        assert 0.3 < low < 0.9
        assert high > 0.8


def test_programs_without_demos_and_with_renamed_answers_are_evaluated():
    devset = examples(20, range(5))
    rule = Program(lambda self, number: dspy.Prediction(label="yes"))
    ensemble = dspy.Ensemble(reduce_fn=lambda answers: answers[0]).compile([rule])
    for program in (rule, ensemble):
        assert evaluated_alone(program, exact, devset).score == 0.25

    def renamed(self, number):
        return dspy.Prediction(answer=self.inner(number=number).label)

    def metric(example, prediction):
        return example.label == prediction.answer

    renaming = Program(renamed, inner=Answering(range(5)))
    assert evaluated_alone(renaming, metric, devset).score == 1.0


@pytest.mark.parametrize("metric", [exact, F1("yes"), plr_dspy.BalancedAccuracy()])
def test_the_difference_between_identical_answers_has_an_interval(metric):
    programs = {"one": Answering([1, 2]), "other": Answering([1, 2])}
    evaluation = evaluated(programs, metric, examples(20, range(5)))
    low, high = evaluation.programs["other"].difference_interval
    assert low < -0.05 < 0.05 < high


def test_calls_of_identical_programs_are_not_repeated(caplog):
    devset = questions(20)
    engine = engine_for(devset)
    with using(engine):
        programs = {"one": student(4), "other": student(4)}
        evaluation = evaluate_programs(programs, exact_match, devset, display_progress=False)
    assert engine.num_calls == 20
    assert evaluation.programs["other"].difference == 0
    assert "programs['other'] is the same program as programs['one']" in caplog.text


def test_examples_that_a_program_shows_as_demos_are_reported(caplog):
    devset = questions(20)
    programs = {"none": student(0), "some": student(devset[:3])}
    with using(engine_for(devset)):
        evaluate_programs(programs, exact_match, devset, display_progress=False)
    lines = [line for line in caplog.messages if "as demos" in line]
    assert len(lines) == 1
    assert "programs['some'] may show 3 of the 20 examples in devset as demos" in lines[0]


@pytest.mark.parametrize("metric", [exact, F1("yes")])
def test_an_example_with_a_failed_call_is_omitted_for_all_programs(metric, caplog):
    devset = examples(20, range(5))
    cause = "the first with ConnectionError: no route"
    failing = Answering(range(7), failing=[3, 19])
    evaluation = evaluated({"fine": Answering(range(6)), "failing": failing}, metric, devset)
    assert evaluation.num_examples == 18
    assert evaluation.num_failed == 2
    assert "18 examples (2 others omitted because of failed calls)\n" in str(evaluation)
    assert f"calls on 2 of 20 examples failed, {cause}" in caplog.text
    left = [example for example in devset if example.number not in (3, 19)]
    programs = {"fine": Answering(range(6)), "failing": Answering(range(7))}
    assert evaluation.programs == evaluated(programs, metric, left).programs
    failing = Answering([], failing=[1, 2])
    with pytest.raises(RuntimeError, match=f"calls on 2 of 3 examples failed, {cause}"):
        evaluated_alone(failing, exact, examples(3, [0, 1]))
    with pytest.raises(ConnectionError, match="no route"):
        evaluated_alone(Answering([], failing=range(20)), exact, devset)
    with pytest.raises(AttributeError, match="nothing"):
        evaluated_alone(Answering([]), lambda e, p: p.nothing, devset)


def test_calls_of_other_programs_allow_no_more_failures():
    numbers = []

    def fail(self, number):
        numbers.append(number)
        raise ConnectionError("no route")

    programs = {"fine": Answering([]), "failing": Program(fail)}
    with dspy.context(max_errors=2), pytest.raises(ConnectionError):
        evaluated(programs, exact, examples(100, [1]))
    assert len(numbers) == 2


@pytest.mark.parametrize(
    ("programs", "devset", "error", "words"),
    [
        ({}, examples(3, [1]), TypeError, "programs must be a non-empty dict"),
        (Answering([]), examples(3, [1]), TypeError, "programs must be a non-empty dict"),
        ({"a": 3}, examples(3, [1]), TypeError, r"programs\['a'\] must be a"),
        (
            {"a": Answering([])},
            examples(1, [0]),
            ValueError,
            "devset must contain at least 2 examples; got 1",
        ),
        (
            {1: Answering([])},
            examples(3, [1]),
            TypeError,
            "programs must have strings as names; got 1: pass '1'",
        ),
        (
            {"": Answering([])},
            examples(3, [1]),
            TypeError,
            "programs must have non-empty strings as names; got ''",
        ),
        (
            {"a": dspy.Predict("text -> label")},
            examples(3, [1]),
            ValueError,
            r"\['text'\] of programs\['a'\];",
        ),
        (
            {"a": dspy.Predict("number -> label"), "b": dspy.Predict("number -> answer")},
            examples(3, [1]),
            ValueError,
            r"programs\['b'\] must have the outputs of 'a', because the metric fails without \['label'\]; got",
        ),
        (
            {
                "a": dspy.Predict(YES_OR_NO),
                "b": CalibratedProgram(dspy.Predict(YES_OR_NO.replace("number", "text"))),
            },
            examples(3, [1]),
            ValueError,
            r"\['text'\] of programs\['b'\];",
        ),
        (
            {
                "a": dspy.Predict(YES_OR_NO),
                "b": CalibratedProgram(dspy.Predict(YES_OR_NO.replace("label", "answer"))),
            },
            examples(3, [1]),
            ValueError,
            r"programs\['b'\] must have the outputs of 'a', because the metric fails without \['label'\]; got",
        ),
        ({"a": Answering([])}, [1, 2], TypeError, r"devset\[0\] must be a dspy.Example"),
    ],
)
def test_bad_arguments_are_rejected(programs, devset, error, words):
    with pytest.raises(error, match=words):
        evaluated(programs, exact, devset)
    with pytest.raises(ValueError, match="num_threads must be greater than or equal to 1; got 0"):
        evaluate_programs({"a": Answering([])}, exact, examples(3, [1]), num_threads=0)


def test_a_set_metric_that_always_raises_is_rejected_before_any_call():
    def broken(counts, labels):
        raise LookupError("no such table")

    def of_errors(counts, labels):
        if np.trace(counts) == counts.sum():
            raise ZeroDivisionError
        return 0.5

    calls = []
    program = Program(lambda self, number: calls.append(number) or dspy.Prediction(label="no"))
    with pytest.raises(LookupError, match="no such table"):
        evaluated_alone(program, ConfusionMetric(broken), examples(3, [1]))
    assert not calls
    assert evaluated_alone(Answering([0]), ConfusionMetric(of_errors), examples(3, [1])).score == 0.5

    def of_yes(counts, labels):
        return float(counts[labels.index("yes")].sum() == 0)

    # The output's type allows "yes", so the function can rely on it.
    assert evaluated_alone(Answering([]), ConfusionMetric(of_yes), examples(3, [])).score == 1.0
    with pytest.raises(TypeError, match=r"got \[.*pass a metric, or a dict such as"):
        evaluated({"a": program}, [exact, F1()], examples(3, [1]))


def test_a_metric_over_a_set_counts_unparsable_replies_as_incorrect():
    """The interval of a difference does not exceed the range of the metric."""
    devset = examples(40, {1, 2, 3, 4})
    better = Answering({1, 2, 3, 4})
    unread = Answering({1}, unread=range(10, 40))
    # There is one true positive, three false negatives, and a false positive for each unparsable reply.
    f1 = evaluated_alone(unread, F1("yes"), devset).score
    assert f1 == pytest.approx(2 / (2 + 3 + 30))
    programs = {"none": Answering(()), "all": better}
    result = evaluated(programs, F1("yes"), devset).programs["all"]
    assert result.difference == 1.0 == result.difference_interval[1]


@pytest.mark.parametrize("metric", [F1("a"), F1(), BalancedAccuracy()])
@pytest.mark.parametrize("better", ["always b", "correct"])
def test_the_interval_for_a_difference_includes_it_if_no_reply_could_be_parsed(metric, better):
    """Without any label, the linear approximation of a metric over a set is poor."""
    labels = ["a" if i % 5 == 0 else "b" for i in range(40)]
    examples = [
        dspy.Example(question=str(i), answer=label).with_inputs("question") for i, label in enumerate(labels)
    ]

    def unreadable(self, question):
        raise AdapterParseError(adapter_name="any", signature=self.inner.signature, lm_response="?")

    def answering(self, question):
        return dspy.Prediction(answer="b" if better == "always b" else labels[int(question)])

    inner = dspy.Predict("question -> answer: Literal['a', 'b']")
    programs = {"unreadable": Program(unreadable, inner=inner), "better": Program(answering, inner=inner)}
    score = evaluate_programs(programs, metric, examples, num_threads=1).programs["better"]
    least, most = score.difference_interval
    assert least <= score.difference <= most


def accuracy(example, prediction, trace=None):
    return example.label == prediction.label


def recall_of_yes(example, prediction, trace=None):
    return example.label == "no" or prediction.label == "yes"


class TestLogFolder:
    """Evaluations with `log_dir` reuse the calls of an earlier evaluation."""

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
        return dspy.Predict(dspy.Signature("number -> label: Literal['no', 'yes']", instruction))

    @pytest.fixture
    def programs(self):
        return {"a": self.program("Label it."), "b": self.program("Say yes or no.")}

    @pytest.fixture
    def evaluate(self, tmp_path):
        def evaluate(programs, metric=None, devset=self.DEVSET, **options):
            metric = metric or {"accuracy": accuracy, "f1": F1("yes")}
            options = {"log_dir": tmp_path / "log", "display_progress": False, **options}
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

    @pytest.mark.parametrize("first", ["compile", "evaluate"])
    @pytest.mark.parametrize("accepted", [False, True])
    def test_a_folder_holds_either_a_compile_or_an_evaluation(
        self, engine, programs, evaluate, tmp_path, first, accepted
    ):
        def compile_program(**options):
            optimizer = plr_dspy.PLFewShot(
                accuracy, max_metric_calls=40, log_dir=tmp_path / "log", display_progress=False, **options
            )
            optimizer.compile(programs["a"], trainset=examples(40, yes=range(20)))

        def evaluate_all(**options):
            evaluate(programs, **options)

        runs = [compile_program, evaluate_all]
        message = "its calls were made by an optimizer, not by evaluate_programs. Pass another log_dir.$"
        if first == "evaluate":
            runs.reverse()
            message = "its calls were made by evaluate_programs, not by an optimizer. Pass another log_dir.$"
        run, other = runs
        run()
        num_calls = engine.requests
        with pytest.raises(ValueError, match=message):
            other(accept_changes=accepted)
        run()
        assert engine.requests == num_calls
