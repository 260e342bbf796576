"""Calls of `choose_program` with three programs from `label_world`."""

from fakes import using
from label_world import DEMOS, EXAMPLES, exact, student

from plr_dspy import choose_program

LEANING = [demo for demo in DEMOS if demo.label == "negative"]


def programs():
    """Return three programs, of which "even" is the best."""
    return {"leaning": student(demos=LEANING), "even": student(), "no demos": student(demos=[])}


def chosen(engine, candidates=None, metric=exact, trainset=EXAMPLES, **options):
    """Choose one of `candidates`, or by default one of `programs()`."""
    options = {"num_threads": 1, "display_progress": False, **options}
    with using(engine, "fake/x"):
        return choose_program(programs() if candidates is None else candidates, metric, trainset, **options)
