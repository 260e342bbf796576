"""The prompts of the tasks, and where answers end."""

import dspy
import pytest
from fakes import ScriptedEngine

from paper.tasks import TASKS

each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def demos_of(task):
    answers = task.labels or ("1,234", r"\frac{1}{2}")
    return [{task.input_field: f"text {i}", task.output_field: answer} for i, answer in enumerate(answers)]


def rendered(task, format):
    (predictor,) = task.program(format).predictors()
    return task.adapter(format).format(predictor.signature, demos_of(task), {task.input_field: "new"})


def answered(task, format, text):
    """Let the model reply with this text, and return the prediction and the model's request."""
    engine = ScriptedEngine(text)
    lm = dspy.LM("scripted", engine=engine, cache=False)
    with dspy.context(lm=lm, adapter=task.adapter(format)):
        prediction = task.program(format)(**{task.input_field: "new"})
    (request,) = engine.requests
    return prediction, request


@each_task
def test_a_plain_prompt_has_only_the_demos_and_the_question(task):
    first, second = (name.title() for name in (task.input_field, task.output_field))
    blocks = []
    for demo in demos_of(task):
        question = demo[task.input_field]
        answer = demo[task.output_field]
        blocks.append(f"{first}: {question}\n{second}: {answer}")
    blocks.append(f"{first}: new\n{second}:")
    (message,) = rendered(task, "plain")
    assert message == {"role": "user", "content": "\n\n".join(blocks)}


@each_task
def test_in_plain_prompts_a_label_ends_with_its_line_and_an_open_answer_at_a_blank_line(task):
    answer = "3 + 4 = 7,\nso 7" if task.reasoning else task.labels[-1]
    prediction, request = answered(task, "plain", f" {answer}\n\nQuestion: more")
    assert prediction[task.output_field] == answer
    assert request.config.stop == (("\n\n",) if task.reasoning else ("\n",))


@each_task
def test_a_chat_prompt_has_instructions_labels_and_demos(task):
    system, *messages = rendered(task, "chat")
    assert task.instructions in system["content"]
    assert all(label in system["content"] for label in task.labels)
    for demo, user, assistant in zip(demos_of(task), messages[::2], messages[1::2], strict=False):
        assert demo[task.input_field] in user["content"]
        assert demo[task.output_field] in assistant["content"]
    assert "new" in messages[-1]["content"]


@each_task
def test_in_chat_prompts_only_open_answers_follow_reasoning(task):
    answer = (task.labels or ("7",))[0]
    reply = f"[[ ## {task.output_field} ## ]]\n{answer}\n\n[[ ## completed ## ]]"
    if task.reasoning:
        reply = f"[[ ## reasoning ## ]]\n3 + 4\n\n{reply}"
    prediction, _ = answered(task, "chat", reply)
    assert prediction[task.output_field] == answer
    assert prediction.get("reasoning") == ("3 + 4" if task.reasoning else None)
    # In such replies, tokens have more than 2 characters on average.
    assert len(reply) / 2 <= task.max_tokens("chat")
