"""Looking at a report: what its pictures draw, and the page that holds them."""

import contextlib
import dataclasses
import html.parser
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from typing import Literal

import dspy
import matplotlib.image
import numpy as np
import pytest
import torch
from fakes import LabelEngine, digest, exact_match, fake_lm, questions
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy import PlackettLuce, PLReorder, Report
from plr_dspy.baselines import PDO, StaticOrder
from plr_dspy.cli import commands as cli
from plr_dspy.orderings import marginals as positions
from plr_dspy.orderings.marginals import most_probable_orderings, position_probabilities
from plr_dspy.orderings.plackett_luce import draw_orderings, plackett_luce_mixture
from plr_dspy.statistics.comparisons import agreement

PNG = b"\x89PNG\r\n\x1a\n"
EXAMPLES = questions(60)
NASTY = '<script>alert(1)</script> & "q" costs $5 and $6 \' <img src="http://evil.example/x.png">'
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def demos(count):
    return [
        dspy.Example(
            question=f"{NASTY if i % 2 else ''} text {i}", answer=f"answer {i % 3}", hint=None, augmented=True
        )
        for i in range(count)
    ]


def student(count=6):
    program = dspy.Predict("question -> answer")
    program.demos = demos(count)
    return program


class Chain(dspy.Module):
    def __init__(self):
        super().__init__()
        self.first = student(4)
        self.second = dspy.Predict("question, hint -> answer")
        self.second.demos = [dspy.Example(question=f"q {i}", hint="h", answer=f"a {i}") for i in range(3)]

    def forward(self, question):
        return self.second(question=question, hint=self.first(question=question).answer)


def compiled(program=None, *, lm=None, metric=exact_match, optimizer=PLReorder, examples=EXAMPLES, **options):
    """The report of a real compile, also where it ends in an exception."""
    options = {"num_threads": 1, "display_progress": False, **options}
    if optimizer is PLReorder:
        options = {"max_metric_calls": 200, **options}
    reorder = optimizer(metric, **options)
    with dspy.context(lm=lm or fake_lm(EXAMPLES)[0]), contextlib.suppress(KeyboardInterrupt):
        reorder.compile(program or student(), trainset=examples)
    return reorder.report


@pytest.fixture(scope="module")
def report():
    found = compiled(max_metric_calls=600)
    assert found.comparison.gain > 0
    return found


@pytest.fixture(scope="module")
def chain():
    return compiled(Chain(), update="mixture")


def interrupted_after(calls):
    made = itertools.count()

    def metric(example, prediction, trace=None):
        if next(made) >= calls:
            raise KeyboardInterrupt
        return exact_match(example, prediction)

    return metric


class TwoLabels(dspy.Signature):
    question: str = dspy.InputField()
    label: Literal["yes", "no"] = dspy.OutputField()


def by_labels():
    program = dspy.Predict(TwoLabels)
    examples = [dspy.Example(question=f"q {i}", label="yes" if i % 2 else "no") for i in range(20)]
    program.demos = examples[:4]

    def probabilities(shown, question):
        share = 0.1 + 0.8 * digest(" ".join(shown))
        return [share, 1 - share]

    lm = dspy.LM("openai/fake", engine=LabelEngine(["yes", "no"], probabilities), cache=False)
    trainset = [example.with_inputs("question") for example in examples[4:]]
    same = lambda example, prediction, trace=None: example.label == prediction.label  # noqa: E731
    return compiled(program, lm=lm, metric=same, optimizer=PDO, examples=trainset, num_candidates=6)


def without_demos():
    """The report of a compile that returned a student without demos, as it came."""
    found = compiled()
    return dataclasses.replace(found, slots=[dataclasses.replace(found.slots[0], ordering=[], original=[])])


