"""What compiles cost in dollars: the report's and the estimate's figure, and `max_cost`."""

import math
import sys
import time
from dataclasses import replace
from statistics import NormalDist

import dspy
import fakes
import litellm
import pytest
from fakes import OrderSensitiveEngine, digest, engine_for, exact_match, lm_of, questions, student, using

from plr_dspy import PLFewShot, PLReorder
from plr_dspy.baselines import TopKOrder
from plr_dspy.report.text import dollars
from plr_dspy.scoring.budget import cost_of, price_of

EXAMPLES = questions(60)
PROMPT = 2e-6
COMPLETION = 8e-6
MODEL = "fake/priced"


class PricedEngine(OrderSensitiveEngine):
    """Adds up what its calls cost, and knows the dearest of them.

    Args:
        tokens: Those of a prompt and its answer, by the request; what it leaves out is as these have it.
    """

    def __init__(self, tokens=lambda request: {}):
        super().__init__({example.question: example.answer for example in EXAMPLES})
        self.tokens = tokens
        self.cost = 0.0
        self.dearest = 0.0

    def complete(self, request):
        tokens = self.tokens(request)
        response = super().complete(request)
        object.__setattr__(response, "usage", usage := replace(response.usage, **tokens))
        cost = usage.input_tokens * PROMPT + usage.output_tokens * COMPLETION
        with self._lock:
            self.cost += cost
            self.dearest = max(self.dearest, cost)
        return response


@pytest.fixture(autouse=True)
def price(monkeypatch):
    entry = {
        "input_cost_per_token": PROMPT,
        "output_cost_per_token": COMPLETION,
        "cache_read_input_token_cost": PROMPT / 10,
        "litellm_provider": "fake",
    }
    monkeypatch.setitem(litellm.model_cost, MODEL, entry)


@pytest.fixture
def engine():
    engine = PricedEngine()
    with using(engine, MODEL):
        yield engine


def compiled(program=None, trainset=EXAMPLES, **options):
    reorder = PLReorder(**{"metric": exact_match, **options})
    reorder.compile(program or student(), trainset=trainset)
    return reorder.report


class TestPrices:
    def test_come_with_litellm_and_without_its_import_for_the_provider_that_is_named(self, monkeypatch):
        known = price_of("openai/gpt-4o-mini")
        monkeypatch.delitem(sys.modules, "litellm")
        assert price_of("openai/gpt-4o-mini") == known
        assert 0 < known["cached"] < known["prompt"] < known["completion"]
        assert price_of(MODEL) is None  # registered in litellm alone
        for model in ("lm_studio/gpt-4o-mini", "open/gpt-4o-mini", "vertex/gemini-2.5-pro", "/gpt-4o-mini"):
            assert price_of(model) is None
        for model in ("openai/my-own", "fake/other", "", "/", "openai/"):
            assert price_of(model) is None
        for model in ("vertex_ai/gemini-2.5-pro", "bedrock/amazon.nova-lite-v1:0", "gpt-4o-mini"):
            assert price_of(model)["completion"] > price_of(model)["prompt"] > 0

    def test_cached_tokens_count_once_and_what_a_cache_takes_in_is_never_free(self, monkeypatch):
        for also in ({"cached_tokens": 600}, {}):
            tokens = {"prompt_tokens": 1000, "completion_tokens": 10, "cache_read_input_tokens": 600, **also}
            assert cost_of({MODEL: tokens}) == pytest.approx(460 * PROMPT + 10 * COMPLETION)
        tokens = {MODEL: {"prompt_tokens": 1000, "cache_creation_tokens": 400}}
        for written, expected in [(None, 1000 * PROMPT), (0.0, 1000 * PROMPT), (3 * PROMPT, 1800 * PROMPT)]:
            monkeypatch.setitem(litellm.model_cost[MODEL], "cache_creation_input_token_cost", written)
            assert cost_of(tokens) == pytest.approx(expected)

    @pytest.mark.parametrize(("price_of_cached", "expected"), [(0.0, 400), (None, 1000)])
    def test_what_the_cache_held_may_be_free(self, monkeypatch, price_of_cached, expected):
        """As of several providers; where no price is told it is that of a prompt."""
        monkeypatch.setitem(litellm.model_cost[MODEL], "cache_read_input_token_cost", price_of_cached)
        tokens = {"prompt_tokens": 1000, "cached_tokens": 600}
        assert cost_of({MODEL: tokens}) == pytest.approx(expected * PROMPT)


