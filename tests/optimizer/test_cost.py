"""What compiles cost in dollars: the report's and the estimate's figure, and `max_cost`."""

import json
import sys

import dspy
import litellm
import pytest
from fakes import OrderSensitiveEngine, exact_match, questions

from plr_dspy import PLReorder
from plr_dspy.lm.prices import cost_of, price_of
from plr_dspy.report.html import excerpt, page
from plr_dspy.report.report import Report
from plr_dspy.report.text import dollars

EXAMPLES = questions(60)
PROMPT, COMPLETION = 2e-6, 8e-6
MODEL = "fake/priced"


class PricedEngine(OrderSensitiveEngine):
    """Adds up what its calls cost."""

    def __init__(self):
        super().__init__({example.question: example.answer for example in EXAMPLES})
        self.cost = 0.0

    def complete(self, request):
        response = super().complete(request)
        usage = response.usage
        with self._lock:
            self.cost += usage.input_tokens * PROMPT + usage.output_tokens * COMPLETION
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
    with dspy.context(lm=dspy.LM(MODEL, engine=engine, cache=False)):
        yield engine


def student(num_demos=6):
    program = dspy.Predict("question -> answer")
    program.demos = EXAMPLES[:num_demos]
    return program


def optimizer(metric=exact_match, **options):
    return PLReorder(metric, **{"num_threads": 4, "display_progress": False, **options})


def compiled(**options):
    reorder = optimizer(**options)
    reorder.compile(student(), trainset=EXAMPLES)
    return reorder.report


class TestPrices:
    def test_come_with_litellm_and_without_its_import(self, monkeypatch):
        known = price_of("openai/gpt-4o-mini")
        monkeypatch.delitem(sys.modules, "litellm")
        assert price_of("openai/gpt-4o-mini") == known
        assert 0 < known.cached < known.prompt < known.completion
        assert price_of(MODEL) is None  # registered in litellm alone

    @pytest.mark.parametrize(
        "model", ["lm_studio/gpt-4o-mini", "openai/my-own", "fake/other", "", "/", "openai/"]
    )
    def test_are_not_those_of_another_provider(self, model):
        assert price_of(model) is None

    @pytest.mark.parametrize("missing", ["input_cost_per_token", "output_cost_per_token"])
    def test_need_both(self, missing, monkeypatch):
        monkeypatch.delitem(litellm.model_cost[MODEL], missing)
        assert price_of(MODEL) is None

    @pytest.mark.parametrize(
        "counts",
        [
            {"cached_tokens": 600},
            {"cached_tokens": 600, "cache_read_input_tokens": 600},
            {"cache_read_input_tokens": 600},
        ],
    )
    def test_cached_tokens_are_among_those_of_the_prompt_and_count_once(self, counts):
        tokens = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010, **counts}
        assert cost_of({MODEL: tokens}) == pytest.approx(400 * PROMPT + 60 * PROMPT + 10 * COMPLETION)

    def test_what_a_cache_takes_in_is_never_free(self, monkeypatch):
        tokens = {MODEL: {"prompt_tokens": 1000, "cache_creation_tokens": 400}}
        for written, expected in [(None, 1000 * PROMPT), (0.0, 1000 * PROMPT), (3 * PROMPT, 1800 * PROMPT)]:
            monkeypatch.setitem(litellm.model_cost[MODEL], "cache_creation_input_token_cost", written)
            assert cost_of(tokens) == pytest.approx(expected)

    def test_one_unknown_model_makes_a_sum_unknown(self):
        assert cost_of({MODEL: {"prompt_tokens": 1}, "fake/other": {"prompt_tokens": 1}}) is None

    @pytest.mark.parametrize(
        ("cost", "text"),
        [(0.0, "$0.00"), (1234.5, "$1,234.50"), (0.1, "$0.10"), (0.0123, "$0.012"), (4.2e-6, "$0.0000042")],
    )
    def test_are_written_as_people_do(self, cost, text):
        assert dollars(cost) == text