REPORTS = {
    "mle": lambda: compiled(),
    "two demos": lambda: compiled(student(2)),
    "64 demos": lambda: compiled(student(64)),
    "several predictors, mixtures": lambda: compiled(Chain(), update="mixture"),
    "paper": lambda: compiled(auto="paper", num_iterations=2, max_metric_calls=None, update="ema"),
    "nothing to compare": lambda: compiled(student(1)),
    "interrupted in a round": lambda: compiled(metric=interrupted_after(20)),
    "interrupted later": lambda: compiled(metric=interrupted_after(150)),
    "the order given": lambda: compiled(optimizer=StaticOrder),
    "by labels": by_labels,
    "better without demos": without_demos,
}


def mixtures(most=5):
    return st.integers(2, most).flatmap(
        lambda n: st.lists(st.lists(st.floats(-4, 4), min_size=n, max_size=n), min_size=1, max_size=3).map(
            lambda rows: torch.tensor(rows, dtype=torch.float64)
        )
    )


def distribution(logits):
    if len(logits) == 1:
        return PlackettLuce(logits[0])
    weights = torch.arange(1.0, len(logits) + 1, dtype=torch.float64)
    return plackett_luce_mixture(weights / weights.sum(), logits)


def orderings_of(n):
    return torch.tensor(list(itertools.permutations(range(n))))


