"""The cost of a compile in US dollars: in reports, in estimates, and limited by `max_cost`."""

import math
import sys
import time
from statistics import NormalDist
from typing import ClassVar

import dspy
import fakes
import litellm
import pytest
from dspy import lm15
from fakes import (
    OrderSensitiveEngine,
    digest,
    engine_for,
    exact_match,
    lm_of,
    prompt_tokens,
    questions,
    set_price,
    student,
    using,
)

from plr_dspy import F1, PlainTextAdapter, PLFewShot, PLReorder, choose_program, estimate, headroom
from plr_dspy.baselines import TopKOrder
from plr_dspy.report.formats import dollars
from plr_dspy.scoring.budget import cost_of, price_of

EXAMPLES = questions(60)
PROMPT = 2e-6
COMPLETION = 8e-6
MODEL = "fake/priced"


class PricedEngine(OrderSensitiveEngine):
    """An engine that adds up the costs of its calls, and records the largest cost."""

    def __init__(self, examples=EXAMPLES, **options):
        super().__init__({example.question: example.answer for example in examples}, **options)
        self.cost = 0.0
        self.largest_cost = 0.0

    def complete(self, request):
        response = super().complete(request)
        cost = response.usage.input_tokens * PROMPT + response.usage.output_tokens * COMPLETION
        with self._lock:
            self.cost += cost
            self.largest_cost = max(self.largest_cost, cost)
        return response


@pytest.fixture(autouse=True)
def price(monkeypatch):
    set_price(monkeypatch, MODEL, PROMPT, COMPLETION, cache_read_input_token_cost=PROMPT / 10)


@pytest.fixture
def engine():
    engine = PricedEngine()
    with using(engine, MODEL):
        yield engine


def of_many_lengths(number):
    examples = []
    for i in range(number):
        question = f"question {i}" + " and more" * (i * 7 % 40)
        examples.append(dspy.Example(question=question, answer=f"answer {i % 3}").with_inputs("question"))
    return examples


OF_MANY_LENGTHS = of_many_lengths(60)


def more_is_better(system, demos, asked):
    return 0.2 + 0.09 * len(demos)


class MoreIsBetter(PricedEngine):
    """An engine that is more accurate with more demos, counts tokens as estimates do, and reasons at length."""

    def __init__(self):
        super().__init__(OF_MANY_LENGTHS, share=more_is_better, tokens=prompt_tokens)

    @staticmethod
    def formatted(system, texts, answer):
        reply = OrderSensitiveEngine.formatted(system, texts, answer)
        return reply.replace("because", "because " * 60)


def compiled(program=None, trainset=EXAMPLES, **options):
    reorder = PLReorder(**{"metric": exact_match, **options})
    reorder.compile(program or student(), trainset=trainset)
    return reorder.report


class TestPrices:
    def test_are_known_without_importing_litellm_but_only_for_the_named_provider(self, monkeypatch):
        known = price_of("openai/gpt-4o-mini")
        monkeypatch.delitem(sys.modules, "litellm")
        assert price_of("openai/gpt-4o-mini") == known
        assert 0 < known["cached"] < known["prompt"] < known["completion"]
        assert price_of(MODEL) is None  # Only the removed module has this price.
        for model in ("lm_studio/gpt-4o-mini", "open/gpt-4o-mini", "vertex/gemini-2.5-pro", "/gpt-4o-mini"):
            assert price_of(model) is None
        for model in ("openai/my-own", "fake/other", "", "/", "openai/"):
            assert price_of(model) is None
        for model in ("vertex_ai/gemini-2.5-pro", "bedrock/amazon.nova-lite-v1:0", "gpt-4o-mini"):
            assert price_of(model)["completion"] > price_of(model)["prompt"] > 0

    def test_cached_tokens_count_once_and_cache_writes_are_never_free(self, monkeypatch):
        for also in ({"cached_tokens": 600}, {}):
            tokens = {"prompt_tokens": 1000, "completion_tokens": 10}
            tokens |= {"cache_read_input_tokens": 600, **also}
            assert cost_of({MODEL: tokens}) == pytest.approx(460 * PROMPT + 10 * COMPLETION)
        tokens = {MODEL: {"prompt_tokens": 1000, "cache_creation_tokens": 400}}
        for written, expected in [(None, 1000), (0.0, 1000), (3 * PROMPT, 1800)]:
            prices = {"cache_creation_input_token_cost": written}
            monkeypatch.setitem(litellm.model_cost, MODEL, litellm.model_cost[MODEL] | prices)
            assert cost_of(tokens) == pytest.approx(expected * PROMPT)

    @pytest.mark.parametrize(("price_of_cached", "expected"), [(0.0, 400), (None, 1000)])
    def test_cached_tokens_may_be_free(self, monkeypatch, price_of_cached, expected):
        """If cached tokens have no separate price, they cost as much as other prompt tokens."""
        monkeypatch.setitem(litellm.model_cost[MODEL], "cache_read_input_token_cost", price_of_cached)
        tokens = {"prompt_tokens": 1000, "cached_tokens": 600}
        assert cost_of({MODEL: tokens}) == pytest.approx(expected * PROMPT)


