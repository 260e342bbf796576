"""The front: the best prompt of each kind, its cost, and the cheapest prompt that is about as good."""

import re
from collections import Counter
from dataclasses import replace
from statistics import mean

import dspy
import every_function
import fakes
import litellm
import pytest
from fakes import LabelEngine, digest, exact_match, questions, student, using
from label_engines import exact
from label_world import EXAMPLES as LABELED
from label_world import Engine, labeled
from label_world import student as with_demos

from plr_dspy import CalibratedProgram, PlainTextAdapter, PLFewShot, Report
from plr_dspy.optimizer.expected_scores import ExpectedScore
from plr_dspy.optimizer.front import Front, PromptPrices
from plr_dspy.programs.instructions import Instruction
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.slots import PooledDemo, PoolSlots
from plr_dspy.report.schema import Alternative

EXAMPLES = questions(90)
MODEL = "fake/order-sensitive"
PROMPT = 1e-6
CACHED = 1e-7
ANSWER = 4e-6
ANSWER_TOKENS = 5  # tokens in each reply of a fake LM


@pytest.fixture(params=[None, CACHED])
def cached_price(request, monkeypatch):
    """Set the prices of the fake model, and return the price of a cached token."""
    prices = {} if request.param is None else {"cache_read_input_token_cost": request.param}
    fakes.set_price(monkeypatch, MODEL, PROMPT, ANSWER, **prices)
    return request.param or PROMPT


def compiled(program=None, *, trainset=EXAMPLES, metric=exact_match, **options):
    program = program or dspy.Predict("question -> answer")
    options = {"max_metric_calls": 100, "max_demos": 3, "candidates": "labeled", **options}
    return every_function.compiled(PLFewShot, metric, program, trainset, **options)


def counted(predictor, demos, question=""):
    """Count the tokens in a prompt with GPT-4o's tokenizer."""
    inputs = dict.fromkeys(predictor.signature.input_fields, question)
    messages = dspy.ChatAdapter().format(predictor.signature, demos, inputs)
    return litellm.token_counter("gpt-4o", messages=messages)


def dollars(cached, fresh, cached_price, answers=1):
    """Return the cost of 1,000 predictions in US dollars."""
    return 1_000 * (cached * cached_price + fresh * PROMPT + answers * ANSWER_TOKENS * ANSWER)


def in_question(predictor):
    """Return the number of tokens in a question. All questions have the same number."""
    return counted(predictor, [], "question 7") - counted(predictor, [])


def with_answers_of(response, tokens):
    """Return a response that counts as this number of tokens."""
    object.__setattr__(response, "usage", replace(response.usage, output_tokens=tokens))
    return response


class LongReasoning(fakes.OrderSensitiveEngine):
    """An engine that counts the tokens in prompts, and 300 tokens in each reply with reasoning."""

    def complete(self, request):
        reasons = "reasoning" in request.messages[-1].text
        return with_answers_of(super().complete(request), 300 if reasons else ANSWER_TOKENS)


@pytest.fixture
def measured_engine():
    """Use an engine that counts the tokens in prompts."""
    answers = {example.question: example.answer for example in EXAMPLES}
    with using(LongReasoning(answers, tokens=fakes.prompt_tokens)) as engine:
        yield engine


def measured_cost(program):
    """Return what 1,000 predictions like one prediction with a program cost, if nothing is cached."""
    with dspy.track_usage() as tracker:
        program(question="question 50")
    counts = tracker.get_total_tokens()[MODEL]
    return 1_000 * (PROMPT * counts["prompt_tokens"] + ANSWER * counts["completion_tokens"])


def vote():
    """Return a program that asks five times."""

    def five_times(self, question):
        answers = [self.answer(question=question) for _ in range(5)]
        return answers[0]

    return fakes.Program(five_times, answer=dspy.Predict("question -> answer"))