class TestPositionProbabilities:
    @given(mixtures())
    @settings(deadline=None, max_examples=60)
    def test_are_sums_over_all_orderings(self, logits):
        found = position_probabilities(distribution(logits))
        n = logits.shape[1]
        expected = torch.zeros(n, n, dtype=torch.float64)
        for ordering in orderings_of(n):
            expected[ordering, torch.arange(n)] += distribution(logits).log_prob(ordering).exp()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)

    @given(mixtures(most=20))
    @settings(deadline=None, max_examples=30)
    def test_rows_and_columns_sum_to_one(self, logits):
        found = position_probabilities(distribution(logits))
        assert float(found.min()) >= 0
        ones = torch.ones(logits.shape[1], dtype=torch.float64)
        torch.testing.assert_close(found.sum(0), ones, atol=1e-6, rtol=0)
        torch.testing.assert_close(found.sum(1), ones, atol=1e-6, rtol=0)

    @pytest.mark.parametrize("rows", [1, 3])
    def test_draws_of_large_ones_agree_with_the_exact_ones(self, rows, monkeypatch):
        logits = torch.randn(rows, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        exact = position_probabilities(distribution(logits))
        monkeypatch.setattr(positions, "MOST_EXACT", 8)
        drawn = position_probabilities(distribution(logits))
        assert not torch.equal(drawn, exact)
        assert float((drawn - exact).abs().max()) < 5 * 0.0036
        assert torch.equal(position_probabilities(distribution(logits)), drawn), "the seed is fixed"
        torch.testing.assert_close(drawn.sum(0), torch.ones(9, dtype=torch.float64))
        torch.testing.assert_close(drawn.sum(1), torch.ones(9, dtype=torch.float64))


class TestMostProbableOrderings:
    @given(mixtures(), st.integers(1, 12))
    @settings(deadline=None, max_examples=60)
    def test_are_the_best_of_all(self, logits, count):
        found = most_probable_orderings(distribution(logits), count)
        n = logits.shape[1]
        assert len({tuple(row) for row in found.tolist()}) == len(found) == min(count, math.factorial(n))
        every = distribution(logits).log_prob(orderings_of(n)).sort(descending=True).values[: len(found)]
        torch.testing.assert_close(distribution(logits).log_prob(found), every, atol=1e-9, rtol=0)

    def test_of_many_items_none_that_is_drawn_is_better(self):
        logits = torch.linspace(6, -6, 30, dtype=torch.float64)[None] * 2
        found = distribution(logits).log_prob(most_probable_orderings(distribution(logits), 10))
        assert bool((found.diff() <= 0).all())
        drawn = draw_orderings(distribution(logits), 5000, torch.Generator().manual_seed(0)).unique(dim=0)
        better = distribution(logits).log_prob(drawn) > found[-1] + 1e-9
        assert int(better.sum()) <= 9


class TestAgreement:
    def test_is_kendalls_w(self):
        orders = [(0, 1, 2, 3), (1, 0, 2, 3), (3, 1, 0, 2)]
        ranks = np.array([[order.index(item) for item in range(4)] for order in orders]) + 1
        totals = ranks.sum(0)
        expected = 12 * ((totals - totals.mean()) ** 2).sum() / (3**2 * (4**3 - 4))
        assert agreement([(order,) for order in orders]) == pytest.approx(expected)

    def test_is_the_mean_over_blocks_that_can_be_ordered(self):
        assert agreement([((0, 1), (0, 1, 2), (0,)), ((0, 1), (2, 1, 0), (0,))]) == pytest.approx(0.5)
        assert agreement([((0,),), ((0,),)]) == 1.0
        with pytest.raises(ValueError, match="at least one ordering"):
            agreement([])

    def test_each_round_of_a_report_has_it(self, report):
        assert all(0.0 <= iteration.agreement <= 1.0 for iteration in report.history)
        assert all(iteration.num_elites >= 5 for iteration in report.history)


class TestDemosOfAReport:
    def test_are_texts_in_the_original_order(self, report):
        slot = report.slots[0]
        assert [demo["question"] for demo in slot.demos] == [demo.question for demo in demos(6)]
        assert all(set(demo) == {"question", "answer"} for demo in slot.demos), "fields that the prompt shows"
        assert slot.classes == [0, 1, 2, 0, 1, 2]
        assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report

    def test_demos_of_one_answer_have_no_class(self):
        program = student(3)
        for demo in program.demos:
            demo.answer = "the same"
        assert compiled(program).slots[0].classes == [None] * 3

    def test_are_as_dspy_shows_them_and_cut_and_hold_no_keys(self):
        lm, _ = fake_lm(EXAMPLES)
        lm.kwargs["api_key"] = "verysecret1"
        program = dspy.Predict("question, tags: list[str], n: int -> answer")
        program.demos = [
            dspy.Example(question="x" * 490 + "verysecret1" * 9, tags=["a", "ö"], n=3, answer="a"),
            dspy.Example(question="short", tags=[], n=4, answer="b"),
        ]
        static = compiled(
            program,
            lm=lm,
            optimizer=StaticOrder,
            examples=[
                dspy.Example(question=str(i), tags=[], n=i, answer="a").with_inputs("question", "tags", "n")
                for i in range(9)
            ],
        )
        first = static.slots[0].demos[0]
        assert (first["tags"], first["n"]) == ('["a", "ö"]', "3")
        assert len(first["question"]) == 500
        assert first["question"].endswith("…")
        assert "verys" not in json.dumps(static.to_dict())


class TestPlot:
    @pytest.mark.parametrize("kind", REPORTS)
    def test_every_report_can_be_drawn_and_written(self, kind, tmp_path):
        report = REPORTS[kind]()
        figure = report.plot()
        figure.savefig(tmp_path / "report.png", dpi=40)
        assert figure._repr_png_().startswith(PNG)
        assert (tmp_path / "report.png").read_bytes().startswith(PNG)
        report.to_html(tmp_path / "report.html")
        page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
        assert page.external == []
        assert report._repr_html_()

    def test_shows_scores_rounds_places_and_orders(self, report):
        axes = {axis.get_xlabel(): axis for axis in report.plot().axes}
        scores = axes["program calls"]
        lines = {line.get_label(): line for line in scores.get_lines()}
        calls = [iteration.program_calls for iteration in report.history]
        assert lines["mean of the round"].get_xdata().tolist() == calls
        assert lines["best so far, estimated"].get_ydata().tolist() == [
            i.best_score_so_far for i in report.history
        ]
        assert lines["original, compared"].get_ydata() == [report.comparison.original]
        rounds = axes["round"].get_lines()
        assert rounds[0].get_ydata().tolist() == [iteration.agreement for iteration in report.history]
        places = axes["position in the prompt (dot: in the chosen order)"]
        final = PlackettLuce(torch.tensor(report.slots[0].distributions[0]["logits"], dtype=torch.float64))
        expected = position_probabilities(final).numpy()
        np.testing.assert_allclose(places.images[0].get_array(), expected)
        marked = places.get_lines()[0].get_xdata().tolist()
        assert [report.slots[0].ordering[place] for place in marked] == list(range(6))
        assert "0 · answer 0 · text 0" in [label.get_text() for label in places.get_yticklabels()]
        texts = [text.get_text() for text in axes["probability of the whole order"].texts]
        assert sum("chosen" in text for text in texts) == sum("original" in text for text in texts) == 1
        assert 10 <= len(texts) <= 12

    def test_each_predictor_has_a_row(self, chain):
        labels = [axis.get_xlabel() for axis in chain.plot().axes]
        assert labels.count("probability of the whole order") == 2
        assert sum(label.startswith("position in the prompt") for label in labels) == 2

    def test_the_interval_ends_at_the_best_score_there_can_be(self, report):
        comparison = dataclasses.replace(report.comparison, chosen=1.0, gain=0.4, interval=(0.1, 0.8))
        figure = dataclasses.replace(report, comparison=comparison).plot()
        (scores,) = [axis for axis in figure.axes if axis.get_xlabel() == "program calls"]
        assert scores.get_ylim()[1] < 1.1


class Page(html.parser.HTMLParser):
    """What a browser would find in a page."""

    EMPTY = frozenset({"meta", "img", "br", "input", "link"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.external, self.sections, self.texts, self.ids = [], [], [], [], []
        self._open = []
        self.feed(text)
        self.close()
        assert not self._open, "every element is closed"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.handle_attributes(attributes)
        if tag not in self.EMPTY:
            self._open.append(tag)
        if tag == "section":
            self.sections.append([])

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.handle_attributes(attributes)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_attributes(self, attributes):
        for name, value in attributes:
            assert not name.startswith("on")
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data") and not value.startswith(
                ("#", "data:image/")
            ):
                self.external.append(value)

    def handle_data(self, data):
        if self._open and self._open[-1] == "style":
            assert "url(" not in data.replace("url(#", "")
            assert "@import" not in data
        elif self._open:
            self.texts.append(data)
            if "section" in self._open:
                self.sections[-1].append(data)


@pytest.fixture(scope="module")
def written(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "deep" / "report.html"
    report.to_html(path)
    return path


class TestPage:
    def test_needs_nothing_else(self, written):
        page = Page(written.read_text(encoding="utf-8"))
        assert page.external == []
        assert not {"script", "iframe", "object", "link", "base", "form"} & set(page.tags)
        assert page.tags.count("img") == 4
        assert len(page.ids) == len(set(page.ids))

    def test_demos_are_escaped_and_shown_in_both_orders(self, report, written):
        page = Page(written.read_text(encoding="utf-8"))
        original, chosen = ["".join(section) for section in page.sections]
        ordering = report.slots[0].ordering
        for text, order in ((original, range(6)), (chosen, ordering)):
            places = [text.index(f"demo {demo}") for demo in order]
            assert places == sorted(places)
        moved = sum(demo != place for place, demo in enumerate(ordering))
        assert moved == chosen.count("was ") == original.count("now ") > 0
        assert original.count(NASTY) == chosen.count(NASTY) == 2 * 3, "in short and in full"
        assert NASTY not in written.read_text(encoding="utf-8")

    def test_says_what_the_report_says(self, report, written):
        text = " ".join(Page(written.read_text(encoding="utf-8")).texts).lower()
        for line in str(report).splitlines()[2:4]:
            assert line.strip().lower() in text
        for phase in ("search", "final comparison", "original one there"):
            assert phase in text
        assert "fake/order-sensitive" in text
        assert f"{report.tokens['fake/order-sensitive']['prompt_tokens']:,}" in text
        assert "exact_match" in text

    def test_errors_are_listed_and_escaped(self, tmp_path):
        def metric(example, prediction, trace=None):
            if example.question == "question 7":
                raise ZeroDivisionError("<b>bold</b>")
            return exact_match(example, prediction)

        failed = compiled(metric=metric, max_errors=1000)
        failed.to_html(tmp_path / "report.html")
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "ZeroDivisionError: &lt;b&gt;bold&lt;/b&gt;" in text

    def test_names_of_predictors_and_odd_text_are_escaped(self, report, tmp_path):
        slot = report.slots[0]
        odd = dataclasses.replace(
            slot, predictor='x["<i>"]', demos=[{"q": f'{i} $x$ id="a" 中文 <!-- --> \\1'} for i in range(6)]
        )
        dataclasses.replace(report, slots=[odd], comparison=None).to_html(tmp_path / "report.html")
        page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
        assert "i" not in page.tags
        assert any('0 $x$ id="a" 中文 <!-- --> \\1' in text for text in page.texts)

    def test_appears_whole_or_not_at_all(self, report, tmp_path, monkeypatch):
        (tmp_path / "report.html").write_text("before")

        def fails(*arguments):
            raise OSError("no space left")

        monkeypatch.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="no space"):
            report.to_html(tmp_path / "report.html")
        assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
        assert (tmp_path / "report.html").read_text() == "before"

    def test_is_the_same_each_time(self, report, written, tmp_path):
        report.to_html(tmp_path / "again.html")
        assert (tmp_path / "again.html").read_bytes() == written.read_bytes()


class TestNotebook:
    def test_a_table_and_a_sentence(self, report):
        page = Page(f"<div>{report._repr_html_()}</div>")
        text = " ".join(page.texts)
        assert page.tags.count("table") == 1
        assert f"{report.comparison.chosen:.3f}" in text
        assert " ".join(map(str, report.slots[0].ordering)) in text

    def test_pictures_alone_need_matplotlib(self, report, tmp_path):
        report.save(tmp_path / "report.json")
        code = (
            "import sys; sys.modules['matplotlib'] = None\n"
            "from plr_dspy import Report\n"
            f"report = Report.load({str(tmp_path / 'report.json')!r})\n"
            "assert '<table>' in report._repr_html_() and str(report)\n"
            "for draw in (report.plot, lambda: report.to_html('never.html')):\n"
            "    try: draw()\n"
            "    except ImportError as error: print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == ["pictures need matplotlib: pip install 'plr-dspy[plots]'"] * 2
        assert not (tmp_path / "never.html").exists()


def test_the_command_writes_a_page(report, tmp_path, capsys):
    report.save(tmp_path / "report.json")
    assert cli.main(["report", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def screenshot(path, folder, *options):
    picture = folder / "page.png"
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *(
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
        ),
        *(f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", *options, path.as_uri()),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return matplotlib.image.imread(picture)[..., :3]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")
class TestInABrowser:
    @pytest.mark.parametrize(("width", "height"), [(1200, 1400), (500, 1400)])
    def test_pictures_are_seen_and_nothing_runs_off_the_side(self, written, tmp_path, width, height):
        pixels = screenshot(written, tmp_path, f"--window-size={width},{height}")
        assert pixels.shape[:2] == (height, width)
        orange = np.abs(pixels - np.array([224, 123, 0]) / 255).max(axis=2) < 0.1
        assert orange.sum() > 30, "the chosen order is marked"
        assert (pixels[:, -4:] > 0.98).all(), "the margin is empty"

    def test_dark_pages_have_light_text(self, written, tmp_path):
        dark = "--blink-settings=preferredColorScheme=0"
        pixels = screenshot(written, tmp_path, "--window-size=1200,900", dark)
        assert np.median(pixels) < 0.2
        assert (pixels.min(axis=2) > 0.8).sum() > 1000