class TestReport:
    def test_cached_tokens_are_counted_at_their_price(self):
        with using(PricedEngine(tokens=lambda request: {"cache_read_tokens": 7}), MODEL) as engine:
            report = compiled(max_metric_calls=150)
        num_cached = 7 * engine.num_calls
        assert report.tokens[MODEL]["cached_tokens"] == num_cached
        assert report.cost == pytest.approx(engine.cost - 0.9 * PROMPT * num_cached)

    def test_costs_in_report_and_estimate_are_unknown_without_a_price(self, engine):
        with dspy.context(lm=lm_of(engine, "fake/other")):
            report = compiled(max_metric_calls=100)
            estimate = PLReorder(exact_match).estimate(student(), trainset=EXAMPLES)
        assert report.cost is estimate.cost is None
        assert "$" not in report.details() + str(estimate)


class TestEstimate:
    def test_inputs_from_another_predictor_are_taken_from_the_demos(self, engine):
        program = fakes.two_predictors()
        hint, answer = program.predictors()
        more = {"hint": "a hint of five words", "reasoning": "so"}
        rows = [dspy.Example(example, **more) for example in EXAMPLES]
        hint.demos = rows[:4]
        answer.demos = rows[4:8]
        reorder = PLReorder(exact_match, max_cost=1.0, num_demos=None)
        estimate = reorder.estimate(program, trainset=EXAMPLES[8:])
        inputs = {"question": "q", "hint": "h"}
        prompt = dspy.ChatAdapter().format(answer.signature, answer.demos, inputs)
        num_tokens = litellm.token_counter("gpt-4o", messages=prompt)
        assert estimate.prompt_tokens > num_tokens * estimate.program_calls
        assert estimate.cost > 0

    def test_includes_prompts_and_answers_as_long_as_in_the_demos(self, engine):
        program = student()
        estimate = PLReorder(exact_match).estimate(program, trainset=EXAMPLES)
        inputs = {"question": "question 50"}
        messages = dspy.ChatAdapter().format(program.signature, program.demos, inputs)
        answers = [message for message in messages if message["role"] == "assistant"]
        count = litellm.token_counter("gpt-4o", messages=messages)
        answer = litellm.token_counter("gpt-4o", messages=answers) / len(answers)
        expected = estimate.program_calls * (count * PROMPT + answer * COMPLETION)
        assert estimate.cost == pytest.approx(expected, rel=0.02)
        assert f"about {dollars(estimate.cost)} (if answers are as long as in the demos)" in str(estimate)
        assert engine.num_calls == 0

    def test_the_answer_none_counts_as_an_answer_if_the_type_allows_it(self, engine):
        """If None were a missing answer, replies and bootstrapped demos would be assumed to have 100 tokens."""
        program = dspy.Predict("question -> answer: Optional[str]")
        estimates = {}
        for answer in (None, "short"):
            trainset = [
                dspy.Example(example, answer=answer).with_inputs("question") for example in EXAMPLES
            ]
            fewshot = PLFewShot(exact_match, max_metric_calls=200)
            estimates[answer] = [
                fewshot.estimate(program, trainset=trainset),
                estimate(headroom, program, exact_match, trainset),
            ]
        # DSPy adds about 25 tokens to each demo whose answer is None.
        for with_none, with_text in zip(estimates[None], estimates["short"], strict=True):
            assert with_none.prompt_tokens < 1.5 * with_text.prompt_tokens
            assert with_none.cost < 1.5 * with_text.cost
            assert with_none.program_calls == with_text.program_calls

    @pytest.mark.parametrize(
        ("kind", "options", "demos"),
        [
            (PLReorder, {"num_demos": 3}, 0),
            (PLReorder, {"num_demos": 2, "max_metric_calls": 200}, 0),
            (PLFewShot, {"max_demos": 1, "candidates": questions(2), "max_metric_calls": 300}, 3),
            (PLFewShot, {"max_demos": 2, "demos": "retrieved", "candidates": "labeled"}, 0),
        ],
    )
    def test_is_an_upper_bound_of_the_calls_if_all_orders_are_scored(self, kind, options, demos):
        optimizer = kind(exact_match, seed=0, display_progress=False, **options)
        engine = engine_for(EXAMPLES)
        with using(engine):
            estimate = optimizer.estimate(student(demos), trainset=EXAMPLES)
            optimizer.compile(student(demos), trainset=EXAMPLES)
        assert 0 < engine.num_calls <= estimate.program_calls

    @pytest.mark.parametrize(
        ("kind", "options", "program", "with_programs"),
        [
            (PLReorder, {}, student(OF_MANY_LENGTHS[:6]), False),
            (PLReorder, {}, student(OF_MANY_LENGTHS[:6]), True),
            (PLReorder, {"num_demos": 4}, student(0), False),
            (PLFewShot, {"candidates": "labeled"}, student(0), False),
            (PLFewShot, {"candidates": "labeled"}, student(0), True),
            (PLFewShot, {"candidates": "both"}, dspy.ChainOfThought("question -> answer"), False),
            (PLFewShot, {"demos": "auto"}, student(OF_MANY_LENGTHS[:12]), False),
            (PLFewShot, {"demos": "retrieved"}, student(0), False),
            (PLFewShot, {"demos": "retrieved"}, student(0), True),
            (PLFewShot, {"instructions": ["Answer.", "Answer the question. " * 40]}, student(0), False),
            (PLFewShot, {"instructions": "propose", "num_instructions": 2}, student(0), False),
            (PLFewShot, {"instructions": "propose", "num_instructions": 2}, student(0), True),
            (PLFewShot, {"max_demo_tokens": 300}, student(0), False),
        ],
    )
    def test_is_an_upper_estimate_of_tokens_and_cost(self, kind, options, program, with_programs):
        """More demos give better scores, so a search that chooses demos mostly shows many demos."""
        optimizer = kind(
            exact_match, **{"max_metric_calls": 90, "display_progress": False, "num_threads": 1, **options}
        )
        longer = program.deepcopy()
        for predictor in longer.predictors():
            predictor.demos = OF_MANY_LENGTHS[:20]
        more = {"programs": {"longer": longer}} if with_programs else {}
        engine = MoreIsBetter()
        with using(engine, MODEL):
            estimate = optimizer.estimate(program, trainset=OF_MANY_LENGTHS, **more)
            optimizer.compile(program, trainset=OF_MANY_LENGTHS, **more)
        report = optimizer.report
        assert report.cost == pytest.approx(engine.cost)
        # Allow 2%: even if all prompts show the same demos, the mean length of the inputs is uncertain.
        assert report.tokens[MODEL]["prompt_tokens"] <= 1.02 * estimate.prompt_tokens
        assert report.cost <= 1.02 * estimate.cost
        if not with_programs:
            assert estimate.prompt_tokens <= 2 * report.tokens[MODEL]["prompt_tokens"]

    @pytest.mark.parametrize(
        ("model", "is_other"),
        [
            ("openai/gpt-4o-mini", False),
            ("azure/gpt-5-nano", False),
            ("openai/gpt-3.5-turbo", True),
            ("anthropic/claude-opus-4", True),
            ("openai/SmolLM2-135M", True),
        ],
    )
    def test_says_if_the_model_has_another_tokenizer(self, engine, model, is_other):
        with dspy.context(lm=lm_of(engine, model)):
            estimate = PLReorder(exact_match).estimate(student(), trainset=EXAMPLES)
        assert estimate.has_other_tokenizer == is_other
        assert ("counted with GPT-4o's tokenizer; the model's own" in str(estimate)) == is_other

    def test_names_labels_without_examples(self, engine, caplog):
        signature = "question -> answer: Literal['answer 0', 'answer 1', 'answer 2', 'answer 3']"
        PLReorder(exact_match).estimate(student(4, signature), trainset=EXAMPLES[4:])
        assert "no example is labeled 'answer 3' in 'answer'" in caplog.text

    def test_plain_prompts_have_a_cost(self, engine):
        with dspy.context(adapter=PlainTextAdapter()):
            estimate = PLReorder(exact_match).estimate(student(), trainset=EXAMPLES)
        answer = litellm.token_counter("gpt-4o", text="answer 0")
        more = (
            estimate.cost - PROMPT * estimate.prompt_tokens - COMPLETION * answer * estimate.program_calls
        )
        assert 0 <= more <= COMPLETION * 6 * estimate.program_calls

    @pytest.mark.parametrize(("kind", "demos"), [(PLReorder, 6), (PLFewShot, 0), (TopKOrder, 6)])
    def test_states_when_max_cost_would_end_the_run(self, engine, kind, demos):
        def asked(**limits):
            return kind(exact_match, **limits).estimate(student(demos), trainset=EXAMPLES)

        without = asked()
        limit = round(0.25 * without.cost, 4)
        estimate = asked(max_cost=limit)
        ample = asked(max_cost=2 * without.cost)
        assert without.affordable_calls == ample.affordable_calls == without.program_calls
        assert estimate.affordable_calls == pytest.approx(0.25 * without.program_calls, rel=0.01)
        assert estimate.cost == without.cost
        assert estimate.program_calls == without.program_calls
        says = f"; max_cost may end the run after about {estimate.affordable_calls:,} calls"
        assert str(estimate).splitlines()[0].endswith(says)
        assert "max_cost" not in str(ample) + str(without)