def with_passages():
    """Return a program that adds a long text to its prompts."""

    def retrieve(self, question):
        return self.answer(context=f"{question}: " + "one of many words " * 200, question=question)

    return fakes.Program(retrieve, answer=dspy.Predict("context, question -> answer"))


@pytest.fixture(scope="module")
def without_prices():
    """Return an optimizer that compiled a program with a model without prices."""
    with using(fakes.engine_for(EXAMPLES)):
        _, optimizer = compiled()
    return optimizer


with_cached_price = pytest.mark.parametrize("cached_price", [CACHED], indirect=True)
"""A mark for tests that run only with a separate price for cached tokens."""


class TestCost:
    def test_instructions_and_fixed_demos_cost_the_cached_price(self, engine, cached_price):
        _, optimizer = compiled()
        front = optimizer.report.front
        assert {entry.num_demos for entry in front} == {0, 1, 2, 3}
        for entry in front:
            built = optimizer.program_with(entry.num_demos)
            prefix = counted(built, built.demos)
            assert entry.prompt_tokens == prefix
            expected = dollars(prefix, in_question(built), cached_price)
            assert entry.cost == pytest.approx(expected, rel=1e-9)
        assert [entry.cost for entry in front] == sorted(entry.cost for entry in front)

    @with_cached_price
    def test_retrieved_demos_cost_the_full_price(self, engine, cached_price):
        program, optimizer = compiled(demos="retrieved")
        front = optimizer.report.front
        retrieved = [entry for entry in front if entry.kind == "retrieved"]
        assert {entry.num_demos for entry in retrieved} <= {1, 3}
        assert retrieved
        without = counted(program, [])
        for entry in retrieved:
            demos = entry.prompt_tokens - without
            assert demos == pytest.approx(counted(program, EXAMPLES[: entry.num_demos]) - without, abs=1)
            expected = dollars(without, demos + in_question(program), cached_price)
            assert entry.cost == pytest.approx(expected, rel=1e-9)
            assert entry.name == f"{entry.num_demos} retrieved demo{'s' if entry.num_demos > 1 else ''}"

    @with_cached_price
    def test_prompts_of_all_predictors_are_counted(self, engine, cached_price):
        """Each example takes two model calls. The second prompt contains the hint from the first call."""
        program, optimizer = compiled(fakes.two_predictors())
        for entry in optimizer.report.front:
            built = optimizer.program_with(entry.num_demos)
            prefix = sum(counted(predictor, predictor.demos) for predictor in built.predictors())
            assert entry.prompt_tokens == prefix
            fresh = (entry.cost - dollars(prefix, 0, cached_price, answers=2)) / (1_000 * PROMPT)
            assert 2 * in_question(program.hint) <= fresh + 1e-6 <= 40

    @with_cached_price
    def test_user_programs_and_longer_instructions_have_their_own_entries(
        self, measured_engine, cached_price
    ):
        other = student(5)
        other.signature = other.signature.with_instructions("Answer well, whatever the question.")
        text = "Answer in two words, of which the second one is a number."
        _, optimizer = compiled(programs={"theirs": other}, instructions=[text], max_metric_calls=150)
        front = optimizer.report.front
        (theirs,) = (entry for entry in front if entry.kind == "program")
        assert theirs.name == "theirs"
        assert theirs.prompt_tokens == counted(other, other.demos)
        assert theirs.cost == pytest.approx(dollars(theirs.prompt_tokens, in_question(other), cached_price))
        keys = Counter((entry.kind, entry.num_demos, entry.instructions["self"]) for entry in front)
        assert set(keys.values()) == {1}
        own = dspy.Predict("question -> answer")
        instructed = own.deepcopy()
        instructed.signature = own.signature.with_instructions(text)
        # The last number stands for the instruction of the user's program.
        predictors = {0: own, 1: instructed, 2: other}
        numbers = {entry.instructions["self"] for entry in front if entry.kind == "fixed"}
        assert {0, 1} <= numbers <= {0, 1, 2}
        for entry in front:
            if entry.kind == "fixed":
                shown = [EXAMPLES[0] for _ in range(entry.num_demos)]
                number = entry.instructions["self"]
                assert entry.prompt_tokens == counted(predictors[number], shown)
                assert entry.name.endswith(f", instruction {number} of self") == (number > 0)

    def test_a_prompt_of_a_user_program_is_listed_only_under_the_name_of_the_program(self, engine):
        """The search also tries the instruction of "gepa" without demos, and so builds "gepa" again."""
        other = student(0)
        other.signature = other.signature.with_instructions("Answer well, whatever the question.")
        other.detailed_results = {"val_aggregate_scores": [0.5]}  # GEPA attaches such results.
        _, optimizer = compiled(programs={"gepa": other}, max_metric_calls=150)
        without_demos = [entry for entry in optimizer.report.front if not entry.num_demos]
        assert sorted(entry.name for entry in without_demos) == ["gepa", "your program, 0 demos"]
        (instruction,) = optimizer.report.instructions[0].alternatives[1:]
        assert instruction.origin == "gepa"
        assert instruction.score is not None

    @pytest.mark.parametrize("cached_price", [None], indirect=True)
    @pytest.mark.parametrize("program", [vote(), dspy.ChainOfThought("question -> answer")])
    def test_a_user_program_costs_as_much_as_its_own_calls(self, program, measured_engine, cached_price):
        _, optimizer = compiled(student(3), min_demos=3, programs={"theirs": program})
        front = optimizer.report.front
        (theirs,) = (entry for entry in front if entry.kind == "program")
        assert theirs.cost == pytest.approx(measured_cost(program), rel=0.01)
        (own,) = (entry for entry in front if entry.kind == "original")
        assert own.cost == pytest.approx(measured_cost(student(3)), rel=0.01)
        assert own.cost < theirs.cost
        assert measured_cost(optimizer.program_with(within=1)) < theirs.cost

    def test_the_cost_of_a_user_program_that_chooses_its_model_is_unknown(self, engine):
        """The predictor's model differs from the model that is called."""

        def ask_another(self, question):
            with dspy.context(lm=fakes.lm_of(engine, "fake/other")):
                return self.answer(question=question)

        program = fakes.Program(ask_another, answer=dspy.Predict("question -> answer"))
        _, optimizer = compiled(student(3), min_demos=3, programs={"theirs": program})
        (theirs,) = (entry for entry in optimizer.report.front if entry.kind == "program")
        assert theirs.cost is None

    @pytest.mark.parametrize("cached_price", [None], indirect=True)
    @pytest.mark.parametrize("program", [vote(), with_passages()])
    def test_arrangements_cost_as_much_as_the_students_calls(self, program, measured_engine, cached_price):
        _, optimizer = compiled(program)
        for entry in optimizer.report.front:
            built = optimizer.program_with(entry.num_demos)
            assert entry.cost == pytest.approx(measured_cost(built), rel=0.02)

    @pytest.mark.parametrize("cached_price", [None], indirect=True)
    def test_calls_of_the_prompt_model_do_not_count(self, measured_engine, cached_price):
        class LongProposals(fakes.ProposingEngine):
            def complete(self, request):
                return with_answers_of(super().complete(request), 400)

        prompt_model = fakes.lm_of(LongProposals("Answer.", "Name it."), MODEL)
        _, optimizer = compiled(instructions="propose", prompt_model=prompt_model)
        (own,) = (entry for entry in optimizer.report.front if entry.kind == "original")
        assert own.cost == pytest.approx(measured_cost(dspy.Predict("question -> answer")), rel=0.01)

    def test_without_prices_the_front_is_sorted_by_tokens(self, without_prices):
        front = without_prices.report.front
        assert {entry.cost for entry in front} == {None}
        assert [entry.num_demos for entry in front] == [0, 1, 2, 3]

    def test_if_a_prompt_cannot_be_built_only_its_demos_are_counted(self):
        class Picky(dspy.ChatAdapter):
            def format(self, signature, demos, inputs):
                assert all(inputs.values()), "inputs must not be empty"
                return super().format(signature, demos, inputs)

        lm = fakes.lm_of(fakes.engine_for(EXAMPLES))
        with dspy.context(lm=lm, adapter=Picky(use_json_adapter_fallback=False)):
            _, optimizer = compiled()
        for entry in optimizer.report.front:
            assert entry.cost is None
            assert entry.prompt_tokens == entry.tokens


