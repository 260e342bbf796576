"""LocalE, GlobalE, PDO and DEmO on tables of label probabilities, checked against their formulas in numpy."""

import enum
import itertools
from fractions import Fraction
from typing import Literal

import dspy
import numpy as np
import pytest
from dspy import lm15
from fakes import LabelEngine, Program, digest, failure, interrupt, using
from label_engines import classifier, exact

from plr_dspy import F1, BatchCalibration, load_program
from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE
from plr_dspy.labels.reader import NoProbabilities


class Table:
    """A task whose label probabilities are known for every order of its demos and every text."""

    def __init__(self, *, num_labels=2, num_demos=4, num_texts=20):
        rng = np.random.default_rng(num_labels)
        self.labels = [f"label {i}" for i in range(num_labels)]
        self.orders = list(itertools.permutations(range(num_demos)))
        leaning = rng.normal(size=(len(self.orders), 1, num_labels))
        weights = np.exp(leaning + rng.normal(size=(len(self.orders), num_texts, num_labels)))
        gold = rng.permutation(np.arange(num_texts) % num_labels)
        self.p = weights / weights.sum(axis=-1, keepdims=True)  # [R, E, L]
        self.demos = [f"demo {i}" for i in range(len(self.orders[0]))]
        self.texts = [f"text {i}" for i in range(self.p.shape[1])]
        self.gold = [self.labels[i] for i in gold]
        self.engine = LabelEngine(self.labels, self.probabilities)

    def row(self, demos):
        return self.orders.index(tuple(self.demos.index(demo) for demo in demos))

    def probabilities(self, demos, text):
        """Return the label probabilities for a text.

        An unknown text gets the probabilities of the known text that its digest selects.
        """
        known = text in self.texts
        column = self.texts.index(text) if known else int(digest(text) * len(self.texts))
        return self.p[self.row(demos), column]

    def program(self):
        program = classifier(self.answer)
        labels = itertools.cycle(self.labels)
        program.demos = [dspy.Example(text=demo, label=next(labels)) for demo in self.demos]
        return program

    @property
    def answer(self):
        return Literal[tuple(self.labels)]

    @property
    def examples(self):
        return [
            dspy.Example(text=text, label=label).with_inputs("text")
            for text, label in zip(self.texts, self.gold, strict=True)
        ]

    def in_order(self, order):
        return [self.demos[i] for i in order]

    def serving(self):
        return using(self.engine, "fake/labels")

    def chosen(self, optimizer, **data):
        with self.serving():
            compiled = optimizer.compile(self.program(), **data or {"trainset": self.examples})
        return tuple(self.demos.index(demo.text) for demo in compiled.demos)


@pytest.fixture
def table():
    return Table(num_labels=3)


def entropy(p):
    return -np.sum(np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0.0), axis=-1)


class TestWinners:
    """The winner among all orders. The original order wins ties, because it comes first."""

    @pytest.mark.parametrize("setting", ["few-shot", "unlabelled", "prior"])
    def test_pdo(self, table, setting):
        """The default prior is the share of each label in the trainset."""
        optimizer = PDO(exact, setting=setting, num_candidates=len(table.orders))
        train = table.examples[:14]
        chosen = table.chosen(optimizer, trainset=train, valset=table.examples[14:])
        p = table.p[:, :14].mean(axis=1)
        prior = np.full(3, 1 / 3)
        if setting == "few-shot":
            p = np.array([table.probabilities(table.in_order(order), "") for order in table.orders])
        if setting == "prior":
            labels = [example.label for example in train]
            prior = np.array([labels.count(label) / 14 for label in table.labels])
        assert chosen == table.orders[int(np.argmin((p * np.log(p / prior)).sum(1)))]

    @pytest.mark.parametrize("kind", [LocalE, GlobalE])
    @pytest.mark.parametrize("variant", ["lu", "plr"])
    def test_entropies(self, table, kind, variant):
        chosen = table.chosen(kind(exact, variant=variant, num_candidates=len(table.orders)))
        assert table.engine.written.total() == len(table.orders) > len(table.engine.written)
        columns = [int(digest(text) * len(table.texts)) for text in table.engine.written]
        p = table.p[:, columns]
        counts = np.array([np.bincount(rows.argmax(1), minlength=p.shape[2]) for rows in p]) / p.shape[1]
        value = {
            ("LocalE", "lu"): entropy(p).mean(1),
            ("GlobalE", "lu"): entropy(counts),
            ("LocalE", "plr"): -entropy(p).mean(1),
            ("GlobalE", "plr"): -entropy(p).min(1),
        }[kind.__name__, variant]
        best = [order for order, v in zip(table.orders, value, strict=True) if v >= value.max() - 1e-12]
        assert chosen in best


METHODS = [LocalE, GlobalE, PDO]  # Omit DEmO, because it returns another kind of program.