class TestEstimateOfFunctions:
    def test_calls_and_cost_are_about_those_of_the_function(self):
        arguments = (student(4), exact_match, EXAMPLES)
        # Count tokens as the estimate does.
        engine = PricedEngine(tokens=prompt_tokens)
        with using(engine, MODEL):
            estimated = estimate(headroom, *arguments, max_metric_calls=200)
            assert engine.num_calls == 0
            measured = headroom(*arguments, max_metric_calls=200, display_progress=False)
        assert estimated.program_calls == measured.program_calls
        answers = measured.program_calls * 5 * COMPLETION  # The fake LM reports 5 tokens for every answer.
        prompts = estimated.prompt_tokens * PROMPT
        assert prompts == pytest.approx(engine.cost - answers, rel=0.05)
        assert estimated.cost > prompts

    @pytest.mark.parametrize(("metric", "max_calls"), [(exact_match, 200), (F1("answer 1"), 100)])
    def test_headroom_uses_at_most_the_estimated_tokens(self, metric, max_calls):
        """The scored examples may be longer than the others."""
        used = []

        def count(request):
            tokens = prompt_tokens(request)
            used.append(tokens["input_tokens"])
            return tokens

        engine = MoreIsBetter()
        engine.tokens = count
        with using(engine, MODEL):
            arguments = (student(OF_MANY_LENGTHS[:4]), metric, OF_MANY_LENGTHS)
            estimated = estimate(headroom, *arguments, max_metric_calls=max_calls)
            headroom(*arguments, max_metric_calls=max_calls, display_progress=False)
        assert 0.98 * estimated.prompt_tokens < sum(used) <= estimated.prompt_tokens

    def test_the_cost_of_a_race_is_averaged_over_programs(self, engine):
        estimated = estimate(choose_program, [student(0), student(6)], exact_match, trainset=EXAMPLES)
        num_calls = 2 * (len(EXAMPLES) - 6)  # Examples shown as demos are not scored.
        assert estimated.program_calls == num_calls
        sizes = []
        for num_demos in (0, 6):
            messages = dspy.ChatAdapter().format(
                student().signature, questions(num_demos), {"question": "question 50"}
            )
            sizes.append(litellm.token_counter("gpt-4o", messages=messages))
        assert estimated.prompt_tokens == pytest.approx(num_calls * sum(sizes) / 2, rel=0.02)
        assert estimated.cost > estimated.prompt_tokens * PROMPT
        assert engine.num_calls == 0

    @pytest.mark.parametrize("limit", [100, None])
    def test_the_cost_of_a_race_is_an_upper_estimate_if_cheap_programs_drop_out(self, limit):
        """Programs without demos are mostly wrong, so they drop out, and the remaining calls are expensive."""
        engine = MoreIsBetter()
        programs = [student(OF_MANY_LENGTHS[:14]), student(OF_MANY_LENGTHS[:12])]
        for number in range(3):
            programs.append(dspy.Predict(dspy.Signature("question -> answer", f"Answer {number}.")))
        with using(engine, MODEL):
            arguments = (programs, exact_match, OF_MANY_LENGTHS)
            estimated = estimate(choose_program, *arguments, max_metric_calls=limit)
            report = choose_program(
                *arguments, max_metric_calls=limit, num_threads=1, display_progress=False
            ).report
        assert report.tokens[MODEL]["prompt_tokens"] <= 1.02 * estimated.prompt_tokens
        assert report.program_calls["total"] <= estimated.program_calls
        assert report.cost <= 1.02 * estimated.cost

    def test_max_cost_limits_the_calls_of_a_race(self, engine):
        programs = [student(2), student(6)]
        full = estimate(choose_program, programs, exact_match, EXAMPLES)
        limited = estimate(choose_program, programs, exact_match, EXAMPLES, max_cost=full.cost / 2)
        assert limited.affordable_calls == pytest.approx(full.program_calls / 2, abs=1)

    def test_arguments_are_checked_as_in_the_call(self, engine):
        with pytest.raises(
            TypeError, match="must be headroom or choose_program; got PLReorder: pass one of"
        ):
            estimate(PLReorder, student(), EXAMPLES)
        with pytest.raises(TypeError, match="missing a required argument: 'trainset'"):
            estimate(headroom, student(), exact_match)
        with pytest.raises(ValueError, match="max_metric_calls must be at least"):
            estimate(headroom, student(), exact_match, EXAMPLES, max_metric_calls=10)