COPY = ((0, 1), (1,))  # an arrangement that equals the user's program


def front_of(candidates, returned):
    """Return the kind and name of each entry in the front of a search with one user program.

    `candidates` holds the scored candidates, best first. "program" stands for the user program,
    which shows two demos.
    """
    own = dspy.Predict("question -> answer")
    other = student(2)
    other.signature = other.signature.with_instructions("Answer well.")
    slots = PoolSlots(
        own,
        {"self": [PooledDemo(demo, "theirs", 9) for demo in other.demos]},
        min_demos=0,
        max_demos=2,
        max_tokens=None,
        rivals=[Rival("theirs", other)],
        alternatives={
            "self": [Instruction(program.signature.instructions, "") for program in (own, other)]
        },
    )
    (program,) = slots.rivals
    expected = []
    for candidate in candidates:
        kind = "program" if candidate == "program" else "fixed"
        name = "theirs" if candidate == "program" else f"arrangement {candidate}"
        candidate = program if candidate == "program" else candidate
        entry = Alternative(name=name, score=0.5, num_examples=30, num_demos=2)
        expected.append(ExpectedScore(candidate, kind, None, entry))
    front = Front(
        slots,
        expected,
        returned,
        prices=PromptPrices(slots, [], []),
        fitted=None,
        min_probability=None,
        build_program=None,
    )
    return [(prompt.expected.kind, prompt.expected.entry.name) for prompt in front.prompts]


