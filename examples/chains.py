"""PLReorder after each of DSPy's optimizers, in a few lines each.

python examples/chains.py labeled_few_shot                  # on the local model
python examples/chains.py mipro --lm openai/gpt-4o-mini     # on any other
python examples/chains.py                                   # lists the chains

Each function takes a student, examples, a metric and an LM, and returns the program with its demos in the order chosen.
The numbers are small, so that each takes minutes; leave them out for DSPy's own.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable

import dspy

from paper.tasks import TASKS
from plr_dspy import PlainTextAdapter, PLReorder
from plr_dspy.data import load_reviews
from plr_dspy.local import local_lm

Examples = list[dspy.Example]
Metric = Callable[..., float]
Chain = Callable[[dspy.Module, Examples, Metric, dspy.LM], dspy.Module]

CALLS = 300
"""Program calls of each reordering."""


def labeled_few_shot(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    chosen = dspy.LabeledFewShot(k=8).compile(student, trainset=examples)
    return PLReorder(metric, max_metric_calls=CALLS).compile(chosen, trainset=examples)


def bootstrap(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    optimizer = dspy.BootstrapFewShot(metric=metric, max_bootstrapped_demos=4, max_labeled_demos=8)
    chosen = optimizer.compile(student, trainset=examples)
    return PLReorder(metric, max_metric_calls=CALLS).compile(chosen, trainset=examples)


def random_search(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=metric, max_bootstrapped_demos=4, max_labeled_demos=8, num_candidate_programs=3, num_threads=2
    )
    half = len(examples) // 2
    chosen = optimizer.compile(student, trainset=examples[:half], valset=examples[half:])
    return PLReorder(metric, max_metric_calls=CALLS).compile(chosen, trainset=examples)


def mipro(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """Instructions and demos first: both decide which order is good."""
    optimizer = dspy.MIPROv2(metric=metric, auto=None, num_candidates=3, max_bootstrapped_demos=3, max_labeled_demos=6)
    half = len(examples) // 2
    chosen = optimizer.compile(student, trainset=examples[:half], valset=examples[half:], num_trials=4, minibatch=False)
    return PLReorder(metric, max_metric_calls=CALLS).compile(chosen, trainset=examples)


def simba(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    optimizer = dspy.SIMBA(metric=metric, bsize=8, num_candidates=2, max_steps=2, max_demos=4)
    chosen = optimizer.compile(student, trainset=examples, seed=0)
    return PLReorder(metric, max_metric_calls=CALLS).compile(chosen, trainset=examples)


def copro(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """It writes instructions and leaves demos where they are: choose some before."""
    chosen = dspy.LabeledFewShot(k=6).compile(student, trainset=examples)
    optimizer = dspy.COPRO(metric=metric, breadth=2, depth=1, prompt_model=lm)
    quiet = {"num_threads": 2, "display_progress": False}
    chosen = optimizer.compile(chosen, trainset=examples[:20], eval_kwargs=quiet)
    return PLReorder(metric, max_metric_calls=CALLS).compile(chosen, trainset=examples)


def gepa(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """So does GEPA, whose metric takes five arguments."""

    def scored(gold, pred, trace=None, pred_name=None, pred_trace=None):  # type: ignore[no-untyped-def]
        return float(metric(gold, pred))

    chosen = dspy.LabeledFewShot(k=6).compile(student, trainset=examples)
    optimizer = dspy.GEPA(metric=scored, max_metric_calls=40, reflection_lm=lm, num_threads=2)
    chosen = optimizer.compile(chosen, trainset=examples[:10], valset=examples[10:20])
    return PLReorder(metric, max_metric_calls=CALLS).compile(chosen, trainset=examples)


def better_together(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """All in one optimizer, which returns the best program of all its steps."""
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
    """Order the demos first: the prompts that it trains on show them. It needs an LM that can be fine-tuned."""
    if not lm.provider.finetunable:
        raise ValueError("this LM cannot be fine-tuned: pass --lm openai/... or an LM with such a provider")
    shown, rest = examples[:20], examples[20:]  # a prompt that shows its own answer teaches nothing
    chosen = dspy.LabeledFewShot(k=6).compile(student, trainset=shown)
    chosen.set_lm(lm)
    ordered = PLReorder(metric, max_metric_calls=CALLS).compile(chosen, trainset=examples)
    return dspy.BootstrapFinetune(metric=metric, num_threads=2).compile(ordered, trainset=rest)


def ensemble(student: dspy.Module, examples: Examples, metric: Metric, lm: dspy.LM) -> dspy.Module:
    """Order the members first: an ensemble has no demos of its own."""
    members = [
        PLReorder(metric, max_metric_calls=CALLS, seed=seed).compile(
            dspy.LabeledFewShot(k=6).compile(student, trainset=examples[seed::2]), trainset=examples
        )
        for seed in (0, 1)
    ]
    return dspy.Ensemble(reduce_fn=dspy.majority).compile(members)


CHAINS: dict[str, Chain] = {
    chain.__name__: chain
    for chain in (
        labeled_few_shot,
        bootstrap,
        random_search,
        mipro,
        simba,
        copro,
        gepa,
        better_together,
        finetune,
        ensemble,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chain", nargs="?", choices=list(CHAINS))
    parser.add_argument("--lm", help="litellm name (default: the local model)")
    args = parser.parse_args()
    if args.chain is None:
        for name, chain in CHAINS.items():
            print(f"{name:18} {(chain.__doc__ or '').splitlines()[0] if chain.__doc__ else ''}")
        return
    logging.getLogger("plr_dspy").setLevel(logging.INFO)
    task, examples = TASKS["mr"], load_reviews("train")[:60]
    student, metric = dspy.Predict(task.signature), task.metric()
    if args.lm is None:
        with local_lm() as lm, dspy.context(lm=lm, adapter=PlainTextAdapter()):
            program = CHAINS[args.chain](student, examples, metric, lm)
    else:
        with dspy.context(lm=dspy.LM(args.lm)):
            program = CHAINS[args.chain](student, examples, metric, dspy.settings.lm)
    program.save("program.json")
    print("saved program.json")


if __name__ == "__main__":
    main()