def uneven(*, spread, failing, seed):
    """Return an engine whose token counts vary and whose calls sometimes fail."""

    def tokens(request):
        texts = [message.text or "" for message in request.messages]
        if digest(f"{seed} fails {texts}") < failing:
            fakes.failure()
        deviation = NormalDist().inv_cdf(digest(f"{seed} {texts}") or 0.5)
        prompt = round(400 * math.exp(spread * deviation))
        return {"input_tokens": prompt, "output_tokens": 5}

    return PricedEngine(tokens=tokens)


@pytest.mark.parametrize("num_threads", [1, 8])
@pytest.mark.parametrize("own", [(False, True), (True, False), (False, False, True)])
def test_a_race_of_models_with_different_prices_stays_within_max_cost(own, num_threads, monkeypatch):
    set_price(monkeypatch, "fake/dear", 100 * PROMPT, 40 * COMPLETION)

    class Slow(PricedEngine):
        def complete(self, request):
            time.sleep(0.005)
            return super().complete(request)

    engine = Slow(tokens=lambda request: {"input_tokens": 200, "output_tokens": 5})
    programs = {}
    for number, is_dear in enumerate(own):
        program = student(number)
        if is_dear:
            program.set_lm(lm_of(engine, "fake/dear"))
        programs[f"program {number}"] = program
    with using(engine, MODEL):
        options = {"display_progress": False, "num_threads": num_threads, "max_cost": 0.1}
        report = choose_program(programs, exact_match, EXAMPLES, **options).report
    assert 0.03 < report.cost <= 0.1


