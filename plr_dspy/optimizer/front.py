"""The front: the best prompts with their scores and costs. `program_with` builds programs from it."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, linear_regression
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


@dataclass(frozen=True)
class PromptSize:
    """The numbers of tokens in a program's prompts for one model, if each predictor is called once."""

    prefix: float  # number of tokens in instructions and fixed demos
    total: float  # number of tokens in the whole prompts, with inputs of mean length


@dataclass(frozen=True)
class UsageFit:
    """Token counts of calls as a linear function of the prompts' size."""

    times: float  # number of times that prompts are sent
    others: float  # number of other tokens in prompts, such as retrieved passages
    answer: float  # mean number of tokens in answers


class PromptPrices:
    """The costs of predictions at litellm's list prices.

    A server's prefix cache is assumed to hold instructions and fixed demos, but not retrieved demos
    or inputs.

    Answers are assumed to be as long, and prompts to be sent as often, as in the scored calls of one of
    the user's programs or, for all other candidates, of all these candidates. Calls that use only
    other models are not counted, so a model that is rarely called seems to be called each time.

    Args:
        slots: The search space.
        examples: Scored examples. New inputs are assumed to have the mean length of these
            examples' inputs.
        calls: The candidate and the token counts of each scored call.
    """

    def __init__(
        self, slots: PoolSlots, examples: Examples, calls: Iterable[tuple[Candidate, Tokens]]
    ) -> None:
        self._slots = slots
        self._examples = examples[:SAMPLED_PROMPTS]
        self._count = token_counter()
        self._inputs: dict[tuple[str, ...], float] = {}  # mean number of tokens in inputs, keyed by fields
        self._sizes: dict[Candidate, dict[str, PromptSize]] = {}  # keyed by candidate and model
        self._fits: dict[tuple[Candidate | None, str], UsageFit] = {}
        # The calls of each of the user's programs. The key None stands for all other candidates.
        self._calls: dict[Candidate | None, list[tuple[Candidate, Tokens]]] = defaultdict(list)
        for candidate, tokens in calls:
            if tokens:  # No prompt was sent if DSPy's cache answered or the call failed.
                self._calls[candidate if candidate in slots.rivals else None].append((candidate, tokens))

    def of(self, candidate: Candidate) -> float | None:
        """Return the cost of `PREDICTIONS` predictions with a candidate, or None if it is unknown."""
        usage = {}
        try:
            for model, size in self._sizes_of(candidate).items():
                fit = self._fit(candidate, model)
                usage[model] = {
                    "prompt_tokens": fit.times * size.total + fit.others,
                    "cached_tokens": fit.times * size.prefix,
                    "completion_tokens": fit.answer,
                }
        except Exception:  # If the adapter or litellm fails, the other figures are still useful.
            return None
        cost = cost_of(usage)
        return None if cost is None or math.isnan(cost) else PREDICTIONS * cost

    def _fit(self, candidate: Candidate, model: str) -> UsageFit:
        """Return the usage of a model in the calls of a user's program or of all other candidates."""
        group = candidate if candidate in self._slots.rivals else None
        if (group, model) not in self._fits:
            sizes = []
            prompts = []
            answers = []
            for caller, tokens in self._calls[group]:
                # Omit calls without this model, because DSPy's cache may have answered for it.
                if model in tokens and not tokens[model].get(UNCOUNTED):
                    sizes.append(self._sizes_of(caller)[model].total)
                    prompts.append(tokens[model].get("prompt_tokens", 0))
                    answers.append(tokens[model].get("completion_tokens", 0))
            self._fits[group, model] = _fitted(sizes, prompts, answers)
        return self._fits[group, model]

    def _sizes_of(self, candidate: Candidate) -> Mapping[str, PromptSize]:
        """Return the size of a candidate's prompts for each model."""
        if candidate not in self._sizes:
            prefixes: dict[str, float] = defaultdict(float)
            totals: dict[str, float] = defaultdict(float)
            for _, predictor in sub_modules(self._slots.build(candidate), dspy.Predict):
                model = str(model_of(predictor).model)
                prefix = tokens_before_inputs(predictor, predictor.demos)
                prefixes[model] += prefix
                totals[model] += prefix + retrieved_tokens(predictor) + self._mean_inputs(predictor)
            self._sizes[candidate] = {
                model: PromptSize(prefixes[model], total) for model, total in totals.items()
            }
        return self._sizes[candidate]

    def _mean_inputs(self, predictor: dspy.Predict) -> float:
        """Return the mean number of tokens in a predictor's inputs."""
        fields = tuple(predictor.signature.input_fields)
        if fields not in self._inputs:
            prompts = [
                messages_of(predictor, [], inputs_of(predictor, example)) for example in self._examples
            ]
            self._inputs[fields] = fmean(map(self._count, prompts)) - tokens_before_inputs(predictor, [])
        return self._inputs[fields]


def _fitted(sizes: Sequence[float], prompts: Sequence[float], answers: Sequence[float]) -> UsageFit:
    """Return the usage fitted to calls, given the prompts' sizes and the token counts of each call."""
    if not sizes:
        return UsageFit(math.nan, math.nan, math.nan)
    # Each predictor is assumed to be called at least once, because calls that DSPy's cache
    # answered are not counted.
    times = max(1.0, fmean(prompts) / fmean(sizes))
    if len(set(sizes)) > 1:
        times = min(times, max(1.0, linear_regression(sizes, prompts).slope))
    return UsageFit(times, max(0.0, fmean(prompts) - times * fmean(sizes)), fmean(answers))


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
            tokens = prompt_tokens(slots, score.candidate, slots.build(score.candidate))
            prompts.append(Prompt(score, tokens, prices.of(score.candidate)))
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
