"""The estimated cost of a compile run, and the budget that limits this cost."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plr_dspy.compiling.plan import Plan
from plr_dspy.errors import UserError
from plr_dspy.optimizer.call_sizes import CallSize, CallSizes
from plr_dspy.optimizer.demos import teacher_of
from plr_dspy.optimizer.proposal_sizes import CALLS_PER_PROPOSAL, ProposalSizes
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.slots import PoolSlots, WholeProgramSlots
from plr_dspy.programs.splits import Examples
from plr_dspy.programs.tokens import has_counted_tokenizer
from plr_dspy.report.formats import count, dollars
from plr_dspy.scoring.budget import Budget, price_of
from plr_dspy.scoring.run_log import RunLog
from plr_dspy.search.space import Candidate


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a compile run. Its string form has two lines, plus one for each note or warning.

    Attributes:
        program_calls: Maximum number of program calls in all phases.
        bootstrap_calls: Maximum number of program calls that bootstrap demos before the search.
        proposal_calls: Approximate number of prompt-model calls that propose instructions.
            `program_calls` does not include them.
        plan: The plan for the search and all later phases, with the number of program calls in
            each phase.
        prompt_tokens: Upper estimate of the number of tokens in all prompts, counted with
            GPT-4o's tokenizer. A program is assumed to call each predictor once. If the search
            chooses demos, all prompts are assumed to show the maximum number of demos and the
            longest instruction. These demos are assumed to be longer than almost any random
            draw. A field that neither demos nor examples have, such as reasoning, is assumed to
            have 100 tokens. None if prompts cannot be built.
        cost: Upper estimate of the cost in US dollars at litellm's list prices. Answers are
            assumed to be as long as in the demos or examples. The estimate ignores `max_cost`,
            hidden reasoning tokens, and prompts that are sent again because a reply could not be
            parsed. None if prompts cannot be built, a price is unknown, or the metric calls a
            language model.
        affordable_calls: Approximate number of program calls that `max_cost` covers. It equals
            `program_calls` if `max_cost` is None or at least `cost`. None if `cost` is None.
        new_prompt_tokens: Approximate number of prompt tokens that a server with a prefix cache
            must process, if the cache holds only the previous prompt. None if unknown.
        cost_with_cache: Approximate cost if all prompt tokens except `new_prompt_tokens` are
            billed as cached tokens. None if this cost is unknown or not below `cost`.
        warning: A warning that prompts may exceed a model's context window. Empty if no prompt
            is too long, if litellm does not know the size of the window, and for `headroom` and
            `choose_program`.
        has_other_tokenizer: Whether a model's tokenizer differs, or may differ, from GPT-4o's.
            If so, token counts may be off by about 15%.
        metric_calls_model: Whether the cost is unknown only because the metric calls a language
            model. No figure includes the metric's calls to this model.
    """

    program_calls: int
    bootstrap_calls: int
    plan: Plan
    prompt_tokens: int | None
    cost: float | None
    affordable_calls: int | None
    proposal_calls: int = 0
    new_prompt_tokens: int | None = None
    cost_with_cache: float | None = None
    warning: str = ""
    has_other_tokenizer: bool = False
    metric_calls_model: bool = False

    def __str__(self) -> str:
        text = f"at most {count(self.program_calls, 'program call')}"
        if self.proposal_calls:
            text += f" and about {self.proposal_calls:,} calls to the prompt model"
        if self.prompt_tokens is not None:
            text += f", up to about {self.prompt_tokens:,} prompt tokens"
        if self.new_prompt_tokens is not None:
            text += f" ({self.new_prompt_tokens:,} uncached if the server has a prefix cache)"
        if self.cost is not None:
            text += f", up to about {dollars(self.cost)} (if answers are as long as in the demos)"
        if self.cost_with_cache is not None:
            text += f", or {dollars(self.cost_with_cache)} with a prefix cache"
        if self.affordable_calls is not None and self.affordable_calls < self.program_calls:
            text += f"; max_cost may end the run after about {count(self.affordable_calls, 'call')}"
        plan = self.plan
        phases = {
            "bootstrapped demos": self.bootstrap_calls,
            "search": plan.program_calls - plan.race_calls - plan.comparison_calls,
            "race": plan.race_calls,
            "final comparison": plan.comparison_calls,
        }
        calls = ", ".join(f"{phase} {number:,}" for phase, number in phases.items() if number > 0)
        text += f"\n  calls: {calls or 'none'}"
        if self.has_other_tokenizer and self.prompt_tokens:
            text += "\n  tokens are counted with GPT-4o's tokenizer; the model's own may give about 15% more or fewer"
        if self.metric_calls_model:
            text += "\n  the metric's calls to a language model are not included, so the cost is unknown"
        return f"{text}\nwarning: {self.warning}" if self.warning else text


