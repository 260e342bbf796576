"""The order of calls for a server with a prefix cache, and the number of uncached prompt tokens."""

import itertools
from operator import itemgetter
from statistics import fmean

import dspy
import numpy as np
import pytest
from fakes import (
    LabelEngine,
    OrderSensitiveEngine,
    digest,
    exact_match,
    lm_of,
    prompt_tokens,
    questions,
    request_messages,
)

from plr_dspy import OrderingSpace, PLFewShot, Report, ThompsonSearch
from plr_dspy.programs.prefixes import MOST_EXAMPLES, PromptPrefixes
from plr_dspy.programs.slots import PooledDemo, PoolSlots, messages_of
from plr_dspy.programs.tokens import token_counter
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.prefixes import by_prefix, num_new_items
from plr_dspy.search.space import WholeProgram

EXAMPLES = questions(120)
QUESTION = {"question": "What?"}


class CountingEngine(OrderSensitiveEngine):
    """An engine that reports the number of tokens in its prompts, and records the prompts in order."""

    def __init__(self):
        answers = {example.question: example.answer for example in EXAMPLES}
        super().__init__(answers, tokens=prompt_tokens)
        self.prompts = []
        self._count = token_counter()

    def complete(self, request):
        self.prompts.append(request_messages(request))
        return super().complete(request)

    def new_tokens(self):
        """Count each prompt's tokens after the messages that the previous prompt also had."""
        total = 0
        for last, prompt in itertools.pairwise([[], *self.prompts]):
            shared = [
                message for message, other in zip(prompt[:-1], last, strict=False) if message == other
            ]
            total += self._count(prompt) - self._count([*shared, *prompt[-1:]]) + self._count(prompt[-1:])
        return total


def compiled(engine, **options):
    limits = {"max_metric_calls": 150, "max_demos": 4, "candidates": "labeled", "num_threads": 1}
    optimizer = PLFewShot(exact_match, display_progress=False, **{**limits, **options})
    with dspy.context(lm=lm_of(engine), adapter=dspy.ChatAdapter()):
        optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    return optimizer.report


def pool_slots():
    demos = [
        PooledDemo(dspy.Example(example), f"trainset[{i}]", 9) for i, example in enumerate(EXAMPLES[:4])
    ]
    program = dspy.Predict("question -> answer")
    return PoolSlots(program, {"self": demos}, min_demos=0, max_demos=4, max_tokens=None)


@pytest.fixture(scope="module")
def single():
    engine = CountingEngine()
    return engine, compiled(engine)


class TestCalls:
    def test_of_an_arrangement_are_consecutive_and_neighbors_share_demos(self, single):
        engine, _ = single
        shown = [tuple(message["content"] for message in prompt[:-1]) for prompt in engine.prompts]
        runs = [demos for demos, _ in itertools.groupby(shown)]
        assert len(runs) < len(shown) / 3
        beginnings = [demos for last, demos in itertools.pairwise(runs) if demos[: len(last)] == last]
        assert len(beginnings) > len(runs) / 4

    @pytest.mark.parametrize("options", [{"num_threads": 4}, {"max_metric_calls": 150}])
    def test_give_the_same_report_with_more_threads_and_after_a_resume(self, single, tmp_path, options):
        _, report = single
        engine = CountingEngine()
        first = compiled(engine, log_dir=tmp_path, **options)
        again = compiled(engine, log_dir=tmp_path, **options)
        assert again.program_calls["resumed"] == again.program_calls["total"] == len(engine.prompts)
        for other in (first, again):
            assert other.new_prompt_tokens == report.new_prompt_tokens
            assert other.slots == report.slots
            assert other.history == report.history


