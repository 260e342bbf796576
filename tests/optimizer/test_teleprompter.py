"""PLReorder: its results, custom update rules, and special cases."""

import dataclasses
import itertools
from contextlib import nullcontext

import dspy
import pydantic
import pytest
import torch
from fakes import Program, digest, exact_match, questions, student

from plr_dspy import MaximumLikelihood, PlackettLuce, PLReorder, Report
from plr_dspy.plackett_luce.updates import UpdateRule

EXAMPLES = questions(120)


class TestCompile:
    def test_finds_a_better_order(self, engine):
        program = student()
        reorder = PLReorder(exact_match, max_metric_calls=800)
        compiled = reorder.compile(program, trainset=EXAMPLES[:40], valset=EXAMPLES[40:90])
        comparison = reorder.report.comparison
        assert comparison.gain > 0.2
        assert comparison.interval[0] > 0
        held_out = dspy.Evaluate(devset=EXAMPLES[90:], metric=exact_match, display_progress=False)
        assert held_out(compiled).score > held_out(program).score

    def test_users_can_pass_their_own_update_rule(self, engine, tmp_path):
        @pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config={"arbitrary_types_allowed": True})
        class Prior(UpdateRule):
            name = "prior"
            pull: torch.Tensor

            def update(self, distribution, elites, weights=None):
                fitted = MaximumLikelihood().update(distribution, elites, weights)
                return PlackettLuce(fitted.logits * self.pull)

        reorder = PLReorder(
            exact_match,
            max_metric_calls=240,
            update=Prior(pull=torch.tensor(0.5), weighted=True),
            log_dir=tmp_path,
        )
        reorder.compile(student(), trainset=EXAMPLES)
        settings = Report.load(tmp_path / "report.json").settings["update"]
        # The settings contain a digest in place of an object.
        assert settings.pop("pull").startswith("#")
        assert settings == {"name": "prior", "smoothing": 0.7, "clip": 20.0, "weighted": True}

    def test_an_update_rule_of_the_wrong_kind_of_dataclass_is_rejected(self):
        @dataclasses.dataclass(frozen=True, kw_only=True)
        class Prior(UpdateRule):
            pull: float = 0.5

            def update(self, distribution, elites, weights=None):
                return distribution

        with pytest.raises(TypeError, match=r"decorate Prior with pydantic\.dataclasses\.dataclass"):
            PLReorder(exact_match, update=Prior())

    @pytest.mark.parametrize(
        ("demos", "options"), [([EXAMPLES[0]] * 3, {}), (EXAMPLES[:1], {"max_metric_calls": 1})]
    )
    def test_a_single_possible_prompt_needs_no_calls(self, engine, caplog, demos, options):
        program = student(demos)
        reorder = PLReorder(exact_match, **options)
        assert reorder.estimate(program, trainset=EXAMPLES).program_calls == 0
        compiled = reorder.compile(program, trainset=EXAMPLES)
        assert engine.num_calls == 0
        assert compiled.demos == program.demos
        assert reorder.report.comparison is None
        assert "nothing to compare" in caplog.text
        assert "same prompt" in reorder.report.stopped

    def test_an_interrupt_in_the_first_round_keeps_the_original_order(self, engine):
        def backwards(self, question):
            """Answer without an LM, more accurately the later the first demo is in `EXAMPLES`."""
            first = EXAMPLES.index(self.predict.demos[0])
            return dspy.Prediction(right=digest(question) < 0.1 + 0.12 * first)

        count = itertools.count()

        def metric(example, prediction):
            if next(count) == 400:
                raise KeyboardInterrupt
            return prediction.right

        reorder = PLReorder(metric, auto="heavy", num_threads=1)
        with pytest.raises(KeyboardInterrupt):
            reorder.compile(Program(backwards, predict=student(8)), trainset=EXAMPLES)
        assert not reorder.report.history
        assert [EXAMPLES.index(demo) for demo in reorder.best_program.predict.demos] == list(range(8))

    def test_the_callers_inference_mode_and_default_device_change_nothing(self, engine):
        reorder = PLReorder(exact_match, max_metric_calls=100)
        results = []
        for mode in (nullcontext, torch.inference_mode, lambda: torch.device("meta")):
            with mode():
                reorder.compile(student(), trainset=EXAMPLES)
            results.append(reorder.report.candidates)
        assert results[0] == results[1] == results[2]
