"""The cheapest prompts that score as high as the returned program's."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import dspy

from plr_dspy.compiling.choice import Decision
from plr_dspy.compiling.comparison import MIN_ODDS
from plr_dspy.optimizer.estimate import SAMPLED_PROMPTS, inputs_of
from plr_dspy.optimizer.expected_scores import ExpectedScore
from plr_dspy.programs.slots import PoolSlots, messages_of
from plr_dspy.programs.splits import Examples
from plr_dspy.programs.tokens import token_counter
from plr_dspy.report.schema import AS_GOOD, FrontEntry
from plr_dspy.report.text import count
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.scoring.budget import UNCOUNTED, cost_of
from plr_dspy.scoring.run_log import Tokens
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate

PREDICTIONS = 1_000  # predictions that a reported cost is for


@dataclass(frozen=True)
class PricedPrompt:
    """A candidate's expected score, the tokens of its prompts without inputs, and dollars per prediction if known."""

    score: ExpectedScore
    tokens: int
    cost: float | None


class PromptPrices:
    """Counts the tokens of programs' prompts, and prices a prediction at litellm's list prices.

    A server's prefix cache is assumed to hold instructions and fixed demos, but neither retrieved demos nor inputs.

    Args:
        examples: Scored examples, whose inputs are averaged.
        logged: Tokens of the compile's calls, whose answers are averaged.
    """

    def __init__(self, examples: Examples, logged: Sequence[Tokens]) -> None:
        self._examples = examples[:SAMPLED_PROMPTS]
        self._count = token_counter()
        self._answers = _mean_answers(logged)
        self._inputs: dict[tuple[str, ...], float] = {}  # tokens by the names of the input fields

    def priced(self, score: ExpectedScore, program: dspy.Module) -> PricedPrompt:
        """Return a candidate with the size of its program's prompts; with its demos alone if they cannot be built."""
        predictors = [part for _, part in program.named_sub_modules() if isinstance(part, dspy.Predict)]
        usage: dict[str, Any] = defaultdict(Counter)
        num_tokens = 0
        try:
            for predictor in predictors:
                cached = self._size(predictor, predictor.demos)
                retrieved = predictor.retrieval.num_tokens if isinstance(predictor, RetrievingPredict) else 0
                num_tokens += cached + retrieved
                prompt = cached + retrieved + self._mean_inputs(predictor)
                lm = predictor.lm or dspy.settings.lm
                usage[str(lm.model)].update(prompt_tokens=prompt, cached_tokens=cached)
        except Exception:  # The adapter or litellm may fail; the other figures are still useful.
            return PricedPrompt(score, score.tokens, None)
        for model, counts in usage.items():
            counts["completion_tokens"] = self._answers.get(model, math.nan)
        cost = cost_of(usage)
        if cost is not None and math.isnan(cost):
            cost = None
        return PricedPrompt(score, num_tokens, cost)

    def _size(self, predictor: dspy.Predict, demos: Sequence[Any]) -> int:
        """Return the tokens of a prompt with these demos and empty inputs."""
        return self._count(messages_of(predictor, demos, dict.fromkeys(predictor.signature.input_fields, "")))

    def _mean_inputs(self, predictor: dspy.Predict) -> float:
        """Return the mean tokens of a predictor's inputs."""
        fields = tuple(predictor.signature.input_fields)
        if fields not in self._inputs:
            prompts = [messages_of(predictor, [], inputs_of(predictor, example)) for example in self._examples]
            self._inputs[fields] = fmean(map(self._count, prompts)) - self._size(predictor, [])
        return self._inputs[fields]


def _mean_answers(logged: Sequence[Tokens]) -> dict[str, float]:
    """Return the mean tokens of a program call's answers, by model, over the calls that report them."""
    answers: dict[str, list[int]] = defaultdict(list)
    for call in logged:
        for model, counts in call.items():
            if not counts.get(UNCOUNTED):
                answers[model].append(counts.get("completion_tokens", 0))
    return {model: fmean(numbers) for model, numbers in answers.items()}


