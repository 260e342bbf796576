"""The front: the best prompts with their scores and costs. `program_with` builds programs from it."""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import dspy

from plr_dspy.dspy_compat import model_of
from plr_dspy.errors import UserError
from plr_dspy.optimizer.call_sizes import SAMPLED_PROMPTS, inputs_of
from plr_dspy.optimizer.expected_scores import ExpectedScore
from plr_dspy.optimizer.prompt_sizes import prompt_tokens, retrieved_tokens, tokens_before_inputs
from plr_dspy.programs.attached_results import sub_modules
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.slots import PoolSlots, messages_of
from plr_dspy.programs.splits import Examples
from plr_dspy.programs.tokens import token_counter
from plr_dspy.report.formats import count
from plr_dspy.report.rules import ENOUGH_SCORED, MIN_ODDS
from plr_dspy.report.schema import AS_GOOD, FrontEntry, ReportData
from plr_dspy.scoring.budget import UNCOUNTED, cost_of
from plr_dspy.scoring.run_log import Tokens
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

PREDICTIONS = 1_000  # number of predictions that a reported cost covers


@dataclass(frozen=True)
class Prompt:
    """The expected score, the number of tokens and the cost of a candidate's prompts."""

    expected: ExpectedScore
    tokens: int  # number of tokens in instructions and demos, without the inputs
    cost: float | None  # cost of 1,000 predictions in US dollars; None if unknown


class PromptPrices:
    """The costs of predictions at litellm's list prices.

    A server's prefix cache is assumed to hold instructions and fixed demos, but not retrieved demos
    or inputs.

    Args:
        examples: Scored examples. New inputs are assumed to have the mean length of these
            examples' inputs.
        logged: Token counts of the finished calls. New answers are assumed to have the mean
            length of these calls' answers.
    """

    def __init__(self, examples: Examples, logged: Sequence[Tokens]) -> None:
        self._examples = examples[:SAMPLED_PROMPTS]
        self._count = token_counter()
        self._inputs: dict[tuple[str, ...], float] = {}  # mean number of tokens in inputs, keyed by fields
        answers: dict[str, list[int]] = defaultdict(list)
        for call in logged:
            for model, counts in call.items():
                if not counts.get(UNCOUNTED):
                    answers[model].append(counts.get("completion_tokens", 0))
        self._answers = {model: fmean(numbers) for model, numbers in answers.items()}

    def of(self, program: dspy.Module) -> float | None:
        """Return the cost of `PREDICTIONS` predictions with a program, or None if it is unknown."""
        usage: dict[str, Any] = defaultdict(Counter)
        try:
            for _, predictor in sub_modules(program, dspy.Predict):
                prefix = tokens_before_inputs(predictor, predictor.demos)
                model = str(model_of(predictor).model)
                prompt = prefix + retrieved_tokens(predictor) + self._mean_inputs(predictor)
                usage[model].update(prompt_tokens=prompt, cached_tokens=prefix)
        except Exception:  # If the adapter or litellm fails, the other figures are still useful.
            return None
        for model, counts in usage.items():
            counts["completion_tokens"] = self._answers.get(model, math.nan)
        cost = cost_of(usage)
        return None if cost is None or math.isnan(cost) else PREDICTIONS * cost

    def _mean_inputs(self, predictor: dspy.Predict) -> float:
        """Return the mean number of tokens in a predictor's inputs."""
        fields = tuple(predictor.signature.input_fields)
        if fields not in self._inputs:
            prompts = [
                messages_of(predictor, [], inputs_of(predictor, example)) for example in self._examples
            ]
            self._inputs[fields] = fmean(map(self._count, prompts)) - tokens_before_inputs(predictor, [])
        return self._inputs[fields]


def _digests_of_demos(lists: Iterable[Sequence[Any]]) -> tuple[str, ...]:
    """Return a digest of each list of demos, in sorted order. Empty lists are omitted."""
    return tuple(sorted(digest([dict(demo.items()) for demo in demos]) for demos in lists if demos))


def _copies_of_programs(slots: PoolSlots, expected: Sequence[ExpectedScore]) -> dict[Candidate, Candidate]:
    """Return the user's programs that arrangements copy, keyed by arrangement.

    The search may build such copies, because it tries the demos and instructions of the user's
    programs. Other arrangements are omitted.
    """
    programs = {rival.digest: program for program, rival in slots.rivals.items()}
    digests = {
        _digests_of_demos(predictor.demos for predictor in rival.predictors)
        for rival in slots.rivals.values()
    }
    copies = {}
    for score in expected:
        # Compare the demos first, because building and digesting a program takes longer.
        if score.kind == "fixed" and _digests_of_demos(slots.demos(score.candidate).values()) in digests:
            program = programs.get(Rival("", slots.build(score.candidate)).digest)
            if program is not None:
                copies[score.candidate] = program
    return copies


def _without_copies_of_programs(
    slots: PoolSlots, expected: Sequence[ExpectedScore], returned: Candidate
) -> list[ExpectedScore]:
    """Return the expected scores, except those of arrangements that copy one of the user's programs.

    If a copy was returned, it is kept under the name of the user's program, and the program's own
    entry is omitted. If the user's program was not scored, its copies are kept.
    """
    copies = _copies_of_programs(slots, expected)
    scored = {score.candidate for score in expected}
    distinct = []
    for score in expected:
        program = copies.get(score.candidate)
        if program is not None and score.candidate == returned:
            entry = score.entry.model_copy(update={"name": slots.rivals[program].name})
            distinct.append(replace(score, kind="program", entry=entry))
        elif program in scored or score.candidate == copies.get(returned):
            continue  # Another entry is kept for this program.
        else:
            distinct.append(score)
    return distinct