@dataclass(frozen=True)
class CallRange:
    """The size of a call, with the minimum and maximum number of calls of this size in a run."""

    size: CallSize | None
    min_calls: int
    max_calls: int


def estimate_cost(
    setup: CompileSetup,
    calls_of: Mapping[Candidate, tuple[int, int]] | None = None,
    examples: Examples | None = None,
) -> Estimate:
    """Estimate the cost of a compile run, including calls that bootstrap demos or propose instructions.

    Args:
        setup: The setup of the run.
        calls_of: Each candidate's minimum and maximum number of calls. None means that the run
            searches for candidates.
        examples: The examples on which these calls are made, or None if they are unknown.
    """
    plan = setup.plan
    num_attempts = len(setup.attempts)
    num_calls = plan.program_calls + num_attempts
    if not num_calls:
        return Estimate(0, 0, plan, 0, 0.0, 0)
    sizes = CallSizes(setup, examples=examples)
    if calls_of is None:
        ranges = _ranges_of_search(setup, sizes)
    else:
        ranges = []
        for candidate, limits in calls_of.items():
            ranges.append(CallRange(sizes.of_program(setup.slots.build(candidate)), *limits))
    scoring = largest_total(ranges, plan.program_calls)
    teaching: CallSize | None = CallSize()
    if num_attempts:
        one_attempt = sizes.of_program(teacher_of(setup))
        teaching = None if one_attempt is None else one_attempt * num_attempts
    proposing = ProposalSizes(setup).of_all() if setup.proposals else CallSize()
    total = None if scoring is None or teaching is None else scoring + teaching + proposing
    cost = sizes.price(total)
    affordable_calls = None
    cost_with_cache = None
    if total is not None and cost is not None:
        affordable_calls = num_calls
        max_cost = setup.options.max_cost
        if max_cost is not None and cost > max_cost:
            cost_of_proposing = proposing.cost or 0.0
            share = (max_cost - cost_of_proposing) / (cost - cost_of_proposing)
            affordable_calls = max(0, int(num_calls * share))
        with_cache = total.cost_with_cache
        if calls_of is None and with_cache is not None and with_cache < cost - 1e-9:
            cost_with_cache = with_cache
    return Estimate(
        program_calls=num_calls,
        bootstrap_calls=num_attempts,
        plan=plan,
        prompt_tokens=None if total is None else round(total.prompt_tokens),
        cost=cost,
        affordable_calls=affordable_calls,
        proposal_calls=CALLS_PER_PROPOSAL * len(setup.proposals) + num_revisions(setup),
        new_prompt_tokens=None if total is None or calls_of is not None else round(total.new_tokens),
        cost_with_cache=cost_with_cache,
        has_other_tokenizer=total is not None and not all(map(has_counted_tokenizer, total.usage)),
        metric_calls_model=total is not None and total.cost is not None and sizes.metric_calls_model,
    )


def _ranges_of_search(setup: CompileSetup, sizes: CallSizes) -> list[CallRange]:
    """Return the call ranges of a search. Each whole program is called at most once per example."""
    slots = setup.slots
    whole: list[Candidate] = [*slots.space.programs]
    if isinstance(slots, PoolSlots):
        whole.append(slots.original)
    ranges = [CallRange(sizes.of_arrangements(), 0, setup.plan.program_calls)]
    for candidate in whole:
        size = sizes.of_program(slots.build(candidate))
        ranges.append(CallRange(size, 0, len(setup.scored_examples)))
    return ranges


