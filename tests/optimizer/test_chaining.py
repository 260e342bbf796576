"""PLReorder in chains: after optimizers of instructions, inside BetterTogether, before Ensemble."""

import dspy
import pytest
from fakes import exact_match, questions

import chains
from plr_dspy import PLReorder

EXAMPLES = questions(60)
pytestmark = pytest.mark.usefixtures("engine")


@pytest.mark.parametrize("name", chains.CHAINS)
def test_the_example_of_each_family(name, monkeypatch):
    monkeypatch.setattr(chains, "CALLS", 60)
    student = dspy.Predict("question -> answer")
    program = chains.CHAINS[name](student, EXAMPLES, exact_match, dspy.settings.lm)
    assert not student.demos
    assert program(question=EXAMPLES[0].question).answer
    reports = [m.reorder_report for m in [program, *getattr(program, "programs", [])] if hasattr(m, "reorder_report")]
    assert reports or name == "better_together", "it returns the best of its steps, which may be the first"
    assert all(report["program_calls"]["total"] <= chains.CALLS for report in reports)


def test_inside_better_together():
    """Which passes arguments on; demos stay what they were."""
    strategy, arguments = "few -> reorder -> reorder", {"reorder": {"seed": 4, "valset": EXAMPLES[:10]}}
    student, reorder = dspy.Predict("question -> answer"), PLReorder(exact_match, max_metric_calls=150)
    student.set_lm(dspy.settings.lm)
    optimizer = dspy.BetterTogether(metric=exact_match, few=dspy.LabeledFewShot(k=5), reorder=reorder)
    compiled = optimizer.compile(
        student, trainset=EXAMPLES[:40], valset=EXAMPLES[40:], strategy=strategy, optimizer_compile_args=arguments
    )
    assert not compiled.flag_compilation_error_occurred
    programs = {candidate["strategy"]: candidate["program"] for candidate in compiled.candidate_programs}
    report = programs[strategy].reorder_report
    assert report["settings"]["seed"] == 4
    assert report["settings"]["num_selection"] <= 10
    before, after = (sorted(demo.question for demo in programs[name].demos) for name in ("few", strategy))
    assert before == after