class TestUncachedTokens:
    def test_are_counted_for_a_known_sequence(self):
        slots = pool_slots()
        first, second, third = [((0, 1),), ((0, 1, 2),), ((2,),)]
        count = token_counter()
        predictor = slots.program
        of_demos = [count(messages_of(predictor, [slot], QUESTION)) for slot in EXAMPLES[:3]]
        alone = count(messages_of(predictor, [], QUESTION))
        question = count(messages_of(predictor, [], QUESTION)[-1:])
        instructions = alone - question
        sizes = [size - alone for size in of_demos]
        sent = [
            alone + sizes[0] + sizes[1],
            alone + sizes[0] + sizes[1],
            alone + sum(sizes),
            alone + sizes[2],
        ]
        calls = [({"m": {"prompt_tokens": tokens}}) for tokens in sent]
        prefixes = PromptPrefixes(slots.build)
        order = [first, first, second, third]
        new = [sent[0], question, sizes[2] + question, sizes[2] + question]
        assert prefixes.num_new(zip(order, calls, strict=True)) == pytest.approx(sum(new), abs=12)
        assert prefixes.num_shared(first, second) == prefixes.size(first)
        assert (
            prefixes.num_shared(second, third) == prefixes.size(((),)) == pytest.approx(instructions, abs=3)
        )

    def test_are_unknown_without_usage_and_cached_answers_send_no_prompt(self):
        prefixes = PromptPrefixes(pool_slots().build)
        sent = {"m": {"prompt_tokens": 500}}
        assert prefixes.num_new([(((0,),), sent), (((1,),), {})]) == 500
        assert prefixes.num_new([(((0,),), sent), (((1,),), {"m": {"replies_without_usage": 1}})]) is None

    def test_agree_with_the_count_of_the_server(self, single):
        engine, report = single
        sent = sum(tokens["prompt_tokens"] for tokens in report.tokens.values())
        assert report.new_prompt_tokens == pytest.approx(engine.new_tokens(), rel=0.1)
        assert report.new_prompt_tokens < 0.8 * sent
        # The server's cache may differ from the assumed cache, so both lines say what they count.
        details = report.details()
        (model,) = report.tokens
        assert f"tokens of {model}, as the server counted them: " in details
        assumption = "would not be cached if a cache held only the previous prompt"
        assert f"{assumption}: about {report.new_prompt_tokens:,}\n" in f"{details}\n"
        assert Report.model_validate_json(report.model_dump_json()) == report

    def test_are_estimated_before_a_compile(self, single):
        _, report = single
        optimizer = PLFewShot(exact_match, max_metric_calls=150, max_demos=4, candidates="labeled")
        model = "openai/gpt-4o-mini"  # a model with a price for cached tokens
        with dspy.context(lm=lm_of(CountingEngine(), model), adapter=dspy.ChatAdapter()):
            estimate = optimizer.estimate(dspy.Predict("question -> answer"), trainset=EXAMPLES)
        assert estimate.new_prompt_tokens == pytest.approx(report.new_prompt_tokens, rel=0.3)
        assert f"({estimate.new_prompt_tokens:,} uncached if the server has a prefix cache)" in str(
            estimate
        )
        assert 0 < estimate.cost_with_cache < estimate.cost


class TestSharedDemos:
    def test_arrangements_with_more_uncached_demos_are_scored_on_more_examples(self, single):
        engine, _ = single
        longest = {}
        for demos, run in itertools.groupby(engine.prompts, key=itemgetter(slice(0, -1))):
            longest[len(demos)] = max(longest.get(len(demos), 0), len(list(run)))
        assert longest[9] >= 5
        assert MOST_EXAMPLES >= 5

    def test_log_probabilities_allow_fewer_examples_per_arrangement(self):
        def probabilities(demos, text):
            share = digest(f"{demos} {text}")
            return [share, 1 - share]

        rows = [dspy.Example(question=f"Question {i}?", answer="ab"[i % 2]) for i in range(100)]
        trainset = [row.with_inputs("question") for row in rows]
        mean_lengths = {}
        for signal in ("auto", "score"):
            engine = LabelEngine(["a", "b"], probabilities)
            options = {"max_metric_calls": 200, "max_demos": 8, "num_threads": 1, "signal": signal}
            optimizer = PLFewShot(exact_match, **options)
            with dspy.context(lm=lm_of(engine), adapter=dspy.ChatAdapter()):
                optimizer.compile(dspy.Predict("question -> answer: Literal['a', 'b']"), trainset=trainset)
            searched = engine.prompts[: optimizer.report.program_calls["search"]]
            runs = itertools.groupby(prompt[:-1] for prompt in searched)
            lengths = [len(list(run)) for demos, run in runs if len(demos) > 8]
            mean_lengths[optimizer.report.signal.used] = fmean(lengths)
        assert 2.5 < mean_lengths["logprobs"] < mean_lengths["score"]

    def test_with_log_probabilities_the_first_round_does_not_repeat_demos_for_the_cache(self):
        space = OrderingSpace.of_sizes(40, max_length=8, identity=((),))
        responses = LabelResponses(np.eye(2), lambda *cell: None)
        options = {"num_examples": 60, "num_initial": 30}
        first, second = (ThompsonSearch(space, responses=responses, **options) for _ in range(2))
        assert first.ask() == second.fresh(30, ())

    def test_prompts_of_the_first_round_share_demos_but_show_most_of_the_pool(self):
        space = OrderingSpace.of_sizes(40, max_length=8, identity=((),))
        search = ThompsonSearch(space, num_examples=60, num_initial=30)
        asked = search.ask()
        assert len(set(asked)) == len(asked) == 30
        assert asked[0] == ((),)
        new_items = [
            num_new_items(last, ordering) for last, ordering in itertools.pairwise(by_prefix(asked))
        ]
        assert sum(new_items) <= 2 * len(asked)
        shown = set(itertools.chain.from_iterable(items for (items,) in asked))
        assert len(shown) >= 35
        assert {len(items) for (items,) in asked} == set(range(9))

    def test_orderings_follow_whole_programs_sorted_by_instruction_then_by_demos(self):
        program = WholeProgram(0, "nearest last")
        orderings = [((1, 0), (1,)), ((0,), (0,)), ((1,), (1,)), ((0, 2), (0,))]
        expected = [program, ((0,), (0,)), ((0, 2), (0,)), ((1,), (1,)), ((1, 0), (1,))]
        assert by_prefix([*orderings, program]) == expected
