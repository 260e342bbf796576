"""Chains of one of DSPy's optimizers and PLReorder, each in a few lines.

python examples/chains.py labeled_few_shot                  # on the local model
python examples/chains.py mipro --lm openai/gpt-4o-mini     # on any other model
python examples/chains.py                                   # lists the chains

Each function takes a student, examples, a metric and an LM. It returns a program with the demos in the best order
that was found. The settings are small, so that each chain takes minutes. Omit them to use DSPy's defaults.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import TypeAlias

import dspy

from paper.tasks import TASKS
from plr_dspy import PlainTextAdapter, PLReorder
from plr_dspy.data import load_reviews
from plr_dspy.local import local_lm

Examples: TypeAlias = list[dspy.Example]
Metric: TypeAlias = Callable[..., float]
Chain: TypeAlias = Callable[[dspy.Module, Examples, Metric, dspy.LM], dspy.Module]

CALLS = 300
"""Maximum number of program calls in each reordering."""


def reorder(program: dspy.Module, examples: Examples, metric: Metric, seed: int = 0) -> dspy.Module:
    """Order the demos of a program, as the last step of a chain."""
    return PLReorder(metric, max_metric_calls=CALLS, seed=seed).compile(program, trainset=examples)


def labeled_few_shot(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    program = dspy.LabeledFewShot(k=8).compile(student, trainset=examples)
    return reorder(program, examples, metric)


def bootstrap(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    optimizer = dspy.BootstrapFewShot(metric=metric, max_bootstrapped_demos=4, max_labeled_demos=8)
    program = optimizer.compile(student, trainset=examples)
    return reorder(program, examples, metric)


def random_search(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=metric,
        max_bootstrapped_demos=4,
        max_labeled_demos=8,
        num_candidate_programs=3,
        num_threads=2,
    )
    half = len(examples) // 2
    program = optimizer.compile(student, trainset=examples[:half], valset=examples[half:])
    return reorder(program, examples, metric)


def mipro(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """Choose instructions and demos first, because the best order depends on both."""
    optimizer = dspy.MIPROv2(
        metric=metric, auto=None, num_candidates=3, max_bootstrapped_demos=3, max_labeled_demos=6
    )
    half = len(examples) // 2
    program = optimizer.compile(
        student, trainset=examples[:half], valset=examples[half:], num_trials=4, minibatch=False
    )
    return reorder(program, examples, metric)


def simba(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    optimizer = dspy.SIMBA(metric=metric, bsize=8, num_candidates=2, max_steps=2, max_demos=4)
    program = optimizer.compile(student, trainset=examples, seed=0)
    return reorder(program, examples, metric)


def copro(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """Choose demos first, because COPRO rewrites the instructions but keeps the demos."""
    program = dspy.LabeledFewShot(k=6).compile(student, trainset=examples)
    optimizer = dspy.COPRO(metric=metric, breadth=2, depth=1, prompt_model=lm)
    options = {"num_threads": 2, "display_progress": False}
    program = optimizer.compile(program, trainset=examples[:20], eval_kwargs=options)
    return reorder(program, examples, metric)


def gepa(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """Choose demos first, because GEPA rewrites the instructions but keeps the demos."""

    # GEPA requires a metric that takes five arguments.
    def gepa_metric(gold, pred, trace=None, pred_name=None, pred_trace=None):  # type: ignore[no-untyped-def]
        return float(metric(gold, pred))

    program = dspy.LabeledFewShot(k=6).compile(student, trainset=examples)
    optimizer = dspy.GEPA(metric=gepa_metric, max_metric_calls=40, reflection_lm=lm, num_threads=2)
    program = optimizer.compile(program, trainset=examples[:10], valset=examples[10:20])
    return reorder(program, examples, metric)


def better_together(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """Run all steps in one optimizer. It returns the best program from any step."""
    student = student.deepcopy()
    student.set_lm(lm)
    optimizer = dspy.BetterTogether(
        metric=metric, few=dspy.LabeledFewShot(k=6), reorder=PLReorder(metric, max_metric_calls=CALLS)
    )
    return optimizer.compile(
        student,
        trainset=examples,
        valset_ratio=0.3,
        strategy="few -> reorder",
        optimizer_compile_args={"reorder": {"seed": 1}},
    )


def finetune(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """Order the demos before fine-tuning, because the training prompts show them."""
    if not lm.provider.finetunable:
        raise ValueError(
            f"--lm must be a model that can be fine-tuned; got {lm.model}: pass a model such as "
            "openai/gpt-4o-mini-2024-07-18"
        )
    # Do not train on the demos, because the prompts show their answers.
    demo_examples = examples[:20]
    training_examples = examples[20:]
    program = dspy.LabeledFewShot(k=6).compile(student, trainset=demo_examples)
    program.set_lm(lm)
    program = reorder(program, examples, metric)
    return dspy.BootstrapFinetune(metric=metric, num_threads=2).compile(program, trainset=training_examples)


def ensemble(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """Order the demos of each member first, because the ensemble itself has no demos."""
    members = []
    for seed in (0, 1):
        member = dspy.LabeledFewShot(k=6).compile(student, trainset=examples[seed::2])
        members.append(reorder(member, examples, metric, seed))
    return dspy.Ensemble(reduce_fn=dspy.majority).compile(members)


CHAINS: dict[str, Chain] = {
    "labeled_few_shot": labeled_few_shot,
    "bootstrap": bootstrap,
    "random_search": random_search,
    "mipro": mipro,
    "simba": simba,
    "copro": copro,
    "gepa": gepa,
    "better_together": better_together,
    "finetune": finetune,
    "ensemble": ensemble,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chain", nargs="?", choices=list(CHAINS))
    parser.add_argument("--lm", help="litellm name of the model (default: the local model)")
    args = parser.parse_args()
    if args.chain is None:
        for name, chain in CHAINS.items():
            print(f"{name:18} {chain.__doc__ or ''}".rstrip())
        return
    logging.getLogger("plr_dspy").setLevel(logging.INFO)
    chain = CHAINS[args.chain]
    task = TASKS["mr"]
    student = dspy.Predict(task.signature)
    examples = load_reviews("train")[:60]
    if args.lm is None:
        with local_lm() as lm, dspy.context(lm=lm, adapter=PlainTextAdapter()):
            program = chain(student, examples, task.metric(), lm)
    else:
        lm = dspy.LM(args.lm)
        with dspy.context(lm=lm):
            program = chain(student, examples, task.metric(), lm)
    program.save("program.json")
    print("saved program.json")


if __name__ == "__main__":
    main()