class TestCopiesOfPrograms:
    """Arrangements of demos and instructions that equal one of the user's programs."""

    def test_a_copy_is_dropped_if_the_program_was_scored(self):
        assert front_of([COPY, "program"], returned=((), (0,))) == [("program", "theirs")]

    def test_a_copy_is_kept_if_the_program_was_not_scored(self):
        """For example, the cost limit may be reached before the program is scored."""
        assert front_of([COPY], returned=((), (0,))) == [("fixed", f"arrangement {COPY}")]

    @pytest.mark.parametrize("candidates", [["program", COPY], [COPY, "program"], [COPY]])
    def test_a_returned_copy_has_the_name_of_the_program(self, candidates):
        assert front_of(candidates, returned=COPY) == [("program", "theirs")]

    @pytest.mark.parametrize("arrangement", [((1, 0), (1,)), ((0, 1), (0,))])
    def test_another_order_or_instruction_is_another_prompt(self, arrangement):
        entries = front_of([arrangement, "program"], returned=arrangement)
        assert sorted(entries) == [("fixed", f"arrangement {arrangement}"), ("program", "theirs")]


class Plain(fakes.OrderSensitiveEngine):
    """An engine for plain prompts that is more accurate if the prompt shows more demos."""

    def __init__(self):
        super().__init__({})

    def answer(self, system, texts):
        number = re.findall(r"question (\d+)", texts[-1])[-1]
        knows = digest(texts[-1]) < 0.2 + 0.1 * texts[-1].count("Answer:")
        return f" answer {int(number) % 3}" if knows else " wrong"


