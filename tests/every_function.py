"""Calls of every function that compiles or scores programs, for tests that must hold for each of them."""

from plr_dspy import BatchCalibration, PLFewShot, PLReorder, choose_program, evaluate_programs, headroom
from plr_dspy.baselines import PDO, StaticOrder, TopKOrder

QUIET = {"num_threads": 1, "display_progress": False}


def compiled(kind, metric, program, trainset, *, valset=None, programs=None, inputs=None, **options):
    """Return the compiled program, and the optimizer of this kind that compiled it."""
    optimizer = kind(metric, **{**QUIET, **options})
    data = {"trainset": trainset, "valset": valset, "programs": programs, "inputs": inputs}
    return optimizer.compile(program, **data), optimizer


def compiling(kind, **settings):
    def run(program, metric, rows, **options):
        return compiled(kind, metric, program, rows, **settings, **options)

    return run


def compile_with_programs(program, metric, rows, **options):
    return compiled(PLFewShot, metric, program.reset_copy(), rows, programs={"given": program}, **options)


def calibrate(program, metric, rows, /, *, inputs=None, **options):
    """Calibrate a program. This needs no metric."""
    return BatchCalibration(**QUIET, **options).compile(program, trainset=rows, inputs=inputs)


def choose(program, metric, rows, **options):
    programs = {"given": program, "without demos": program.reset_copy()}
    return choose_program(programs, metric, rows, **QUIET, **options)


def evaluate(program, metric, rows, **options):
    return evaluate_programs({"given": program}, metric, rows, **QUIET, **options)


def measure_headroom(program, metric, rows, **options):
    return headroom(program, metric, rows, **QUIET, **options)


RUNS = {
    "PLReorder": compiling(PLReorder),
    "PLReorder, calibrated": compiling(PLReorder, calibrate=True),
    "PLFewShot": compiling(PLFewShot),
    "PLFewShot, programs": compile_with_programs,
    "TopKOrder": compiling(TopKOrder),
    "StaticOrder": compiling(StaticOrder),
    "PDO": compiling(PDO),
    "BatchCalibration": calibrate,
    "headroom": measure_headroom,
    "choose_program": choose,
    "evaluate_programs": evaluate,
}
"""Each function, called with a program, a metric and examples."""