@pytest.mark.parametrize(
    "error",
    [
        None,
        lm15.UnsupportedFeatureError("no", feature="logprobs"),
        lm15.InvalidRequestError("no 'logprobs'"),
    ],
    ids=["silence", "unsupported", "400"],
)
@pytest.mark.parametrize("kind", [*METHODS, DEmO])
def test_few_requests_are_made_if_the_lm_returns_no_log_probabilities(kind, error):
    table = Table()
    optimizer = kind(exact, num_threads=8, num_candidates=6, max_errors=1_000)
    table.engine.logprobs = False
    table.engine.refusal = error
    match = f"{kind.__name__} needs the log-probabilities of tokens.*(returns no|rejects)"
    with pytest.raises(NoProbabilities, match=match):
        table.chosen(optimizer)
    num_written = 6 if issubclass(kind, LocalE) else 0
    assert table.engine.requests == num_written + 1


@pytest.mark.parametrize("kind", METHODS)
class TestEveryMethod:
    def test_makes_no_more_calls_than_estimated_and_reports_no_comparison(self, kind):
        table = Table()
        optimizer = kind(exact, max_metric_calls=100, num_candidates=12)
        with table.serving():
            estimate = optimizer.estimate(table.program(), trainset=table.examples)
        assert table.engine.requests == 0
        assert f"search {estimate.program_calls}" in str(estimate)
        table.chosen(optimizer)
        report = optimizer.report
        assert report.program_calls["total"] == table.engine.requests <= estimate.program_calls <= 100
        assert report.comparison is None
        assert str(report).startswith(f"{kind.__name__}: ")

    def test_a_budget_for_too_few_inputs_is_rejected_before_any_call(self, kind):
        table = Table()
        with pytest.raises(ValueError, match="max_metric_calls must be at least") as error:
            table.chosen(kind(exact, max_metric_calls=19, num_candidates=20))
        assert table.engine.requests == 0
        enough = int(str(error.value).split("at least ")[1].split()[0])
        table.chosen(kind(exact, max_metric_calls=enough, num_candidates=20))
        assert 0 < table.engine.requests <= enough

    def test_unsuitable_programs_are_rejected_before_any_call(self, kind):
        table = Table()
        open_ended = dspy.ChainOfThought("text -> answer")
        open_ended.predict.demos = table.program().demos
        rated = [e.copy(stars=3).with_inputs("text", "stars") for e in table.examples]
        of_stars = dspy.Predict("text, stars: int -> label: Literal['label 0', 'label 1']")
        of_stars.demos = rated[:4]
        for program, match in [
            (open_ended, f"{kind.__name__} needs exactly one output with few possible.*use PLReorder"),
            (
                Program(first=table.program(), second=table.program()),
                "needs a program with exactly one predictor; got 2",
            ),
            (of_stars, r"needs inputs that are strings.*got type int for input 'stars'"),
        ]:
            trainset = rated if program is of_stars else table.examples
            with table.serving(), pytest.raises(ValueError, match=match):
                kind(exact).compile(program, trainset=trainset)
        with (
            table.serving(),
            pytest.raises(ValueError, match=r"needs a metric that scores single examples; got F1\("),
        ):
            kind(F1("label 0")).compile(table.program(), trainset=table.examples)
        assert table.engine.requests == 0

    def test_resumes_after_an_interrupt(self, kind, tmp_path):
        whole = Table()
        expected = kind(exact, num_candidates=10, seed=5)
        order = whole.chosen(expected)

        table = Table()
        table.engine.at = {whole.engine.requests // 2: interrupt}
        with pytest.raises(KeyboardInterrupt):
            table.chosen(kind(exact, num_candidates=10, seed=5, log_dir=tmp_path, num_threads=2))
        resumed = kind(exact, num_candidates=10, seed=5, log_dir=tmp_path, num_threads=2)
        assert table.chosen(resumed) == order
        assert resumed.report.slots == expected.report.slots
        assert table.engine.requests <= whole.engine.requests + 2
        paid = table.engine.requests
        assert table.chosen(kind(exact, num_candidates=10, seed=5, log_dir=tmp_path)) == order
        assert table.engine.requests == paid

    def test_resumes_after_the_model_was_unavailable(self, kind, tmp_path):
        table = Table(num_demos=3)
        fresh = Table(num_demos=3)
        table.engine.at = dict.fromkeys(range(1_000), failure)
        with pytest.raises(Exception, match="down"):
            table.chosen(kind(exact, log_dir=tmp_path, max_errors=7))
        table.engine.at = {}
        resumed = kind(exact, log_dir=tmp_path)
        expected = kind(exact)
        assert table.chosen(resumed) == fresh.chosen(expected)
        assert resumed.report.slots == expected.report.slots

    def test_raises_an_error_if_no_reply_contains_a_label(self, kind):
        table = Table()
        table.engine = LabelEngine(["something", "else"], table.probabilities)
        with pytest.raises(RuntimeError, match="calls returned a label probability"):
            table.chosen(kind(exact, num_candidates=5, num_threads=1, max_errors=1_000))
        assert table.engine.requests > 0

    def test_examples_need_no_labels(self, kind):
        table = Table()
        optimizer = kind(exact, num_candidates=10, seed=5)
        order = table.chosen(optimizer)
        unlabeled = [dspy.Example(text=text).with_inputs("text") for text in table.texts]
        assert table.chosen(kind(exact, num_candidates=10, seed=5), trainset=unlabeled) == order


class TestInputs:
    @pytest.mark.parametrize(
        ("earlier", "kind", "options"),
        [
            (PDO(exact, setting="unlabelled"), PDO, {"setting": "unlabelled", "seed": 1}),
            (PDO(exact, setting="unlabelled"), LocalE, {}),
        ],
    )
    def test_reuses_calls_of_another_seed_or_method_only_for_equal_prompts(
        self, earlier, kind, options, tmp_path
    ):
        """Calls from a run with another seed or method are reused if the prompt and the input are the same."""
        before = Table(num_demos=3)
        resuming = Table(num_demos=3)
        fresh = Table(num_demos=3)

        earlier.log_dir = tmp_path
        before.chosen(earlier)
        resumed = kind(exact, log_dir=tmp_path, **options)
        expected = kind(exact, **options)
        assert resuming.chosen(resumed) == fresh.chosen(expected)
        assert resumed.report.slots == expected.report.slots
        new_prompts = {*fresh.engine.prompts} - {*before.engine.prompts}
        assert new_prompts <= {*resuming.engine.prompts}
        assert resuming.engine.requests <= fresh.engine.requests

    def test_prior_accepts_all_number_types_and_labels_as_text_or_enum_members(self):
        values = enum.Enum("Answer", {"ZERO": "label 0", "ONE": "label 1"})

        def same_text(example, prediction, trace=None):
            return example.label == prediction.label.value

        class Enumerated(Table):
            answer = values

        priors = [
            {"label 0": 1 / 3, "label 1": 2 / 3},
            {values.ZERO: np.float32(1 / 3), values.ONE: Fraction(2, 3)},
            {"label 0": 0.3334, "label 1": 0.6667},  # rounded
        ]
        orders = {
            Enumerated(num_labels=2).chosen(PDO(same_text, setting="prior", prior=prior, num_candidates=6))
            for prior in priors
        }
        assert len(orders) == 1

    def test_a_label_without_examples_requires_a_prior(self):
        table = Table()
        optimizer = PDO(exact, setting="prior", num_candidates=4)
        examples = [example for example in table.examples if example.label == "label 0"]
        with pytest.raises(ValueError, match=r"an example of each label.*got no example of.*pass prior"):
            table.chosen(optimizer, trainset=examples)
        assert table.engine.requests == 0
        demos = [dspy.Example(text=demo, label="label 1").with_inputs("text") for demo in table.demos[:2]]
        assert table.chosen(optimizer, trainset=[*examples, *demos])

    @pytest.mark.parametrize(
        "arguments",
        [{"setting": "zero-shot"}, {"prior": {"label 0": 1}}, {"setting": "prior", "prior": [0.5, 0.5]}],
    )
    def test_invalid_settings_are_rejected(self, arguments):
        with pytest.raises(ValueError, match=r"setting|prior"):
            PDO(exact, **arguments)


def test_demo_orders_demos_for_each_input_as_published(table, tmp_path):
    optimizer = DEmO(exact, num_candidates=len(table.orders), num_kept=4)
    with table.serving():
        program = optimizer.compile(table.program(), trainset=table.examples)
        assert table.engine.requests == 3 * len(table.orders) == optimizer.report.program_calls["total"]
        with pytest.raises(ValueError, match="in a PerInputOrder, which cannot be calibrated"):
            BatchCalibration().compile(program, trainset=table.examples)
        program.save(tmp_path / "program.json")
        loaded = load_program(table.program(), tmp_path / "program.json")
        answers = [loaded(text=text).label for text in table.texts]
        assert table.engine.requests == 3 * len(table.orders) + 4 * len(table.texts)
        assert answers == [program(text=text).label for text in table.texts]

    columns = [int(digest(text) * len(table.texts)) for text in ("[N/A]", "", "[MASK]")]
    p0 = table.p[:, columns].mean(axis=1)
    kept = np.argsort(-entropy(p0), kind="stable")[:4]
    for text, answer in zip(table.texts, answers, strict=True):
        p = table.p[kept, table.texts.index(text)]
        labels = p.argmax(axis=1)
        gains = p[np.arange(4), labels] - p0[kept, labels]
        assert answer == table.labels[labels[gains.argmax()]]
