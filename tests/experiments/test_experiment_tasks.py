"""The tasks: what their prompts show, where answers end, and which are right."""

import dspy
import pytest
from dspy import lm15

from plr_dspy.experiments.names import CLASSIFICATION, REASONING
from plr_dspy.experiments.tasks.tasks import TASKS
from plr_dspy.programs.copies import ProgramFactory

CLASSES = [TASKS[name] for name in CLASSIFICATION]
OPEN = [TASKS[name] for name in REASONING]
FORMATS = ["plain", "chat"]


def each(tasks):
    return pytest.mark.parametrize("task", tasks, ids=lambda task: task.name)


def demos_of(task):
    answers = task.labels or ("1,234", r"\frac{1}{2}")
    return [{task.input_field: f"text {i}", task.output_field: answer} for i, answer in enumerate(answers)]


def rendered(task, format):
    """The messages of a prompt whose last text is "new"."""
    (predictor,) = task.program(format).predictors()
    return task.adapter(format).format(predictor.signature, demos_of(task), {task.input_field: "new"})


class Engine:
    """Answers with a text, and keeps the requests."""

    def __init__(self, text):
        self.text = text
        self.requests = []

    def complete(self, request):
        self.requests.append(request)
        answer = {"message": {"content": self.text}, "finish_reason": "stop"}
        return lm15.response_from_openai_chat({"choices": [answer]}, model=request.model)


def answered(task, format, text):
    """The prediction of a model that says a text, and the request it was sent."""
    engine = Engine(text)
    with dspy.context(lm=dspy.LM("scripted", engine=engine, cache=False), adapter=task.adapter(format)):
        prediction = task.program(format)(**{task.input_field: "new"})
    (request,) = engine.requests
    return prediction, request


def test_they_are_those_of_the_tables():
    assert CLASSIFICATION == ("mr", "sst5", "trec", "agnews", "subj")
    assert tuple(TASKS) == CLASSIFICATION + REASONING
    assert all(name == task.name for name, task in TASKS.items())
    assert [name for name, task in TASKS.items() if task.reasoning] == list(REASONING)
    titles = ["MR", "SST-5", "TREC", "AG News", "SUBJ", "GSM8K", "MATH500", "DeepMath"]
    assert [task.title for task in TASKS.values()] == titles


class TestPlain:
    @each(TASKS.values())
    def test_the_prompt_is_the_demos_and_the_question_alone(self, task):
        first, second = (name.title() for name in (task.input_field, task.output_field))
        blocks = [
            f"{first}: {demo[task.input_field]}\n{second}: {demo[task.output_field]}"
            for demo in demos_of(task)
        ]
        (message,) = rendered(task, "plain")
        assert message == {"role": "user", "content": "\n\n".join([*blocks, f"{first}: new\n{second}:"])}

    @pytest.mark.parametrize(
        ("name", "end"),
        [
            ("mr", "Review: new\nSentiment:"),
            ("sst5", "Review: new\nSentiment:"),
            ("trec", "Question: new\nType:"),
            ("agnews", "Article: new\nTopic:"),
            ("subj", "Input: new\nType:"),
            ("gsm8k", "Question: new\nAnswer:"),
        ],
    )
    def test_titles(self, name, end):
        assert rendered(TASKS[name], "plain")[0]["content"].endswith("\n\n" + end)

    @each(CLASSES)
    def test_a_label_ends_with_its_line(self, task):
        prediction, request = answered(task, "plain", f" {task.labels[-1]}\n\nReview: more")
        assert prediction[task.output_field] == task.labels[-1]
        assert request.config.stop == ("\n",)

    @each(OPEN)
    def test_an_open_answer_ends_at_a_blank_line(self, task):
        prediction, request = answered(task, "plain", " 3 + 4 = 7,\nso 7\n\nQuestion: more")
        assert prediction.answer == "3 + 4 = 7,\nso 7"
        assert request.config.stop == ("\n\n",)