class TestReport:
    def test_gives_what_the_calls_cost(self, engine, tmp_path):
        report = compiled(max_metric_calls=150, log_dir=tmp_path)
        assert report.cost == pytest.approx(engine.cost)
        assert dollars(engine.cost) in str(report)
        assert dollars(engine.cost) in page(report)
        assert dollars(engine.cost) in excerpt(report)
        assert Report.load(tmp_path / "report.json").cost == report.cost
        assert json.loads(json.dumps(report.to_dict()))["schema_version"] == 8

    def test_earlier_parts_are_paid_for_too(self, engine, tmp_path):
        compiled(max_metric_calls=150, log_dir=tmp_path)
        report = compiled(max_metric_calls=150, log_dir=tmp_path)
        assert report.program_calls["resumed"] == report.program_calls["total"]
        assert report.cost == pytest.approx(engine.cost)

    def test_knows_what_the_provider_had_in_its_cache(self, engine, monkeypatch):
        def cached(request, complete=engine.complete):
            response = complete(request)
            object.__setattr__(response.usage, "cache_read_tokens", 7)
            return response

        monkeypatch.setattr(engine, "complete", cached)
        report = compiled(max_metric_calls=150)
        num_cached = 7 * engine.num_calls
        assert report.tokens[MODEL]["cached_tokens"] == num_cached
        assert report.cost == pytest.approx(engine.cost - 0.9 * PROMPT * num_cached)

    def test_is_unknown_where_a_price_is(self, engine):
        with dspy.context(lm=dspy.LM("fake/other", engine=engine, cache=False)):
            report = compiled(max_metric_calls=150)
        assert report.cost is None
        assert "$" not in str(report) + excerpt(report)

    def test_a_judge_without_a_price_makes_it_unknown(self, engine):
        class Judge(dspy.Module):
            def __init__(self):
                super().__init__()
                self.judge = dspy.Predict("question, answer -> score: float")
                self.judge.lm = dspy.LM("fake/judge", engine=engine, cache=False)

            def forward(self, example, prediction):
                return float(exact_match(example, prediction))  # asks nobody, this time

        assert compiled(metric=Judge(), max_metric_calls=150).cost is None
        assert optimizer(Judge()).estimate(student(), trainset=EXAMPLES).cost is None

    def test_a_free_model_costs_nothing(self, engine, monkeypatch):
        for kind in ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"):
            monkeypatch.setitem(litellm.model_cost[MODEL], kind, 0.0)
        report = compiled(max_metric_calls=150)
        assert report.cost == 0.0
        assert "$0.00" in str(report)


class TestEstimate:
    def test_prices_the_prompts_and_answers_as_long_as_the_demos(self, engine):
        program = student()
        found = optimizer().estimate(program, trainset=EXAMPLES)
        messages = dspy.ChatAdapter().format(program.signature, program.demos, {"question": "question 50"})
        answers = [message for message in messages if message["role"] == "assistant"]
        count = litellm.token_counter("gpt-4o", messages=messages)
        answer = litellm.token_counter("gpt-4o", messages=answers) / len(answers)
        expected = found.program_calls * (count * PROMPT + answer * COMPLETION)
        assert found.cost == pytest.approx(expected, rel=0.02)
        assert f"about {dollars(found.cost)} (answers as long as the demos')" in str(found)
        assert engine.num_calls == 0

    def test_is_unknown_without_a_price(self, engine):
        with dspy.context(lm=dspy.LM("fake/other", engine=engine, cache=False)):
            found = optimizer().estimate(student(), trainset=EXAMPLES)
        assert found.cost is None
        assert "$" not in str(found)

    def test_is_unknown_where_demos_show_no_answer(self, engine):
        class Two(dspy.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = student(), dspy.Predict("question -> answer")

            def forward(self, question):
                self.second(question=question)
                return self.first(question=question)

        found = optimizer().estimate(Two(), trainset=EXAMPLES)
        assert found.prompt_tokens is not None
        assert found.cost is None

    def test_asks_the_metric_nothing(self, engine):
        def metric(example, prediction):
            raise AssertionError

        assert optimizer(metric).estimate(student(), trainset=EXAMPLES).cost > 0

    def test_every_model_has_its_price(self, engine, monkeypatch):
        class Two(dspy.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = student(), student()
                self.second.lm = dspy.LM("fake/dear", engine=engine, cache=False)

            def forward(self, question):
                self.second(question=question)
                return self.first(question=question)

        def cost_of_a_call():
            found = optimizer().estimate(Two(), trainset=EXAMPLES)
            return found.cost and found.cost / found.program_calls

        assert cost_of_a_call() is None
        entry = litellm.model_cost[MODEL]
        monkeypatch.setitem(
            litellm.model_cost, "fake/dear", {k: v if isinstance(v, str) else 9 * v for k, v in entry.items()}
        )
        dear = cost_of_a_call()
        monkeypatch.setitem(litellm.model_cost, "fake/dear", entry)
        assert dear == pytest.approx(5 * cost_of_a_call())