class TestReport:
    def test_knows_what_the_provider_had_in_its_cache(self):
        with using(PricedEngine(lambda request: {"cache_read_tokens": 7}), MODEL) as engine:
            report = compiled(max_metric_calls=150)
        num_cached = 7 * engine.num_calls
        assert report.tokens[MODEL]["cached_tokens"] == num_cached
        assert report.cost == pytest.approx(engine.cost - 0.9 * PROMPT * num_cached)

    def test_and_the_estimate_are_unknown_where_a_price_is(self, engine):
        with dspy.context(lm=lm_of(engine, "fake/other")):
            report = compiled(max_metric_calls=100)
            found = PLReorder(exact_match).estimate(student(), trainset=EXAMPLES)
        assert report.cost is found.cost is None
        assert "$" not in report.details() + str(found)


class TestEstimate:
    def test_what_a_predictor_reads_of_another_is_taken_from_its_demos(self, engine):
        program = fakes.two_predictors()
        hint, answer = program.predictors()
        rows = [dspy.Example(example, hint="a hint of five words", reasoning="so") for example in EXAMPLES]
        hint.demos = rows[:4]
        answer.demos = rows[4:8]
        found = PLReorder(exact_match, max_cost=1.0, num_demos=None).estimate(program, trainset=EXAMPLES[8:])
        one = dspy.ChatAdapter().format(answer.signature, answer.demos, {"question": "q", "hint": "h"})
        assert found.prompt_tokens > litellm.token_counter("gpt-4o", messages=one) * found.program_calls
        assert found.cost > 0

    def test_prices_the_prompts_and_answers_as_long_as_the_demos(self, engine):
        program = student()
        found = PLReorder(exact_match).estimate(program, trainset=EXAMPLES)
        messages = dspy.ChatAdapter().format(program.signature, program.demos, {"question": "question 50"})
        answers = [message for message in messages if message["role"] == "assistant"]
        count = litellm.token_counter("gpt-4o", messages=messages)
        answer = litellm.token_counter("gpt-4o", messages=answers) / len(answers)
        expected = found.program_calls * (count * PROMPT + answer * COMPLETION)
        assert found.cost == pytest.approx(expected, rel=0.02)
        assert f"about {dollars(found.cost)} (answers as long as the demos')" in str(found)
        assert engine.num_calls == 0

    @pytest.mark.parametrize(
        ("kind", "options", "demos"),
        [
            (PLReorder, {"num_demos": 3}, 0),
            (PLReorder, {"num_demos": 2, "max_metric_calls": 300}, 0),
            (PLFewShot, {"max_demos": 1, "candidates": questions(2), "max_metric_calls": 500}, 3),
            (PLFewShot, {"max_demos": 2, "demos": "retrieved", "candidates": "labeled"}, 0),
        ],
    )
    def test_says_no_fewer_calls_than_are_made_where_all_orders_are_scored(self, kind, options, demos):
        made = kind(exact_match, seed=0, display_progress=False, **options)
        engine = engine_for(EXAMPLES)
        with using(engine):
            found = made.estimate(student(demos), trainset=EXAMPLES)
            made.compile(student(demos), trainset=EXAMPLES)
        assert 0 < engine.num_calls <= found.program_calls

    @pytest.mark.parametrize(("kind", "demos"), [(PLReorder, 6), (PLFewShot, 0), (TopKOrder, 6)])
    def test_says_when_max_cost_ends_it(self, engine, kind, demos):
        def asked(**limits):
            return kind(exact_match, **limits).estimate(student(demos), trainset=EXAMPLES)

        without = asked()
        limit = round(0.25 * without.cost, 4)
        found = asked(max_cost=limit)
        ample = asked(max_cost=2 * without.cost)
        assert without.affordable_calls == ample.affordable_calls == without.program_calls
        assert found.affordable_calls == pytest.approx(0.25 * without.program_calls, rel=0.01)
        assert (found.cost, found.program_calls) == (without.cost, without.program_calls)
        says = f"; max_cost ends it earlier, after about {found.affordable_calls:,} calls"
        assert str(found).splitlines()[0].endswith(says)
        assert "max_cost" not in str(ample) + str(without)


