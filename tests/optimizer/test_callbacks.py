"""Events for DSPy's callbacks: the start and end of `compile`, and the end of each round."""

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from fakes import engine_for, exact_match, questions, student, using

from plr_dspy import PLFewShot, PLReorder, choose_program
from plr_dspy.baselines import TopKOrder

EXAMPLES = questions(60)


class Recording(BaseCallback):
    """A callback that records the events of compiles, with their call IDs."""

    def __init__(self, error=None):
        self.error = error
        self.events = []

    def on_compile_start(self, call_id, instance, inputs):
        self.events.append((call_id, "start", instance))

    def on_round_end(self, call_id, outputs, exception=None):
        self.events.append((call_id, "round", outputs))
        if self.error is not None:
            raise self.error

    def on_compile_end(self, call_id, outputs, exception=None):
        self.events.append((call_id, "end", exception))

    @property
    def rounds(self):
        return [outputs for _, event, outputs in self.events if event == "round"]


def compiled(callback, optimizer, program=None):
    with using(engine_for(EXAMPLES)), dspy.context(callbacks=[callback, BaseCallback()]):
        return optimizer.compile(program or student(), trainset=EXAMPLES)


@pytest.mark.parametrize("kind", [PLReorder, PLFewShot, TopKOrder])
def test_each_round_of_the_report_is_an_event_within_the_compile(kind):
    callback = Recording()
    optimizer = kind(exact_match, max_metric_calls=200)
    compiled(callback, optimizer)
    call_ids, events, values = zip(*callback.events, strict=True)
    assert len(set(call_ids)) == 1
    rounds = ["round" for _ in optimizer.report.history]
    assert events == ("start", *rounds, "end")
    assert values[0] is optimizer
    assert callback.rounds == optimizer.report.history != []


def test_the_events_are_the_same_at_any_number_of_threads_and_after_a_resume(tmp_path):
    callbacks = [Recording() for _ in range(3)]
    for callback, num_threads in zip(callbacks, (1, 8, 8), strict=True):
        folder = tmp_path / str(num_threads)
        optimizer = PLReorder(exact_match, max_metric_calls=200, num_threads=num_threads, log_dir=folder)
        compiled(callback, optimizer)
    assert optimizer.report.program_calls["resumed"] == optimizer.report.program_calls["total"]
    assert callbacks[0].rounds == callbacks[1].rounds == callbacks[2].rounds != []


def test_an_error_in_a_callback_is_logged_and_does_not_end_the_compile(caplog):
    callback = Recording(ValueError("no connection"))
    optimizer = PLReorder(exact_match, max_metric_calls=200)
    compiled(callback, optimizer)
    assert callback.rounds == optimizer.report.history
    assert caplog.text.count("raised ValueError: no connection") == len(callback.rounds)


def test_an_interrupt_in_a_callback_ends_the_compile():
    callback = Recording(KeyboardInterrupt())
    optimizer = PLReorder(exact_match, max_metric_calls=200)
    with pytest.raises(KeyboardInterrupt):
        compiled(callback, optimizer)
    assert len(optimizer.report.history) == 1


def test_callbacks_set_on_the_optimizer_are_called(tmp_path):
    callback = Recording()
    optimizer = PLReorder(exact_match, max_metric_calls=200)
    optimizer.callbacks = [callback]
    with using(engine_for(EXAMPLES)):
        optimizer.compile(student(), trainset=EXAMPLES)
    assert callback.rounds == optimizer.report.history != []


def test_each_round_of_a_race_is_an_event():
    callback = Recording()
    with using(engine_for(EXAMPLES)), dspy.context(callbacks=[callback]):
        choice = choose_program({"a": student(1), "b": student(6)}, exact_match, EXAMPLES)
    assert callback.rounds == choice.report.history != []