@dataclass(frozen=True)
class Front:
    """The best candidate for each number of demos, instruction and kind.

    Attributes:
        prompts: The candidates from the cheapest to the dearest; by tokens if a price is unknown.
        returned: The returned program.
        min_probability: As in `PLReorder`.
    """

    prompts: Sequence[PricedPrompt]
    returned: ExpectedScore
    fitted: FittedModel
    min_probability: float | None

    def as_good(self, within: float) -> list[PricedPrompt]:
        """Return the candidates that score at most `within` less than the returned program, cheapest first.

        The expected score must be that high, and the model must give it the same certainty as a choice requires.
        So few calls are not enough: wide intervals make a worse score probable too.
        """
        max_worse = 1.0 / (1.0 + MIN_ODDS) if self.min_probability is None else 1.0 - self.min_probability
        worse = self.probabilities_worse(within)
        accepted = []
        for prompt in self.prompts:
            is_close = self.returned.score - prompt.score.score <= within + 1e-9
            if prompt.score == self.returned or (is_close and worse[prompt.score.candidate] <= max_worse):
                accepted.append(prompt)
        return accepted

    def probabilities_worse(self, within: float) -> Mapping[Candidate, float]:
        """Return each candidate's probability of scoring more than `within` less than the returned program."""
        gains = self.fitted.gains(self.returned.candidate, margin=within)
        # If the returned program's answers are revised, compare it with candidates that are revised alike.
        is_revised = self.returned.revision is not None
        return {candidate: gain.worse_alike if is_revised else gain.worse for candidate, gain in gains.items()}

    def entries(self, slots: PoolSlots) -> list[FrontEntry]:
        """Return the report's entries."""
        as_good = self.as_good(AS_GOOD)
        worse = self.probabilities_worse(AS_GOOD)
        entries = []
        for prompt in self.prompts:
            score = prompt.score
            alternative = score.alternative(
                _name(slots, score), slots.shown(score.candidate), slots.instructions(score.candidate)
            )
            entry = FrontEntry(
                **vars(alternative),
                kind=score.kind,
                prompt_tokens=prompt.tokens,
                cost=None if prompt.cost is None else PREDICTIONS * prompt.cost,
                probability_worse=worse[score.candidate],
                is_as_good=prompt in as_good,
                is_returned=score == self.returned,
            )
            entries.append(entry)
        return entries


def make_front(
    scores: Sequence[ExpectedScore],
    slots: PoolSlots,
    decision: Decision,
    fitted: FittedModel,
    prices: PromptPrices,
    *,
    min_probability: float | None,
) -> Front | None:
    """Price the candidates' prompts; return None if the returned program was not scored."""
    returned = next((score for score in scores if score.candidate == decision.ordering), None)
    if returned is None:
        return None
    prompts = [prices.priced(score, slots.build(score.candidate)) for score in scores]
    if any(prompt.cost is None for prompt in prompts):
        prompts.sort(key=lambda prompt: (prompt.tokens, -prompt.score.score))
    else:
        prompts.sort(key=lambda prompt: (prompt.cost, prompt.tokens, -prompt.score.score))
    return Front(prompts, returned, fitted, min_probability)


def _name(slots: PoolSlots, score: ExpectedScore) -> str:
    """Return the report's name for a candidate."""
    if score.kind == "program":
        return slots.rivals[score.candidate].name
    name = count(score.num_demos, f"{score.kind} demo") if score.num_demos else "no demos"
    if score.kind == "original":
        name = "your program" if score.revision is None else f"your program, {score.revision.adjective}"
    instructions = slots.instructions(score.candidate)
    for predictor, number in instructions.items():
        if number:
            name += f", instruction {number}"
            name += f" of {predictor}" if len(instructions) > 1 else ""
    return name