class Unreliable(MoreIsBetter):
    """An engine that refuses every tenth request, so that DSPy repeats requests and some calls fail."""

    def __init__(self):
        super().__init__()
        self.num_requests = 0

    def complete(self, request):
        with self._lock:
            self.num_requests += 1
            is_refused = self.num_requests % 10 == 0
        if is_refused:
            raise lm15.RateLimitError("slow down", retry_after=0.0)
        return super().complete(request)


class TestLimitsInThreads:
    OPTIONS: ClassVar = {"num_threads": 8, "max_errors": 1000, "display_progress": False}

    @pytest.mark.parametrize(
        ("max_cost", "instructions", "with_programs"),
        [
            (0.01, None, True),
            (0.01, "propose", False),
            (0.06, None, False),
            (0.06, "propose", True),
            (None, "propose", True),
        ],
    )
    def test_hold_for_plfewshot(self, max_cost, instructions, with_programs):
        engine = Unreliable()
        more = {"programs": {"longer": student(OF_MANY_LENGTHS[:20])}} if with_programs else {}
        optimizer = PLFewShot(
            exact_match, max_cost=max_cost, max_metric_calls=80, instructions=instructions, **self.OPTIONS
        )
        with using(engine, MODEL, num_retries=1):
            optimizer.compile(student(0), trainset=OF_MANY_LENGTHS, **more)
        self.check(engine, optimizer.report, max_cost, 80)

    @pytest.mark.parametrize("max_cost", [0.02, 0.06])
    def test_hold_if_few_examples_are_long(self, max_cost):
        """The long examples come last, and a call on one costs as much as eight other calls."""
        long = [dspy.Example(question=f"long {i}" + " word" * 2_000, answer="answer 1") for i in range(2)]
        trainset = [*questions(220), *(example.with_inputs("question") for example in long)]
        engine = PricedEngine(tokens=prompt_tokens)
        with using(engine, MODEL):
            report = compiled(student(4), trainset, max_cost=max_cost, **self.OPTIONS)
        self.check(engine, report, max_cost, 1_000)
        assert engine.cost > 0.5 * max_cost

    @pytest.mark.parametrize("max_cost", [0.01, 0.06, None])
    def test_hold_for_choose_program(self, max_cost):
        engine = Unreliable()
        programs = [student(OF_MANY_LENGTHS[:number]) for number in (0, 4, 8)]
        options = {"max_cost": max_cost, "max_metric_calls": 100, **self.OPTIONS}
        with using(engine, MODEL, num_retries=1):
            report = choose_program(programs, exact_match, OF_MANY_LENGTHS, **options).report
        self.check(engine, report, max_cost, 100)

    def test_hold_for_headroom(self):
        engine = Unreliable()
        with using(engine, MODEL, num_retries=1):
            measured = headroom(
                student(4), exact_match, OF_MANY_LENGTHS, max_metric_calls=200, **self.OPTIONS
            )
        assert engine.num_calls <= measured.program_calls <= 200

    @staticmethod
    def check(engine, report, max_cost, max_calls):
        assert report.cost == pytest.approx(engine.cost)
        assert engine.cost <= (max_cost or math.inf)
        assert report.program_calls["total"] <= max_calls
        if report.proposals is None:
            assert engine.num_calls <= report.program_calls["total"]