class TestReport:
    @pytest.mark.parametrize("demos", ["fixed", "retrieved"])
    @pytest.mark.parametrize("adapter", [PlainTextAdapter(), None], ids=["plain", "chat"])
    def test_a_prompt_has_as_many_tokens_in_the_front_as_in_the_text(self, adapter, demos):
        engine = fakes.engine_for(EXAMPLES) if adapter is None else Plain()
        adapter = adapter or dspy.ChatAdapter(use_json_adapter_fallback=False)
        with dspy.context(lm=fakes.lm_of(engine), adapter=adapter):
            _, optimizer = compiled(demos=demos)
        report = optimizer.report
        (own,) = (entry for entry in report.front if entry.kind == "original")
        (returned,) = (entry for entry in report.front if entry.is_returned)
        assert report.original.prompt_tokens == own.prompt_tokens
        assert report.returned.prompt_tokens == returned.prompt_tokens
        assert f"your program, 0 demos ({own.prompt_tokens} prompt tokens)" in str(report)
        assert f"({returned.prompt_tokens} prompt tokens)" in str(report)
        for entry in report.front:
            assert entry.prompt_tokens == pytest.approx(own.prompt_tokens + entry.tokens, abs=1)

    @with_cached_price
    def test_the_front_is_saved_with_the_report(self, engine, cached_price, tmp_path):
        _, optimizer = compiled()
        report = optimizer.report
        report.save(tmp_path / "report.json")
        loaded = Report.load(tmp_path / "report.json")
        assert loaded == report
        assert loaded.front == report.front
        assert loaded.best_by_number == report.best_by_number

    def test_the_best_program_with_each_number_of_demos_is_in_the_front(self, engine):
        program, optimizer = compiled(program=student(2), instructions=["Answer."])
        report = optimizer.report
        (returned,) = (entry for entry in report.front if entry.is_returned)
        assert returned.is_as_good
        assert returned.num_demos == len(program.demos)
        for best in report.best_by_number:
            rivals = [entry.score for entry in report.front if entry.num_demos == best.num_demos]
            assert best.is_returned or best.score == max(rivals)

    def test_undominated_prompts_are_listed_and_plotted(self, without_prices):
        report = without_prices.report
        undominated = report.undominated
        for entry in report.front:
            cheaper = [other.score for other in report.front[: report.front.index(entry)]]
            assert (entry in undominated) == all(score < entry.score for score in cheaper)
        _, prompts = report.plot().axes
        assert len(prompts.containers) == len(undominated)
        assert {text.get_text() for text in prompts.get_legend().get_texts()} == {
            entry.name for entry in undominated
        }


