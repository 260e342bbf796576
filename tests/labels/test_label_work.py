"""Program calls that bring log-probabilities of labels along: what cells hold, and what they cost."""

import math

import dspy
import pytest
from label_engines import Around
from label_world import DEMOS, LABELS, Engine, Twice, exact, probabilities, student
from label_world import EXAMPLES as ALL

from plr_dspy.labels.outputs import label_output
from plr_dspy.labels.work import LabelWork, label_scores
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.scorer import CellScorer

EXAMPLES = ALL[:12]
NAMES = [f"example {i}" for i in range(len(EXAMPLES))]
ORDERINGS = [((0, 1, 2, 3, 4),), ((4, 3, 2, 1, 0),)]


def work_of(program, metric=exact):
    output = label_output(program)
    return LabelWork(metric, EXAMPLES, output=output, scores=label_scores(exact, EXAMPLES, output))


def paid(engine, *, program=None, work=None, ledger=None, adapter=None, orderings=ORDERINGS, **options):
    """All cells of some orderings."""
    program = program or student()
    work = work or work_of(program)
    ledger = ledger or Ledger()
    ledger.number_examples(NAMES)
    adapter = adapter or dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False), adapter=adapter):
        evaluator = ProgramEvaluator(
            ProgramSlots(program),
            work,
            names=NAMES,
            ledger=ledger,
            **{"num_threads": 4, **options},
        )
        scorer = CellScorer(evaluator)
        scorer.table(orderings, range(len(EXAMPLES)))
        return [scorer.cell(ordering, i) for ordering in orderings for i in range(len(EXAMPLES))]


class TestCells:
    def test_hold_what_the_call_told(self):
        cells = paid(Engine())
        for ordering, row in zip(ORDERINGS, [cells[:12], cells[12:]], strict=True):
            for example, cell in zip(EXAMPLES, row, strict=True):
                p = probabilities([DEMOS[j].text for j in ordering[0]], example.text)
                assert cell.label_logprobs == pytest.approx([math.log(x) for x in p], abs=1e-4)
                assert cell.label_logprobs == tuple(round(value, 4) for value in cell.label_logprobs)
                assert cell.score == (LABELS[p[1] > p[0]] == example.label)

    def test_cost_no_further_call_and_change_no_score(self):
        with_them, without = Engine(), Engine()
        cells = paid(with_them)
        plain = paid(without, work=MetricWork(exact, EXAMPLES))
        assert len(with_them.asked) == len(without.asked) == len(cells) == 24
        assert [cell.score for cell in cells] == [cell.score for cell in plain]
        assert all(with_them.asked)
        assert not any(without.asked)

    def test_the_label_is_what_the_program_answered_and_not_what_the_metric_asks_or_makes_of_it(self):
        engine, judge = Engine(), student()

        def metric(example, prediction):
            right = judge(text=example.text) is not None and exact(example, prediction)
            prediction.label = "changed"
            return right

        cells = paid(engine, work=work_of(student(), metric))
        assert all(cell.label_logprobs for cell in cells)
        assert engine.asked.count(True) == engine.asked.count(False) == len(cells)


class TestCellsWithout:
    def none(self, **options):
        assert [cell.label_logprobs for cell in paid(Engine(), **options)] == [None] * 24

    def test_where_it_is_switched_off(self):
        work, engine = work_of(student()), Engine()
        work.requests.wanted = False
        assert [cell.label_logprobs for cell in paid(engine, work=work)] == [None] * 24
        assert not any(engine.asked)
        assert work.reason == ""

    @pytest.mark.parametrize(
        "answer",
        [
            lambda label: dspy.Prediction(label=LABELS[LABELS[0] == label]),
            lambda label: label,
            lambda label: dspy.Prediction(verdict=label),
        ],
        ids=["another label", "no prediction", "another field"],
    )
    def test_where_the_program_answers_something_else(self, answer):
        program = Around(lambda classify, text: answer(classify(text=text).label))
        program.predict.demos = list(DEMOS)
        self.none(program=program, work=work_of(program, lambda example, prediction: True))

    def test_where_the_metric_says_something_else_than_it_said(self):
        self.none(work=work_of(student(), lambda example, prediction: 0.5))

    def test_where_several_calls_could_have_been_the_answer(self):
        self.none(program=Twice())


class TestLedger:
    @pytest.mark.parametrize("values", ["[]", "1", "[null]", '["-1"]', "[true]", "[1e999]", "{}"])
    def test_what_cannot_be_read_is_told(self, tmp_path, values):
        path = tmp_path / "cells.jsonl"
        path.write_text(f'{{"cell":["x",0],"score":1.0,"label_logprobs":{values}}}\n')
        with pytest.raises(ValueError, match="line 1 of"):
            Ledger(path)