A_CALL = 400 * PROMPT + 5 * COMPLETION


class TestMaxCost:
    @pytest.mark.parametrize(
        ("spread", "failing", "share", "num_threads", "seed"),
        [(0.0, 0.0, 0.8, 16, 0), (0.5, 0.1, 0.8, 16, 0), (0.5, 0.1, 0.25, 1, 1), (1.2, 0.05, 0.25, 1, 1)],
    )
    def test_is_not_exceeded_and_leaves_a_comparison(self, num_threads, spread, failing, share, seed):
        engine = uneven(spread=spread, failing=failing, seed=seed)
        mean = 400 * PROMPT * math.exp(spread**2 / 2) + 5 * COMPLETION
        limit = share * 200 * mean
        options = {"max_cost": limit, "max_metric_calls": 200, "num_threads": num_threads}
        with using(engine, MODEL):
            report = compiled(student(4), EXAMPLES[:40], max_errors=1000, seed=seed, **options)
        assert report.cost == pytest.approx(engine.cost)
        assert 0.5 * limit < engine.cost <= limit + (engine.largest_cost if spread > 1 else 1e-12)
        assert report.stopped.startswith("cost limit")
        # With spread 1.2, one call may cost a fifth of the limit and leave nothing for a comparison.
        if spread < 1:
            assert report.stopped == "cost limit"
            # If costs vary, a low limit may be too small to compare three orders on 8 examples.
            assert report.comparison.num_candidates >= 3 - (share < 0.5 and spread > 0)
            assert report.comparison.num_examples >= 4

    def test_a_larger_limit_continues_the_search(self, engine, tmp_path):
        whole = PLReorder(exact_match).estimate(student(), trainset=EXAMPLES).cost
        calls = []
        for share in (0.1, 0.3):
            report = compiled(max_cost=share * whole, log_dir=tmp_path)
            calls.append(report.program_calls["search"])
        first, second = calls
        assert second > 2 * first

    @pytest.mark.parametrize(("limit", "failing", "seed"), [(80, 0.1, 0), (150, 0.0, 1)])
    def test_bootstrapping_gets_a_part_of_the_limit(self, tmp_path, limit, failing, seed):
        engine = uneven(spread=0.3, failing=failing, seed=seed)
        runs = []
        for _ in range(2):  # The second run reads all calls of the first run from the log.
            options = {"max_metric_calls": 200, "max_errors": 1000, "num_threads": 4, "log_dir": tmp_path}
            chooser = PLFewShot(exact_match, max_cost=limit * A_CALL, seed=seed, **options)
            with using(engine, MODEL):
                program = chooser.compile(student(0), trainset=EXAMPLES)
            assert chooser.report.cost == pytest.approx(engine.cost)
            assert dollars(engine.cost) in str(chooser.report)
            assert chooser.report.comparison
            runs.append((engine.num_calls, chooser.report.comparison, program.demos))
        assert runs[0] == runs[1]
        assert 0.5 * limit * A_CALL < engine.cost <= limit * A_CALL
        assert chooser.report.program_calls["bootstrap"] <= 0.25 * limit

    @pytest.mark.parametrize("kind", [PLReorder, TopKOrder])
    @pytest.mark.parametrize("judge", [False, True])
    def test_holds_for_a_reasoning_model_in_many_threads(self, kind, judge):
        """The cost of the judge's calls is unknown until the judge has replied once."""

        def tokens(request):
            time.sleep(0.02)
            return {"input_tokens": 400, "output_tokens": 8_000}

        engine = PricedEngine(tokens=tokens)

        def ask(self, example, prediction):
            self.lm("is that right?")
            return exact_match(example, prediction)

        metric = fakes.Program(ask, lm=lm_of(engine, MODEL)) if judge else exact_match
        limited = kind(metric, max_cost=0.4, num_threads=16, display_progress=False)
        with using(engine, MODEL):
            limited.compile(student(), trainset=EXAMPLES)
        assert 0 < engine.cost <= 0.4
        assert limited.report.cost == pytest.approx(engine.cost)

    def test_an_estimate_says_that_calls_of_the_metric_are_not_included(self, engine):
        judge = dspy.Predict("question, answer -> verdict: bool")

        def judged(example, prediction, trace=None):
            if not prediction.answer or prediction.answer == example.answer:
                return bool(prediction.answer)
            return judge(question=example.question, answer=prediction.answer).verdict

        limits = {"max_metric_calls": 100, "display_progress": False}
        alone = PLReorder(exact_match, **limits).estimate(student(), trainset=EXAMPLES)
        with_judge = PLReorder(judged, **limits).estimate(student(), trainset=EXAMPLES)
        assert alone.cost > 0
        assert with_judge.cost is None
        assert with_judge.prompt_tokens == alone.prompt_tokens
        assert "the metric's calls to a language model are not included" in str(with_judge)
        assert "not included" not in str(alone)
        assert engine.num_calls == 0

    def test_an_expensive_teacher_needs_a_price_and_leaves_three_quarters_of_the_limit(
        self, engine, monkeypatch
    ):
        teacher = student(0)
        dear = PricedEngine()
        teacher.set_lm(lm_of(dear, "fake/dear"))
        options = {"max_metric_calls": 200, "num_threads": 4, "display_progress": False}
        chooser = PLFewShot(exact_match, max_cost=0.25, **options)
        message = "max_cost cannot be applied, because the price of fake/dear is unknown"
        with pytest.raises(ValueError, match=message):
            chooser.compile(student(0), teacher=teacher, trainset=EXAMPLES)
        assert engine.num_calls == dear.num_calls == 0
        set_price(monkeypatch, "fake/dear", 50 * PROMPT, 50 * COMPLETION)
        estimate = chooser.estimate(student(0), teacher=teacher, trainset=EXAMPLES)
        alone = chooser.estimate(student(0), trainset=EXAMPLES)
        assert estimate.cost > 3 * alone.cost
        chooser.compile(student(0), teacher=teacher, trainset=EXAMPLES)
        assert 0 < 50 * dear.cost <= 0.25 * 0.25
        assert chooser.report.cost == pytest.approx(engine.cost + 50 * dear.cost)
        assert chooser.report.program_calls["total"] > 0.9 * (200 - 16)

    @pytest.mark.parametrize("method", ["compile", "estimate"])
    @pytest.mark.parametrize("model", ["fake/other", "lm_studio/gpt-4o-mini"])
    def test_needs_a_price(self, engine, method, model):
        message = (
            f"max_cost cannot be applied, because the price of {model} is unknown: pass max_metric_calls"
        )
        method_of = getattr(PLReorder(exact_match, max_cost=1.0), method)
        with dspy.context(lm=lm_of(engine, model)), pytest.raises(ValueError, match=message):
            method_of(student(), trainset=EXAMPLES)
        assert engine.num_calls == 0

    def test_calls_in_threads_of_the_program_count(self, engine):
        def run(self, question):
            calls = [(self.answer, dspy.Example(question=question).with_inputs("question"))] * 2
            return dspy.Parallel(num_threads=2, disable_progress_bar=True)(calls)[0]

        report = compiled(fakes.Program(run, answer=student()), max_cost=100 * A_CALL, num_threads=4)
        assert report.cost == pytest.approx(engine.cost)
        assert 50 * A_CALL < engine.cost <= 100 * A_CALL

    def test_a_very_small_limit_ends_the_compile_without_a_comparison(self, engine):
        report = compiled(max_cost=10 * A_CALL, num_threads=4)
        assert engine.cost <= 10 * A_CALL
        assert report.stopped.startswith("cost limit")

    @pytest.mark.parametrize("usage", [{}, {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}])
    def test_a_server_that_reports_no_tokens_ends_the_compile_unless_tokens_are_free(
        self, engine, usage, monkeypatch
    ):
        def complete(request, whole=engine.complete):
            response = whole(request)
            object.__setattr__(response, "usage", type(response.usage)(**usage))
            return response

        monkeypatch.setattr(engine, "complete", complete)
        message = (
            f"max_cost cannot be applied, because the number of tokens in each reply of {MODEL} is unknown"
        )
        with pytest.raises(ValueError, match=message):
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

        message = "max_cost cannot be applied, because the price of fake/hidden is unknown"
        with pytest.raises(ValueError, match=message):
            PLReorder(metric, max_cost=10.0, num_threads=2).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls <= 2 * 2
