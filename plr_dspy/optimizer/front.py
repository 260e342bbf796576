"""The cheapest prompts that score as high as the returned program's."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import dspy

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
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate

PREDICTIONS = 1_000  # predictions that a reported cost is for


class PromptPrices:
    """Counts the tokens of programs' prompts, and prices a prediction at litellm's list prices.

    A server's prefix cache is assumed to hold instructions and fixed demos, but neither
    retrieved demos nor inputs.

    Args:
        examples: Scored examples, whose inputs are averaged.
        logged: Tokens of the compile's calls, whose answers are averaged.
    """

    def __init__(self, examples: Examples, logged: Sequence[Tokens]) -> None:
        self._examples = examples[:SAMPLED_PROMPTS]
        self._count = token_counter()
        self._inputs: dict[tuple[str, ...], float] = {}  # mean tokens of inputs, by the names of their fields
        answers: dict[str, list[int]] = defaultdict(list)
        for call in logged:
            for model, counts in call.items():
                if not counts.get(UNCOUNTED):
                    answers[model].append(counts.get("completion_tokens", 0))
        self._answers = {model: fmean(numbers) for model, numbers in answers.items()}

    def priced(self, score: ExpectedScore, program: dspy.Module) -> ExpectedScore:
        """Add the tokens and cost of a candidate's prompts; only its demos' tokens if they cannot be built."""
        usage: dict[str, Any] = defaultdict(Counter)
        num_tokens = 0
        try:
            for _, predictor in program.named_sub_modules(dspy.Predict):
                prefix = self._size(predictor, predictor.demos)
                retrieved = predictor.retrieval.num_tokens if isinstance(predictor, RetrievingPredict) else 0
                num_tokens += prefix + retrieved
                model = str((predictor.lm or dspy.settings.lm).model)
                prompt = prefix + retrieved + self._mean_inputs(predictor)
                usage[model].update(prompt_tokens=prompt, cached_tokens=prefix)
        except Exception:  # The adapter or litellm may fail; the other figures are still useful.
            return replace(score, prompt_tokens=score.tokens)
        for model, counts in usage.items():
            counts["completion_tokens"] = self._answers.get(model, math.nan)
        cost = cost_of(usage)
        known_cost = None if cost is None or math.isnan(cost) else PREDICTIONS * cost
        return replace(score, prompt_tokens=num_tokens, cost=known_cost)

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


@dataclass(frozen=True)
class Front:
    """The best candidate for each number of demos, instruction and kind.

    Attributes:
        prompts: The candidates from the cheapest to the dearest; by tokens if a price is
            unknown.
        reference: The returned program; the best candidate if that one was not scored.
    """

    prompts: Sequence[ExpectedScore]
    reference: ExpectedScore
    fitted: FittedModel
    min_probability: float | None
    build_program: Callable[[Candidate, Revision | None], dspy.Module]

    def build(self, prompt: ExpectedScore) -> dspy.Module:
        """Build a candidate's program."""
        return self.build_program(prompt.candidate, prompt.revision)

    def as_good(self, within: float) -> list[ExpectedScore]:
        """Return the candidates that score at most `within` less than the reference, cheapest first.

        A high estimate from few calls is not enough, because the model then gives a larger
        loss a high probability.
        """
        max_worse = 1.0 / (1.0 + MIN_ODDS) if self.min_probability is None else 1.0 - self.min_probability
        gains = self.fitted.gains(self.reference.candidate, margin=within)
        accepted = []
        for prompt in self.prompts:
            gain = gains[prompt.candidate]
            # If the reference's answers are revised, compare candidates that are revised
            # alike.
            worse = gain.worse if self.reference.revision is None else gain.worse_alike
            is_close = prompt.score >= self.reference.score - within - 1e-9
            if prompt.candidate == self.reference.candidate or (is_close and worse <= max_worse):
                accepted.append(prompt)
        return accepted

    def entries(self, slots: PoolSlots, returned: Candidate) -> list[FrontEntry]:
        """Return the report's entries."""
        as_good = self.as_good(AS_GOOD)
        entries = []
        for prompt in self.prompts:
            candidate = prompt.candidate
            shown = prompt.alternative(_name(slots, prompt), slots.shown(candidate), slots.instructions(candidate))
            entry = FrontEntry(
                **vars(shown),
                kind=prompt.kind,
                prompt_tokens=prompt.prompt_tokens,
                cost=prompt.cost,
                is_as_good=prompt in as_good,
                is_returned=candidate == returned,
            )
            entries.append(entry)
        return entries


def priced_prompts(scores: Sequence[ExpectedScore], slots: PoolSlots, prices: PromptPrices) -> list[ExpectedScore]:
    """Price the prompts of candidates; return the candidates from the cheapest to the dearest."""
    prompts = [prices.priced(score, slots.build(score.candidate)) for score in scores]
    is_priced = all(prompt.cost is not None for prompt in prompts)
    return sorted(prompts, key=lambda prompt: (prompt.cost if is_priced else 0.0, prompt.prompt_tokens, -prompt.score))


def _name(slots: PoolSlots, score: ExpectedScore) -> str:
    """Return the report's name for a candidate."""
    if score.kind == "program":
        return slots.rivals[score.candidate].name
    name = count(score.num_demos, f"{score.kind} demo") if score.num_demos else "no demos"
    if score.kind == "original":
        name = "your program" if score.revision is None else "your program, calibrated"
    for predictor, number in slots.instructions(score.candidate).items():
        if number:
            name += f", instruction {number} of {predictor}"
    return name
