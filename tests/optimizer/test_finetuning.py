"""PLReorder before BootstrapFinetune: what is trained on, what is left, and going on after it."""

import threading

import dspy
import pytest
from fakes import configured, digest, exact_match, questions

from plr_dspy import PLReorder

EXAMPLES = questions(60)
SHOWN, REST = EXAMPLES[:20], EXAMPLES[20:]
NUM_DEMOS = 5


class Steps(dspy.Module):
    """Two predictors, and something that cannot be deep-copied."""

    def __init__(self):
        super().__init__()
        self.first = dspy.Predict("question -> answer")
        self.second = dspy.ChainOfThought("question -> answer")
        self.lock = threading.Lock()

    def forward(self, question):
        self.first(question=question)
        return self.second(question=question)


@pytest.fixture(autouse=True)
def lm():
    with configured(EXAMPLES) as lm:
        yield lm


@pytest.fixture(params=["question -> answer", Steps])
def few_shot(request, lm):
    """A program with demos in the order that the LM does worst with, and the LM on its predictors."""
    student = dspy.Predict(request.param) if isinstance(request.param, str) else request.param()
    program = dspy.LabeledFewShot(k=NUM_DEMOS).compile(student, trainset=SHOWN)
    program.set_lm(lm)
    for predictor in program.predictors():
        predictor.demos.sort(key=lambda demo: digest(rendered(predictor, demo)), reverse=True)
    return program


def rendered(predictor, demo):
    return dspy.ChatAdapter().format_demos(predictor.signature, [demo])[0]["content"]


def reorder(program, **options):
    optimizer = PLReorder(
        exact_match, max_metric_calls=150, num_threads=4, display_progress=False, seed=1, **options
    )
    return optimizer.compile(program, trainset=EXAMPLES)


def finetune(program, **options):
    optimizer = dspy.BootstrapFinetune(metric=exact_match, num_threads=4, **options)
    return optimizer.compile(program, trainset=REST)


def orders(program):
    return [[demo.question for demo in predictor.demos] for predictor in program.predictors()]


def shown(conversation):
    """The questions of the demos of a conversation: a system message, pairs, the input and its answer."""
    users = conversation[1:-2:2]
    return [text.split("[[ ## question ## ]]\n")[1].split("\n")[0] for text in users]


def models(program):
    return [predictor.lm.model for predictor in program.predictors()]


def test_the_training_prompts_and_the_program_keep_the_demos_in_the_chosen_order(few_shot, lm):
    ordered = reorder(few_shot)
    chosen = orders(ordered)
    assert chosen != orders(few_shot)
    tuned = finetune(ordered)
    (conversations,) = lm.provider.jobs
    assert conversations
    assert {tuple(shown(c)) for c in conversations} == {tuple(order) for order in chosen}
    assert orders(tuned) == chosen
    assert all(model.endswith("-tuned") for model in models(tuned))
    assert tuned.reorder_report["program_calls"]["total"] > 0
    assert not any(model.endswith("-tuned") for model in models(few_shot))


def test_each_predictor_trains_on_its_own_order(lm):
    """Where each has a job of its own."""
    program = dspy.LabeledFewShot(k=NUM_DEMOS).compile(Steps(), trainset=SHOWN)
    program.set_lm(lm)
    ordered = reorder(program)
    finetune(ordered, multitask=False)
    assert [{tuple(shown(c)) for c in job} for job in lm.provider.jobs] == [
        {tuple(order)} for order in orders(ordered)
    ]


def test_exclude_demos_trains_without_them_and_leaves_none(few_shot, lm):
    tuned = finetune(reorder(few_shot), exclude_demos=True)
    (conversations,) = lm.provider.jobs
    assert conversations
    assert {len(conversation) for conversation in conversations} == {3}, "system, input, answer"
    assert not any(orders(tuned))


def test_a_finetuned_program_can_be_ordered_again(few_shot):
    """BootstrapFinetune leaves a bound `forward` on the program: every copy must run its own."""
    tuned = finetune(reorder(few_shot))
    before, engine = orders(tuned), tuned.predictors()[0].lm.engine
    engine.requests.clear()
    again = reorder(tuned)
    assert len({texts[:-1] for texts in engine.requests}) > 2 * len(before), "prompts differ in their demos"
    assert orders(tuned) == before
    assert [sorted(order) for order in orders(again)] == [sorted(order) for order in before]
    assert models(again) == models(tuned)
    assert again.forward.__self__ is again