class Front:
    """The best candidate for each combination of kind, number of demos and instruction.

    Args:
        slots: The search space.
        expected: The expected scores of all candidates, best first.
        returned: The candidate that `compile` returned.
        prices: The prices from which costs are computed.
        fitted: The score model, fitted to all scores.
        min_probability: As in `PLFewShot`.
        build_program: A function that builds a candidate's program, given the candidate and the
            revision of its answers.

    Attributes:
        prompts: The candidates, cheapest first. If any price is unknown, they are sorted by
            number of tokens instead, fewest first.
        reference: The returned candidate or, if it was not scored, the best candidate.
    """

    def __init__(
        self,
        slots: PoolSlots,
        expected: Sequence[ExpectedScore],
        returned: Candidate,
        *,
        prices: PromptPrices,
        fitted: FittedModel,
        min_probability: float | None,
        build_program: Callable[[Candidate, Revision | None], dspy.Module],
    ) -> None:
        self._returned = returned
        self._fitted = fitted
        self._min_probability = min_probability
        self._build_program = build_program
        best: dict[Any, ExpectedScore] = {}
        distinct = _without_copies_of_programs(slots, expected, returned)
        for score in sorted(distinct, key=lambda score: score.candidate != returned):
            name = score.candidate if score.kind == "program" else score.kind
            best.setdefault((name, score.entry.num_demos, *score.entry.instructions.values()), score)
        self.reference = next(iter(best.values()))
        prompts = []
        for score in best.values():
            program = slots.build(score.candidate)
            tokens = prompt_tokens(slots, score.candidate, program)
            prompts.append(Prompt(score, tokens, prices.of(program)))
        is_priced = all(prompt.cost is not None for prompt in prompts)
        self.prompts = sorted(
            prompts,
            key=lambda prompt: (
                prompt.cost if is_priced else 0.0,
                prompt.tokens,
                -prompt.expected.entry.score,
            ),
        )

    def build(self, prompt: Prompt) -> dspy.Module:
        """Log which candidate of the front is built, and return its program as it was scored."""
        entry = prompt.expected.entry
        name = entry.name
        if prompt.expected.candidate == self._returned:
            name += ", the same as best_program"
        logger.info(
            "program_with builds this prompt: %s; expected score %.3f, from %s",
            name,
            entry.score,
            count(entry.num_examples, "example"),
        )
        if entry.num_examples < ENOUGH_SCORED and prompt.expected.candidate != self._returned:
            logger.warning(
                "this prompt was scored on only %s, so its score is mostly inferred from similar prompts: compare it "
                "with the returned program on new examples before you use it",
                count(entry.num_examples, "example"),
            )
        return self._build_program(prompt.expected.candidate, prompt.expected.revision)

    def with_num_demos(self, num_demos: object, report: ReportData) -> Prompt:
        """Return the candidate in ``report.best_by_number`` with this number of demos.

        Raises:
            ValueError: If there is no such candidate.
        """
        # The report lists the front in the order of `prompts`.
        places = {entry.num_demos: report.front.index(entry) for entry in report.best_by_number}
        if type(num_demos) is not int or num_demos not in places:
            raise UserError(
                f"num_demos must be the number of fixed demos in a scored prompt; got {num_demos!r}: pass "
                f"{' or '.join(map(str, places))}"
            )
        return self.prompts[places[num_demos]]

    def as_good(self, within: float) -> list[Prompt]:
        """Return the candidates expected to score at most `within` less than the reference, cheapest first.

        The probability of a larger loss must also be low. This condition excludes candidates whose
        high scores were estimated from only a few calls.

        Raises:
            ValueError: If `within` is not a finite number of at least 0.
        """
        if type(within) not in (int, float) or not 0 <= within < math.inf:
            raise UserError(
                f"within must be a finite number of at least 0; got {within!r}: pass a number such as 0.01"
            )
        max_worse = 1.0 / (1.0 + MIN_ODDS) if self._min_probability is None else 1.0 - self._min_probability
        reference = self.reference
        gains = self._fitted.gains(reference.candidate, margin=within)
        accepted = []
        for prompt in self.prompts:
            candidate = prompt.expected.candidate
            if candidate == reference.candidate:
                accepted.append(prompt)
                continue
            # If the reference's answers are revised, compare them with the candidate's revised answers.
            worse = gains[candidate].worse if reference.revision is None else gains[candidate].worse_alike
            entry = prompt.expected.entry
            is_close = entry.score >= reference.entry.score - within - 1e-9
            if is_close and worse <= max_worse:
                accepted.append(prompt)
        return accepted

    def entries(self) -> list[FrontEntry]:
        """Return the candidates as entries for ``report.front``, cheapest first."""
        as_good = self.as_good(AS_GOOD)
        return [
            FrontEntry(
                **vars(prompt.expected.entry),
                kind=prompt.expected.kind,
                prompt_tokens=prompt.tokens,
                cost=prompt.cost,
                is_as_good=prompt in as_good,
                is_returned=prompt.expected.candidate == self._returned,
            )
            for prompt in self.prompts
        ]