def uneven(*, spread, failing, seed):
    """Calls cost very different amounts, by the spread of the logarithms of token counts, and a share of them fails."""

    def tokens(request):
        texts = [message.text or "" for message in request.messages]
        if digest(f"{seed} fails {texts}") < failing:
            fakes.failure()
        prompt = round(400 * math.exp(spread * NormalDist().inv_cdf(digest(f"{seed} {texts}") or 0.5)))
        return {"input_tokens": prompt, "output_tokens": 5}

    return PricedEngine(tokens)


A_CALL = 400 * PROMPT + 5 * COMPLETION


class TestMaxCost:
    @pytest.mark.parametrize(("spread", "failing"), [(0.0, 0.0), (0.5, 0.1), (1.2, 0.05)])
    @pytest.mark.parametrize(("share", "num_threads", "seed"), [(0.8, 16, 0), (0.25, 1, 1)])
    def test_is_not_passed_and_leaves_a_comparison(self, num_threads, spread, failing, share, seed):
        engine = uneven(spread=spread, failing=failing, seed=seed)
        mean = 400 * PROMPT * math.exp(spread**2 / 2) + 5 * COMPLETION
        limit = share * 200 * mean
        options = {"max_cost": limit, "max_metric_calls": 200, "num_threads": num_threads}
        with using(engine, MODEL):
            report = compiled(student(4), EXAMPLES[:40], max_errors=1000, seed=seed, **options)
        assert report.cost == pytest.approx(engine.cost)
        assert 0.5 * limit < engine.cost <= limit + (engine.dearest if spread > 1 else 1e-12)
        assert report.stopped.startswith("cost limit")
        if spread < 1:  # where one call takes a fifth of the money, none may be left
            assert report.stopped == "cost limit"
            # The money of 50 calls of very different prices may not be enough for three orders on 8 examples.
            assert report.comparison.num_candidates >= 3 - (share < 0.5 and spread > 0)
            assert report.comparison.num_examples >= 4

    def test_more_of_it_lets_a_search_that_it_ended_go_on(self, engine, tmp_path):
        limits = [share * PLReorder(exact_match).estimate(student(), trainset=EXAMPLES).cost for share in (0.1, 0.3)]
        first, second = (compiled(max_cost=limit, log_dir=tmp_path).program_calls["search"] for limit in limits)
        assert second > 2 * first

    @pytest.mark.parametrize(("limit", "failing", "seed"), [(80, 0.1, 0), (150, 0.0, 1)])
    def test_demos_that_are_made_get_a_part_of_it(self, tmp_path, limit, failing, seed):
        engine = uneven(spread=0.3, failing=failing, seed=seed)
        found = []
        for _ in range(2):  # the second goes the same way at no call
            options = {"max_metric_calls": 200, "max_errors": 1000, "num_threads": 4, "log_dir": tmp_path}
            chooser = PLFewShot(exact_match, max_cost=limit * A_CALL, seed=seed, **options)
            with using(engine, MODEL):
                program = chooser.compile(student(0), trainset=EXAMPLES)
            assert chooser.report.cost == pytest.approx(engine.cost)
            assert dollars(engine.cost) in str(chooser.report)
            assert chooser.report.comparison
            found.append((engine.num_calls, chooser.report.comparison, program.demos))
        assert found[0] == found[1]
        assert 0.5 * limit * A_CALL < engine.cost <= limit * A_CALL
        assert chooser.report.program_calls["bootstrap"] <= 0.25 * limit

    @pytest.mark.parametrize("kind", [PLReorder, TopKOrder])
    @pytest.mark.parametrize("judge", [False, True])
    def test_holds_for_a_model_that_thinks_in_many_threads(self, kind, judge):
        """Its answers are far longer than those of demos, and what a judge costs is not known before its first call."""

        def tokens(request):
            time.sleep(0.02)
            return {"input_tokens": 400, "output_tokens": 8_000}

        engine = PricedEngine(tokens)

        def ask(self, example, prediction):
            self.lm("is that right?")
            return exact_match(example, prediction)

        metric = fakes.Program(ask, lm=lm_of(engine, MODEL)) if judge else exact_match
        limited = kind(metric, max_cost=0.4, num_threads=16, display_progress=False)
        with using(engine, MODEL):
            limited.compile(student(), trainset=EXAMPLES)
        assert 0 < engine.cost <= 0.4
        assert limited.report.cost == pytest.approx(engine.cost)

    def test_a_dear_teacher_needs_a_price_and_leaves_three_quarters_to_a_cheap_student(self, engine, monkeypatch):
        teacher = student(0)
        dear = PricedEngine()
        teacher.set_lm(lm_of(dear, "fake/dear"))
        options = {"max_metric_calls": 200, "num_threads": 4, "display_progress": False}
        chooser = PLFewShot(exact_match, max_cost=0.25, **options)
        with pytest.raises(ValueError, match="max_cost needs a price for fake/dear"):
            chooser.compile(student(0), teacher=teacher, trainset=EXAMPLES)
        assert engine.num_calls == dear.num_calls == 0
        prices = {"input_cost_per_token": 50 * PROMPT, "output_cost_per_token": 50 * COMPLETION}
        monkeypatch.setitem(litellm.model_cost, "fake/dear", {**prices, "litellm_provider": "fake"})
        found = chooser.estimate(student(0), teacher=teacher, trainset=EXAMPLES)
        alone = chooser.estimate(student(0), trainset=EXAMPLES)
        assert found.cost > 3 * alone.cost
        chooser.compile(student(0), teacher=teacher, trainset=EXAMPLES)
        assert 0 < 50 * dear.cost <= 0.25 * 0.25
        assert chooser.report.cost == pytest.approx(engine.cost + 50 * dear.cost)
        assert chooser.report.program_calls["total"] > 0.9 * (200 - 16)

    @pytest.mark.parametrize("method", ["compile", "estimate"])
    @pytest.mark.parametrize("model", ["fake/other", "lm_studio/gpt-4o-mini"])
    def test_needs_a_price(self, engine, method, model):
        with (
            dspy.context(lm=lm_of(engine, model)),
            pytest.raises(ValueError, match=f"max_cost needs a price for {model}: pass max_metric_calls"),
        ):
            getattr(PLReorder(exact_match, max_cost=1.0), method)(student(), trainset=EXAMPLES)
        assert engine.num_calls == 0

    def test_too_little_ends_it_without_a_comparison(self, engine):
        report = compiled(max_cost=10 * A_CALL, num_threads=4)
        assert engine.cost <= 10 * A_CALL
        assert report.stopped.startswith("cost limit")

    @pytest.mark.parametrize("usage", [{}, {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}])
    def test_a_server_that_reports_no_tokens_ends_it_unless_they_are_free(self, engine, usage, monkeypatch):
        def complete(request, whole=engine.complete):
            response = whole(request)
            object.__setattr__(response, "usage", type(response.usage)(**usage))
            return response

        monkeypatch.setattr(engine, "complete", complete)
        with pytest.raises(ValueError, match=f"max_cost needs the number of tokens in each reply of {MODEL}"):
            PLReorder(exact_match, max_cost=10.0, num_threads=4).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == 1
        report = compiled(max_metric_calls=60)
        assert report.cost is None
        assert report.tokens[MODEL] == {"replies_without_usage": engine.num_calls - 1}
        for kind in ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"):
            monkeypatch.setitem(litellm.model_cost[MODEL], kind, 0.0)
        assert compiled(max_metric_calls=60, max_cost=1.0).cost == 0.0

    def test_a_hidden_model_without_a_price_ends_the_compile(self, engine):
        judge = lm_of(engine, "fake/hidden")

        def metric(example, prediction):
            judge("is that right?")
            return exact_match(example, prediction)

        with pytest.raises(ValueError, match="max_cost needs a price for fake/hidden"):
            PLReorder(metric, max_cost=10.0, num_threads=2).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls <= 2 * 2