class TestCheapest:
    @pytest.mark.parametrize("calibrate", [False, True])
    def test_the_cheapest_program_is_built_if_any_loss_is_allowed(self, calibrate):
        options = {"calibrate": calibrate, "min_probability": 0.0, "metric": exact, "seed": 2}
        with using(Engine(), "fake/x"):
            program, optimizer = compiled(with_demos(), trainset=LABELED, **options)
            cheapest = optimizer.program_with(within=1)
            as_good = optimizer.program_with(within=0)
        assert len(program.predictors()[0].demos) > 0
        assert cheapest.predictors()[0].demos == []
        for built in (program, cheapest, as_good):
            assert isinstance(built, CalibratedProgram) == calibrate

    def test_a_log_line_says_which_prompt_is_built(self, engine, caplog):
        program, optimizer = compiled(student(2), max_demos=1)
        (own,) = (entry for entry in optimizer.report.front if entry.kind == "original")
        assert own.name == "your program, 2 demos"
        with caplog.at_level("INFO", "plr_dspy.optimizer.front"):
            built = optimizer.program_with(num_demos=2)
            assert built.demos == student(2).demos
            assert f"builds this prompt: {own.name}" in caplog.text
            assert f"expected score {own.score:.3f}, from {own.num_examples} examples" in caplog.text
            caplog.clear()
            built = optimizer.program_with(within=0)
            is_returned = built.demos == program.demos
            assert ("the same as best_program" in caplog.text) == is_returned
        (row,) = (line for line in optimizer.report.details().splitlines() if "(returned)" in line)
        (returned,) = (entry.name for entry in optimizer.report.front if entry.is_returned)
        assert row.startswith(f"  {returned} (returned) ")

    def test_the_first_entry_that_is_as_good_is_built(self, engine):
        for seed in range(2):
            program, optimizer = compiled(seed=seed)
            first = next(entry for entry in optimizer.report.front if entry.is_as_good)
            built = optimizer.program_with(within=0.01)
            assert len(built.demos) == first.num_demos <= len(program.demos)
            assert ("a cheaper prompt is probably as good" in str(optimizer.report)) == (
                not first.is_returned
            )

    def test_there_is_a_front_after_an_interrupt_but_not_after_an_error(self):
        with using(fakes.engine_for(EXAMPLES, at={100: fakes.interrupt})):
            optimizer = PLFewShot(exact_match, max_metric_calls=150, num_threads=1, display_progress=False)
            with pytest.raises(KeyboardInterrupt):
                optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
            built = optimizer.program_with(within=0.01)
        first = next(entry for entry in optimizer.report.front if entry.is_as_good)
        assert len(built.demos) == first.num_demos
        with using(fakes.engine_for(EXAMPLES, at=dict.fromkeys(range(100, 999), fakes.failure))):
            with pytest.raises(Exception, match=r".+"):
                optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
            with pytest.raises(ValueError, match="call compile first"):
                optimizer.program_with(within=0.01)
        assert optimizer.report.front == []

    def test_bad_arguments(self, without_prices):
        for arguments in ({}, {"num_demos": 1, "within": 0.01}):
            with pytest.raises(ValueError, match="pass exactly one"):
                without_prices.program_with(**arguments)
        for within in (-0.01, float("nan"), float("inf"), "0.01", True):
            with pytest.raises(ValueError, match="within must be a finite number of at least 0"):
                without_prices.program_with(within=within)
        with pytest.raises(ValueError, match="call compile first"):
            PLFewShot(exact_match).program_with(within=0.01)


LABELS = ["yes", "no"]


def label_of(text):
    return LABELS[digest(text) < 0.5]


def losses(chance, within, *, num_compiles, demos=0):
    """Return the loss in true score from `within` in each compile, and how often `within` drops demos.

    Args:
        chance: Returns the true score, given the number of demos.
        within: As in `program_with`.
        demos: Number of the student's demos.
    """
    lost = []
    num_shorter = 0
    for seed in range(num_compiles):

        def chances(shown, text, seed=seed):
            is_right = digest(f"{seed}{shown}{text}") < chance(len(shown))
            return (0.8, 0.2) if is_right == (label_of(text) == "yes") else (0.2, 0.8)

        trainset = [labeled(f"text {seed} {i}", label_of(f"text {seed} {i}")) for i in range(120)]
        own = [dspy.Example(text=f"demo {i}", label=LABELS[i % 2]) for i in range(demos)]
        options = {
            "trainset": trainset,
            "metric": exact,
            "max_demos": 6,
            "seed": seed,
            "max_metric_calls": 200,
        }
        with using(LabelEngine(LABELS, chances, logprobs=False)):
            program, optimizer = compiled(student(own, "text -> label: Literal['yes', 'no']"), **options)
        shorter = optimizer.program_with(within=within)
        lost.append(chance(len(program.demos)) - chance(len(shorter.demos)))
        num_shorter += len(shorter.demos) < len(program.demos)
    return lost, num_shorter


class TestSimulatedWorlds:
    def test_useful_demos_are_kept(self):
        """Each demo increases the true score by 0.06, so no cheaper program is as good."""
        lost, _ = losses(lambda num_demos: 0.5 + 0.06 * num_demos, 0.01, num_compiles=4)
        assert sum(loss > 0.01 for loss in lost) <= 1
        assert mean(lost) <= 0.01

    def test_useless_demos_are_dropped(self):
        """Demos do not change the true score, so dropping the student's demos costs nothing."""
        lost, num_shorter = losses(lambda num_demos: 0.75, 0.05, num_compiles=6, demos=4)
        assert lost == [0.0 for _ in range(6)]
        assert num_shorter >= 3