class TestChat:
    @each(TASKS.values())
    def test_the_prompt_says_what_is_asked(self, task):
        system, *messages = rendered(task, "chat")
        assert task.instructions in system["content"]
        assert all(label in system["content"] for label in task.labels)
        for demo, user, assistant in zip(demos_of(task), messages[::2], messages[1::2], strict=False):
            assert demo[task.input_field] in user["content"]
            assert demo[task.output_field] in assistant["content"]
        assert "new" in messages[-1]["content"]

    @each(CLASSES)
    def test_a_label_comes_at_once(self, task):
        text = f"[[ ## {task.output_field} ## ]]\n{task.labels[0]}\n\n[[ ## completed ## ]]"
        prediction, _ = answered(task, "chat", text)
        assert prediction[task.output_field] == task.labels[0]

    @each(CLASSES)
    def test_a_label_and_its_markers_fit(self, task):
        """At 2 characters a token, which is less than tokenizers make of such text."""
        longest = max(map(len, task.labels))
        reply = f"[[ ## {task.output_field} ## ]]\n{'x' * longest}\n\n[[ ## completed ## ]]"
        assert len(reply) / 2 <= task.max_tokens("chat")

    @each(OPEN)
    def test_an_open_answer_comes_after_its_reasoning(self, task):
        text = "[[ ## reasoning ## ]]\n3 + 4\n\n[[ ## answer ## ]]\n7\n\n[[ ## completed ## ]]"
        prediction, _ = answered(task, "chat", text)
        assert (prediction.reasoning, prediction.answer) == ("3 + 4", "7")
        assert task.max_tokens("chat") > task.max_tokens("plain") > TASKS["mr"].max_tokens("plain")


@each(TASKS.values())
@pytest.mark.parametrize("format", FORMATS)
def test_the_program_takes_demos_and_is_saved(task, format, tmp_path):
    program = task.program(format)
    program.predictors()[0].demos = [dspy.Example(demo) for demo in demos_of(task)]
    program.save(tmp_path / "program.json")
    loaded = task.program(format)
    loaded.load(tmp_path / "program.json")
    assert [dict(demo) for demo in loaded.predictors()[0].demos] == demos_of(task)
    assert ProgramFactory(program)  # what orders programs takes it


@pytest.mark.parametrize("what", ["program", "adapter", "max_tokens"])
def test_an_unknown_format(what):
    with pytest.raises(ValueError, match=r"format must be one of \('plain', 'chat'\); got 'json'"):
        getattr(TASKS["mr"], what)("json")


class TestMetrics:
    @each(CLASSES)
    @pytest.mark.parametrize("name", ["strict", "lenient"])
    def test_labels(self, task, name):
        metric = task.metric(name)
        for gold in task.labels:
            for answer in task.labels:
                example = dspy.Example({task.input_field: "x", task.output_field: gold})
                right = metric(example, dspy.Prediction(**{task.output_field: answer}))
                assert right is (gold == answer)

    @pytest.mark.parametrize(
        ("name", "metric", "gold", "answer", "right"),
        [
            ("gsm8k", "strict", "1,234", "1234", True),
            ("gsm8k", "strict", "1234", "$1,234", True),
            ("gsm8k", "strict", "1,234", "1234 - 1 = 1233", False),
            ("gsm8k", "lenient", "1,234", "1234 - 1 = 1233", True),
            ("math500", "strict", r"\frac{1}{2}", "0.5", True),
            ("math500", "strict", r"\frac{1}{2}", r"$\dfrac12$", True),
            ("math500", "strict", r"\frac{1}{2}", "2", False),
            ("math500", "lenient", r"\frac{1}{2}", r"Half, that is \frac{1}{2}, or 2", True),
            ("deepmath", "strict", "Yes", "yes", True),
            ("deepmath", "strict", "Yes", "No", False),
            ("deepmath", "strict", "No", "Note that 3 is odd", False),
            ("deepmath", "lenient", "No", "Note that 3 is odd", True),
        ],
    )
    def test_open_answers(self, name, metric, gold, answer, right):
        example, prediction = dspy.Example(question="x", answer=gold), dspy.Prediction(answer=answer)
        assert TASKS[name].metric(metric)(example, prediction) is right

    @each([TASKS["mr"], TASKS["gsm8k"], TASKS["math500"]])
    def test_no_answer_is_wrong(self, task):
        example = dspy.Example({task.input_field: "x", task.output_field: (*task.labels, "1")[0]})
        for prediction in (dspy.Prediction(**{task.output_field: None}), dspy.Prediction(other="1")):
            assert task.metric()(example, prediction) is False
            assert task.metric()(example, prediction, trace=[]) is False

    @each([TASKS["mr"], TASKS["gsm8k"]])
    def test_an_unknown_one(self, task):
        with pytest.raises(ValueError, match=r"metric must be one of \('strict', 'lenient'\); got 'loose'"):
            task.metric("loose")
