"""Choosing among whole programs: the allowed programs, the returned program, and the report."""

import threading
from collections import Counter

import dspy
import pytest
from choices import LEANING, chosen, programs
from fakes import Program, using
from label_engines import classifier
from label_world import EXAMPLES, Engine, exact, student

from plr_dspy import F1, BatchCalibration, PLFewShot, Report, completion_lm, evaluate_programs, load_program
from plr_dspy.programs.rivals import Rival


class TestChoice:
    @pytest.mark.parametrize("metric", [exact, F1("positive"), F1()])
    def test_the_best_program_is_returned_unchanged_with_a_report(self, metric, tmp_path):
        candidates = programs()
        choice = chosen(Engine(), candidates, metric)
        report = choice.report
        assert choice.name == report.returned.name != "leaning"
        assert report.original.name == "leaning"
        assert choice.program is not candidates[choice.name]
        assert choice.program.dump_state() == programs()[choice.name].dump_state()
        assert all(
            program.dump_state() == programs()[name].dump_state() for name, program in candidates.items()
        )
        assert choice.program.reorder_report == report.to_dict()
        assert not report.original_stays
        assert {way.name for way in report.programs} == set(candidates)
        assert f"returned program '{choice.name}'" in str(report)
        assert str(choice) == str(report)
        assert f"load_program and a program built like '{choice.name}'" in str(report)
        compared = {
            "leaning": report.comparison.expected_original,
            choice.name: report.comparison.expected_chosen,
        }
        for way in report.programs:
            if way.name in compared:
                assert (way.score, *way.interval) == pytest.approx(compared[way.name], abs=1e-5)
        report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == report
        choice.program.save(tmp_path / "program.json")

    def test_the_baseline_is_kept_unless_another_program_is_probably_better(self):
        candidates = {"even": student(), "leaning": student(demos=LEANING)}
        choice = chosen(Engine(), candidates)
        assert choice.name == "even"
        assert choice.report.original_stays
        assert "no other program is expected to do better" in str(choice.report)

    def test_programs_may_differ_in_modules_fields_and_models(self):
        """Each program is called unchanged."""
        own = Engine()
        other = classifier()
        other.set_lm(own.lm("fake/own"))
        wrapped = Program(
            lambda self, text: self.inner(text=text), inner=dspy.ChainOfThought(classifier().signature)
        )
        choice = chosen(Engine(), {"bare": student(demos=[]), "own": other, "wrapped": wrapped})
        assert len(own.prompts) >= 10
        assert len(choice.report.programs) == 3

    @pytest.mark.parametrize("order", [("reasoned", "direct"), ("direct", "reasoned")])
    def test_outputs_that_the_metric_ignores_may_differ(self, order):
        kinds = {"reasoned": dspy.ChainOfThought, "direct": dspy.Predict}
        candidates = {name: classifier(module=kinds[name]) for name in order}
        assert {way.name for way in chosen(Engine(), candidates).report.programs} == set(kinds)

    @pytest.mark.parametrize("retrieves", [False, True])
    def test_outputs_that_the_metric_needs_for_any_of_the_first_examples_are_required(self, retrieves):
        def explained_if_positive(example, prediction, trace=None):
            return exact(example, prediction) and (
                example.label == "negative" or prediction.reasoning != "?"
            )

        engine = Engine()
        direct = student(demos=[])
        if retrieves:
            optimizer = PLFewShot(exact, demos="retrieved", max_metric_calls=0, display_progress=False)
            with using(engine, "fake/x"):
                direct = optimizer.compile(direct, trainset=EXAMPLES)
        candidates = {"reasoned": classifier(module=dspy.ChainOfThought), "direct": direct}
        with pytest.raises(
            ValueError, match=r"'direct'.* must have the outputs of 'reasoned'.*'reasoning'"
        ):
            chosen(engine, candidates, explained_if_positive)
        assert not engine.prompts

    def test_identical_programs_are_scored_once(self, caplog):
        engine = Engine()
        choice = chosen(engine, [student(), student(demos=LEANING), student()])
        assert "'program 3' and 'program 1' are the same program" in caplog.text
        assert {way.name for way in choice.report.programs} == {"program 1", "program 2"}
        assert max(Counter(engine.prompts).values()) == 1
        engine = Engine()
        same = chosen(engine, [student(), student()])
        assert same.name == "program 1"
        assert same.report.stopped == "all programs are identical"
        assert not engine.prompts

    def test_private_values_distinguish_programs(self):
        class Styled(dspy.Module):
            def __init__(self, style, key="k1"):
                super().__init__()
                self._style = style
                self._api_key = key
                self.inner = classifier()

        assert Rival("a", Styled("plain")).digest == Rival("b", Styled("plain", key="k2")).digest
        assert Rival("a", Styled("plain")).digest != Rival("b", Styled(["plain", 2])).digest
        assert Rival("a", Styled(Styled("plain"))).digest != Rival("b", Styled(Styled("long"))).digest
        assert (
            Rival("a", Styled([dspy.Example(a=1)])).digest != Rival("b", Styled([dspy.Example(a=2)])).digest
        )

    @pytest.mark.parametrize("make", [dspy.LM, completion_lm])
    def test_addresses_of_models_distinguish_programs_except_that_of_the_default_model(self, make):
        def digest_at(address, default="http://default/v1"):
            program = classifier()
            program.set_lm(address and make("hosted_vllm/local", api_base=address))
            with dspy.context(lm=make("hosted_vllm/local", api_base=default)):
                return Rival("a", program).digest

        assert digest_at("http://a:8000/v1") != digest_at("http://b:8000/v1")
        assert digest_at("http://a:8000/v1") != digest_at(None)
        assert digest_at("http://me:secret@a:8000/v1") == digest_at("http://a:8000/v1?key=1")
        assert digest_at(None, "http://moved/v1") == digest_at(None)

    def test_chat_and_completion_models_of_one_name_distinguish_programs(self):
        chat, plain = classifier(), classifier()
        chat.set_lm(dspy.LM("hosted_vllm/local", max_tokens=16, temperature=0.0))
        plain.set_lm(completion_lm("hosted_vllm/local", api_base="http://a/v1"))
        with dspy.context(lm=plain.lm):
            assert Rival("a", chat).digest != Rival("b", plain).digest

    def test_retrieving_and_calibrated_programs_can_compete(self, tmp_path):
        """An example is never retrieved as a demo for itself."""
        engine = Engine()
        with using(engine, "fake/x"):
            finding = PLFewShot(exact, demos="retrieved", max_metric_calls=0, display_progress=False)
            finding.compile(student(demos=[]), trainset=EXAMPLES).save(tmp_path / "finds.json")
            finds = load_program(student(demos=[]), tmp_path / "finds.json")
            calibrated = BatchCalibration(display_progress=False).compile(student(), trainset=EXAMPLES)
        choice = chosen(engine, {"bare": student(demos=[]), "finds": finds, "calibrated": calibrated})
        assert len(choice.report.programs) == 3
        assert "\n  finds, 8 demos " in str(choice.report)
        for texts in engine.prompts:
            demos, text = Engine.shown(texts)
            assert text not in demos

    def test_an_example_is_never_its_own_demo_in_a_plain_thread(self, caplog):
        def in_thread(self, text):
            answers = []
            lm = dspy.settings.lm

            def answer():
                with dspy.context(lm=lm):
                    answers.append(self.inner(text=text))

            thread = threading.Thread(target=answer)
            thread.start()
            thread.join()
            return answers[0]

        engine = Engine()
        with using(engine, "fake/x"):
            retrieved = PLFewShot(exact, demos="retrieved", max_metric_calls=0, display_progress=False)
            finds = retrieved.compile(student(demos=[]), trainset=EXAMPLES)
            threaded = {"finds": Program(in_thread, inner=finds)}
            evaluate_programs({"directly": finds, **threaded}, exact, EXAMPLES, display_progress=False)
        assert "as demos" not in caplog.text
        assert any(Engine.shown(texts)[0] for texts in engine.prompts)
        chosen(engine, {"bare": student(demos=[]), **threaded})
        for texts in engine.prompts:
            demos, text = Engine.shown(texts)
            assert text not in demos
        chosen_program = chosen(engine, {"finds": finds, "bare": student(demos=[])}).program
        assert not chosen_program.retrieval.guarded

    def test_demos_of_any_program_are_not_scored(self):
        engine = Engine()
        shown = EXAMPLES[:5]
        hidden = Program(lambda self, text: self.inner(text=text), inner=student(demos=shown))
        hidden.inner._compiled = True
        choice = chosen(
            engine, {"even": student(), "copies": hidden}, valset=EXAMPLES[40:], trainset=EXAMPLES[:40]
        )
        asked = {Engine.shown(texts)[1] for texts in engine.prompts}
        assert not asked & {example.text for example in shown}
        assert choice.report.settings["num_train"] == len(EXAMPLES) - 5


def test_details_of_a_race_do_not_mention_a_final_comparison():
    details = chosen(Engine()).report.details()
    assert "final comparison" not in details
    assert "mean scores, on " in details
