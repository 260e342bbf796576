"""PLReorder in chains: after optimizers of instructions, inside BetterTogether, before Ensemble."""

import importlib
from pathlib import Path

import dspy
import pytest
from dspy.clients.provider import Provider
from dspy.utils.callback import BaseCallback
from fakes import configured, exact_match, questions

from plr_dspy import PLReorder
from plr_dspy.baselines import TopKOrder

EXAMPLES = questions(60)


@pytest.fixture(autouse=True)
def lm():
    with configured(EXAMPLES) as lm:
        yield lm


def scored(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return float(exact_match(gold, pred))


def few_shot():
    return dspy.LabeledFewShot(k=5).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)


def reorder(**options):
    return PLReorder(
        exact_match, **{"max_metric_calls": 150, "num_threads": 4, "display_progress": False, **options}
    )


def texts(program):
    (predictor,) = program.predictors()
    return [demo.question for demo in predictor.demos]


def copro(program, lm):
    optimizer = dspy.COPRO(metric=exact_match, breadth=2, depth=1, prompt_model=lm)
    return optimizer.compile(
        program, trainset=EXAMPLES[:10], eval_kwargs={"num_threads": 4, "display_progress": False}
    )


def gepa(program, lm):
    optimizer = dspy.GEPA(metric=scored, max_metric_calls=30, reflection_lm=lm, num_threads=4)
    return optimizer.compile(program, trainset=EXAMPLES[:10], valset=EXAMPLES[10:20])


@pytest.fixture
def chains(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    return importlib.import_module("chains")


NAMES = [
    "labeled_few_shot",
    "bootstrap",
    "random_search",
    "mipro",
    "simba",
    "copro",
    "gepa",
    "better_together",
    "finetune",
    "ensemble",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_each_family(chains, name, lm, tmp_path):
    student = dspy.Predict("question -> answer")
    program = chains.CHAINS[name](student, EXAMPLES, exact_match, lm)
    assert not student.demos
    assert program(question=EXAMPLES[0].question).answer
    reports = [
        m.reorder_report for m in [program, *getattr(program, "programs", [])] if hasattr(m, "reorder_report")
    ]
    assert reports or name == "better_together", "it returns the best of its steps, which may be the first"
    assert all(report["program_calls"]["total"] <= chains.CALLS for report in reports)


def test_all_examples_are_run(chains):
    assert list(chains.CHAINS) == NAMES


def test_the_example_of_finetuning_says_beforehand_that_an_lm_cannot(chains, lm):
    fixed = lm.copy(provider=Provider())
    with pytest.raises(ValueError, match="cannot be fine-tuned"):
        chains.finetune(dspy.Predict("question -> answer"), EXAMPLES, exact_match, fixed)
    assert not lm.engine.num_calls


@pytest.mark.parametrize("optimize", [copro, gepa])
def test_after_an_optimizer_of_instructions(optimize, lm):
    """They leave demos where they are, and instructions stay as they leave them."""
    student = optimize(few_shot(), lm)
    compiled = reorder().compile(student, trainset=EXAMPLES)
    assert sorted(texts(compiled)) == sorted(texts(student)) != texts(compiled)
    (before,), (after,) = student.predictors(), compiled.predictors()
    assert after.signature.instructions == before.signature.instructions


def better_together(strategy, lm, **arguments):
    student = dspy.Predict("question -> answer")
    student.set_lm(lm)
    optimizer = dspy.BetterTogether(
        metric=exact_match,
        few=dspy.LabeledFewShot(k=5),
        mipro=dspy.MIPROv2(
            metric=exact_match,
            auto=None,
            num_candidates=2,
            max_bootstrapped_demos=2,
            max_labeled_demos=4,
            num_threads=4,
            prompt_model=lm,
            task_model=lm,
        ),
        reorder=reorder(),
    )
    trials = {"num_trials": 2, "minibatch": False}
    compiled = optimizer.compile(
        student,
        trainset=EXAMPLES[:40],
        valset=EXAMPLES[40:],
        num_threads=4,
        strategy=strategy,
        optimizer_compile_args={"mipro": trials, **arguments},
    )
    return compiled, {candidate["strategy"]: candidate for candidate in compiled.candidate_programs}


@pytest.mark.parametrize("strategy", ["few -> reorder", "mipro -> reorder", "few -> reorder -> reorder"])
def test_inside_better_together(strategy, lm):
    compiled, candidates = better_together(strategy, lm)
    assert not compiled.flag_compilation_error_occurred
    before, after = (candidates[s]["program"] for s in (strategy.rpartition(" -> ")[0], strategy))
    if texts(before):
        assert sorted(texts(before)) == sorted(texts(after))
    else:  # MIPRO has chosen no demos: it gets labelled ones
        assert len(texts(after)) == 8
    assert after.reorder_report["program_calls"]["total"] > 0


def test_better_together_passes_arguments_on(lm):
    seeds = []
    for seed in (3, 4):
        _, candidates = better_together("few -> reorder", lm, reorder={"seed": seed, "valset": EXAMPLES[:10]})
        report = candidates["few -> reorder"]["program"].reorder_report
        seeds.append(report["settings"]["seed"])
        assert report["settings"]["num_selection"] <= 10
    assert seeds == [3, 4]


def test_members_of_an_ensemble_are_ordered_first():
    members = [reorder(seed=seed).compile(few_shot(), trainset=EXAMPLES) for seed in (0, 1)]
    ensemble = dspy.Ensemble(reduce_fn=dspy.majority).compile(members)
    assert ensemble(question=EXAMPLES[0].question).answer


def test_demos_stay_for_what_comes_after():
    """Such as an optimizer that runs the program as its teacher."""
    compiled = reorder().compile(few_shot(), trainset=EXAMPLES)
    again = dspy.BootstrapFewShot(metric=exact_match, max_bootstrapped_demos=2).compile(
        dspy.Predict("question -> answer"), teacher=compiled, trainset=EXAMPLES[:10]
    )
    assert again.demos
    assert texts(compiled) == texts(compiled.deepcopy())


class Recorder(BaseCallback):
    """Keeps what optimizers say."""

    def __init__(self):
        self.heard = []

    def on_compile_start(self, call_id, instance, inputs):
        self.heard.append(("start", type(instance).__name__, sorted(inputs)))

    def on_compile_end(self, call_id, outputs, exception=None):
        self.heard.append(("end", type(outputs).__name__, type(exception).__name__))


@pytest.mark.parametrize("kind", [PLReorder, TopKOrder])
def test_callbacks_of_optimizers_fire(kind):
    recorder = Recorder()
    optimizer = kind(exact_match, max_metric_calls=150, num_threads=4, display_progress=False)
    with dspy.context(callbacks=[recorder]):
        optimizer.compile(few_shot(), trainset=EXAMPLES)
        with pytest.raises(ValueError, match="trainset"):
            optimizer.compile(few_shot(), trainset=[])
    starts = [name for what, name, _ in recorder.heard if what == "start"]
    assert starts.count(kind.__name__) == 2
    ends = [entry for entry in recorder.heard if entry[0] == "end"]
    assert ends[1][1:] == ("Predict", "NoneType")
    assert ends[-1][2] == "ValueError"
