"""Expected scores in PLFewShot's reports. All parts of a report show the same score for a candidate."""

import dspy
import numpy as np
import pytest
from fakes import LabelEngine, digest, student, using
from label_engines import exact
from label_world import labeled

from plr_dspy import PLFewShot, PLReorder

LABELS = ["yes", "no"]
CALLS = 90


class MumblingEngine(LabelEngine):
    """An engine whose accuracy depends on the demos.

    Without demos, most replies cannot be parsed.

    Args:
        salt: Seed of all random numbers.
        logprobs: Whether replies have log-probabilities.
    """

    def __init__(self, salt, *, logprobs=True):
        super().__init__(LABELS, self.chances, logprobs=logprobs)
        self.salt = salt
        self.mumbles = lambda demos, text: not demos and digest(f"{text}{salt}") < 0.9

    def chances(self, demos, text):
        """Return the label probabilities, given the demos and the text."""
        worth = sum(digest(f"{self.salt}{demo}") - 0.3 for demo in demos)
        hard = digest(f"{self.salt}{text}") + 0.2 * digest("".join([*demos, text]))
        right = 1 / (1 + 2.0 ** (4 * hard - 4 * worth - 2))
        if label_of(text) == "yes":
            return right, 1 - right
        return 1 - right, right

    def true_score(self, demos, texts):
        shown = [demo["text"] for demo in demos]
        num_right = 0
        for text in texts:
            chance = self.chances(shown, text)[LABELS.index(label_of(text))]
            num_right += not self.mumbles(shown, text) and chance > 0.5
        return num_right / len(texts)


def label_of(text):
    return LABELS[digest(text) < 0.5]


def compiled(engine, seed, **options):
    texts = [f"text {seed}, {i}" for i in range(60)]
    trainset = [labeled(text, label_of(text)) for text in texts]
    options |= {"max_metric_calls": CALLS, "max_demos": 4, "candidates": "labeled", "seed": seed}
    chooser = PLFewShot(exact, display_progress=False, **options)
    with using(engine, "openai/fake"):
        program = chooser.compile(dspy.Predict("text -> label: Literal['yes', 'no']"), trainset=trainset)
    return chooser, len(program.predictors()[0].demos)


def by_number(report):
    return {best.num_demos: best for best in report.best_by_number}


@pytest.fixture(scope="module", params=["log-probabilities", "scores", "calibrate"])
def compiles(request):
    cases = []
    for seed in range(3):
        engine = MumblingEngine(seed, logprobs=request.param != "scores")
        cases.append((engine, *compiled(engine, seed, calibrate=request.param == "calibrate")))
    return cases


class TestOneEstimate:
    def test_scores_differ_by_the_expected_gain(self, compiles):
        for _, chooser, chosen in compiles:
            report = chooser.report
            best = by_number(chooser.report)
            gain = report.comparison.expected_gain
            assert chosen > 0
            before = report.comparison.expected_original[0]
            assert best[chosen].score - before == pytest.approx(gain, abs=2e-6)
            assert 0 <= before <= best[0].score + 1e-6 <= best[chosen].score + 2e-6 <= 1 + 2e-6
            assert report.candidates[0].expected_gain == 0
            effect = report.calibration
            if effect is not None:
                assert effect.original == pytest.approx(before, abs=2e-6)

    def test_the_students_score_depends_mostly_on_its_own_calls(self, compiles):
        for engine, chooser, _ in compiles:
            best = by_number(chooser.report)[0]
            without = [prompt for prompt in engine.prompts if len(prompt) == 1]
            assert best.num_examples == len(without)
            observed = 1 - np.mean([engine.mumbles(*engine.shown(prompt)) for prompt in without])
            assert best.score <= observed + 0.12

    @pytest.mark.parametrize("compiles", ["log-probabilities", "scores"], indirect=True)
    def test_intervals_contain_the_scores_on_other_examples(self, compiles):
        """`true_score` ignores calibration, so calibrated programs are left out."""
        others = [f"other {i}" for i in range(1_000)]
        held = []
        for engine, chooser, _ in compiles:
            for best in chooser.report.best_by_number:
                low, high = best.interval
                true = engine.true_score(chooser.program_with(best.num_demos).demos, others)
                held.append(low <= true <= high)
        assert len(held) > 11
        assert sum(held) >= 0.9 * len(held)


def compared(chance, kind=PLReorder, *, seed, num_demos, logprobs=True, **options):
    """Return the comparison of a compile in which `chance` maps the shown demos to the accuracy."""

    def chances(shown, text):
        right = digest(f"{seed} {shown} {text}") < chance(shown)
        return (0.8, 0.2) if right == (label_of(text) == "yes") else (0.2, 0.8)

    demos = [dspy.Example(text=f"demo {i}", label=LABELS[i % 2]) for i in range(num_demos)]
    texts = [f"text {i}" for i in range(60)]
    trainset = [labeled(text, label_of(text)) for text in texts]
    optimizer = kind(exact, num_threads=1, display_progress=False, **options)
    with using(LabelEngine(LABELS, chances, logprobs=logprobs), "openai/fake"):
        optimizer.compile(student(demos, "text -> label: Literal['yes', 'no']"), trainset=trainset)
    return optimizer.report.comparison


@pytest.mark.parametrize("logprobs", [True, False])
def test_the_score_of_an_unusual_student_is_estimated_from_its_own_calls(logprobs):
    """The student's order scores 0.9, and all other orders score 0.5."""
    inside = 0
    own = [f"demo {i}" for i in range(5)]
    options = {"num_demos": 5, "logprobs": logprobs, "max_metric_calls": 100}
    for seed in range(4):
        comparison = compared(lambda shown: 0.9 if shown == own else 0.5, seed=seed, **options)
        _, low, high = comparison.expected_original
        inside += low <= 0.9 <= high
    assert inside == 4


def test_a_few_errors_near_the_highest_score_are_no_evidence():
    """With any demos, 95% of answers are correct, so few reports may claim that one program is better."""
    options = {"num_demos": 8, "candidates": "labeled", "max_metric_calls": 400, "signal": "score"}
    probabilities = [
        compared(lambda shown: 0.95, PLFewShot, seed=seed, **options).probability for seed in range(5, 15)
    ]
    assert max(probabilities) > 0.0
    assert sum(probability >= 0.9 for probability in probabilities) <= 1