def largest_total(ranges: Sequence[CallRange], num_calls: int) -> CallSize | None:
    """Return the largest total size that `num_calls` calls within these ranges can have.

    Return None if the size of any call is unknown.
    """
    sizes = [call_range.size for call_range in ranges if call_range.size is not None]
    if len(sizes) < len(ranges):
        return None
    weights = [size.cost for size in sizes]
    if None in weights:
        weights = [size.prompt_tokens for size in sizes]
    num_left = num_calls - sum(call_range.min_calls for call_range in ranges)
    total = CallSize()
    for number in sorted(range(len(sizes)), key=lambda number: -(weights[number] or 0.0)):
        call_range = ranges[number]
        num_more = max(0, min(num_left, call_range.max_calls - call_range.min_calls))
        num_left -= num_more
        total += sizes[number] * (call_range.min_calls + num_more)
    return total


def num_revisions(setup: CompileSetup) -> int:
    """Return the maximum number of instructions proposed during the search. Each takes one call."""
    return len(setup.slots.alternatives) if setup.proposals else 0


def make_budget(setup: CompileSetup, log: RunLog | None = None) -> Budget:
    """Return the budget for a compile run.

    Args:
        setup: The setup of the run.
        log: The log of earlier runs' calls. None means that there are no earlier calls.

    Raises:
        ValueError: If `max_cost` is set but a model's price is unknown.
    """
    options = setup.options
    max_calls = sys.maxsize
    if setup.plan.max_metric_calls is not None:
        max_calls = setup.plan.max_metric_calls + len(setup.attempts) + len(setup.proposals)
    expected_cost = None
    largest_cost = 0.0
    extra_costs: dict[int, float] = {}
    check_prices(setup)
    if options.max_cost is not None:
        sizes = CallSizes(setup)
        expected_cost, largest_cost = _costs_of_a_call(setup, sizes)
        extra_costs = sizes.extra_costs()
    budget = Budget(
        log or RunLog(),
        max_calls=max_calls,
        max_seconds=options.max_seconds,
        started=setup.started,
        max_cost=options.max_cost,
        expected_cost=expected_cost,
        extra_costs=extra_costs,
    )
    budget.largest_cost = max(budget.largest_cost, largest_cost)
    return budget


def check_prices(setup: CompileSetup) -> None:
    """Raise a ValueError if `max_cost` is set but a model's price is unknown."""
    options = setup.options
    if options.max_cost is None:
        return
    models = [*setup.models, *language_models(options.metric)]
    if setup.teacher is not None and setup.attempts:
        models += language_models(setup.teacher)
    if setup.prompt_model is not None:
        models.append(setup.prompt_model)
    unknown = {str(lm.model) for lm in models if price_of(str(lm.model)) is None}
    if unknown:
        raise UserError(
            f"max_cost cannot be applied, because the price of {', '.join(sorted(unknown))} is unknown: pass "
            "max_metric_calls instead of max_cost"
        )


def _costs_of_a_call(setup: CompileSetup, sizes: CallSizes) -> tuple[float | None, float]:
    """Return the expected cost of a call and the cost to reserve for a call.

    Both costs are for an example of mean length. The expected cost is None if it is unknown.
    """
    cost_of_arrangements = sizes.price(sizes.of_arrangements())
    costs = [sizes.price(sizes.of_program(rival.program)) for rival in setup.rivals]
    expected_cost = cost_of_arrangements
    if isinstance(setup.slots, WholeProgramSlots):
        # Expect the lowest cost, so that a race starts even if its first program is expensive. The
        # cost to reserve still keeps each call within the budget.
        expected_cost = min((cost for cost in costs if cost is not None), default=None)
    known = [cost for cost in (cost_of_arrangements, *costs) if cost is not None]
    return expected_cost, max(known, default=0.0)
