"""The job of a compile, before its first call: what it is given, checked and laid out, and what that would cost."""

from __future__ import annotations

import logging
import math
import random
import sys
from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import dspy

from plr_dspy.compilation.plan import MIN_ORDERS, NOTHING_TO_DO, Plan, most_calls
from plr_dspy.compilation.run import MIN_COMPARED
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import label_output
from plr_dspy.labels.work import check_answers
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.programs.checks import Checked, check_given
from plr_dspy.programs.copying import ProgramFactory, language_models
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.slots import PromptSlots, messages_of
from plr_dspy.programs.splits import Examples, Splits, empty_split, make_splits
from plr_dspy.programs.tokens import token_counter
from plr_dspy.report.text import FEW_EXAMPLES, dollars, prompt_count
from plr_dspy.retrieval.predict import RetrievingPredict, retrievals_of
from plr_dspy.scoring.budget import MARGIN, Budget, cost_of, price_of
from plr_dspy.scoring.run_log import CallRecord, RunLog
from plr_dspy.search.space import Candidate

if TYPE_CHECKING:
    from plr_dspy.optimizer.base import Reorderer

logger = logging.getLogger(__name__)

LIMITS = ("num_threads", "max_errors", "max_seconds", "max_cost")  # arguments that do not decide the course
# Arguments that do not decide the result, or that an identity or the settings of a job name otherwise.
NAMED_ELSEWHERE = {*LIMITS, "metric", "seed", "log_dir", "accept_changes", "display_progress"}
SAMPLED_PROMPTS = 20  # examples whose prompts' tokens are counted for the mean
BOOTSTRAP_SHARE = 0.25  # of the dollars, at most, for demos that a teacher makes


class Attempt(NamedTuple):
    """What a teacher makes of an example."""

    example: int  # its number in the trainset
    key: tuple[str, str]  # of its cell in the log
    demos: dict[str, Any]  # by predictor; empty where the answer was not right
    cell: CallRecord  # that cell; before the attempt is made, one without an error


@dataclass(frozen=True)
class Job:
    """A compile, prepared."""

    optimizer: Reorderer
    seed: int
    program: dspy.Module  # a copy of the student, or of what the student calibrates if that is to be calibrated anew
    slots: PromptSlots
    splits: Splits
    plan: Plan
    original: Candidate  # what the user has: the identity, `WITHOUT_DEMOS`, an arrangement, or a whole program
    models: Sequence[dspy.BaseLM]  # of the predictors
    examples: Examples  # all that were passed
    scored_examples: Examples  # those of the train split, then those of the selection split, as cells number them
    calibrated_student: CalibratedProgram | None = None  # what is to be calibrated anew
    demo_examples: Mapping[int, dspy.Example] = field(default_factory=dict)  # that demos are made of, by their numbers
    findable: Mapping[int, dspy.Example] = field(default_factory=dict)  # that found demos are made of
    student: dspy.Module | None = None  # one that finds its demos, which `program` does not
    teacher: dspy.Module | None = None  # makes demos; None where the student does
    # At demos: as many as there may be, then those that were made. The plan knows nothing of their calls.
    attempts: Sequence[Attempt] = ()
    num_trainset: int = 0  # of the examples that were passed, which begin with the trainset

    @property
    def trainset(self) -> Examples:
        """The trainset as the user passed it."""
        return self.examples[: self.num_trainset]

    def planned(self, **told: Any) -> Plan:
        """The plan of the optimizer; where its search can score every candidate, the rest is for the race.

        That race scores what the user has, if it is not one of them.
        """
        sizes: Any = {"num_train": len(self.splits.train), "num_selection": len(self.splits.selection)}
        sizes |= {"spent": len(self.attempts)} if self.attempts else {}
        space = self.slots.space
        plan = self.optimizer.plan(**sizes, num_distinct=space.num_distinct, **told)
        every = space.num_distinct * plan.num_train_examples
        if not plan.racing or plan.search_calls < every:
            return plan
        is_searched = space.contains(self.original) or self.original in space.programs
        left = plan.search_calls + plan.race_calls - every
        race_calls = 0 if is_searched else min(left, plan.num_train_examples)
        return replace(plan, most_searched=every, race_calls=race_calls)

    def arguments(self) -> dict[str, Any]:
        """The user's arguments that decide the result, as plain data."""
        optimizer, metric = self.optimizer, self.optimizer.metric
        # What users' subclasses and trackers keep in an optimizer beside these may be large, secret or never the same.
        given = {name: each for name, each in Checked.get_params(optimizer).items() if name not in NAMED_ELSEWHERE}
        if (rule := given.get("update")) is not None:
            parameters = fields(rule) if is_dataclass(rule) else ()
            given["update"] = {"name": rule.name, **{each.name: getattr(rule, each.name) for each in parameters}}
        metric_name = getattr(metric, "__name__", type(metric).__name__)
        return {
            "method": optimizer.name,
            **as_plain_data(given),
            "seed": self.seed,
            "metric": repr(metric) if isinstance(metric, SetMetric) else metric_name,
        }

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, and the limits of the compile, as plain data."""
        return {
            **self.arguments(),
            "scored_on": self.optimizer.scored_on,
            "adapter": type(dspy.settings.adapter or dspy.ChatAdapter()).__name__,
            "models": sorted({str(lm.model) for lm in self.models}),
            "num_train": len(self.splits.train),
            "num_selection": len(self.splits.selection),
            "num_repeated": self.splits.num_repeated,
            **asdict(self.plan),
            **{name: getattr(self.optimizer, name) for name in LIMITS},
            "most_useful_calls": most_calls(len(self.scored_examples)),
        }


def as_plain_data(value: Any) -> Any:
    """An argument as plain data; of objects a digest, which is the same in every process."""
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(part) for key, part in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else digest(value)


def prepare(
    optimizer: Reorderer, student: dspy.Module, trainset: Examples, valset: Examples | None, *, seed: int, teacher: Any
) -> Job:
    """Check the arguments of a compile, and lay it out; no program call is made.

    Neither the program's demos nor the `others` that choices name score. Where all choices give the same prompt,
    nothing is planned. Too few examples, and too small a budget, are a ValueError.
    """
    valset, rng, name = [] if valset is None else valset, random.Random(seed), optimizer.trainset_name
    program, calibrated = _checked_copy(optimizer, student, trainset, valset)
    choices = optimizer._choices(program, trainset, valset, rng, teacher)
    program = choices.pop("program", program)
    others, predictors = choices.pop("others", ()), program.named_predictors()
    demos = [demo for _, predictor in predictors for demo in predictor.demos]
    prompted = {field for _, predictor in predictors for field in predictor.signature.input_fields}
    balanced = getattr(optimizer, "auto", None) != "paper"  # The paper shuffles, no more.
    splits = make_splits(trainset, valset, [*demos, *others], rng, balanced=balanced, name=name, prompted=prompted)
    job = Job(
        optimizer,
        seed,
        program,
        splits=splits,
        plan=NOTHING_TO_DO,
        models=[lm for _, each in predictors if (lm := each.lm or dspy.settings.lm) is not None],
        examples=[*trainset, *valset],
        scored_examples=[*splits.train, *splits.selection],
        calibrated_student=calibrated,
        num_trainset=len(trainset),
        **choices,
    )
    if job.slots.space.num_distinct < 2 or optimizer.max_metric_calls == 0:
        return job
    if not (splits.train and splits.selection):
        from_list = ", or leave some of these out of candidates" * bool(others and not job.demo_examples)
        cure = f"pass more examples{from_list}"
        raise UserError(empty_split(splits, len(trainset), len(valset), name=name, cure=cure))
    if (num_usable := len(job.scored_examples)) < FEW_EXAMPLES and optimizer.chooses_by_score:
        logger.warning(
            "only %d of %d examples can score orders (not those that are demos, or given twice). On so few, chance "
            "alone moves the score of an order by %.2f, so little can be found: pass 100 examples or more",
            *(num_usable, len(job.examples), (0.25 / num_usable) ** 0.5),
        )
    job = replace(job, plan=job.planned())
    if isinstance(optimizer.metric, SetMetric):
        compares = job.plan.num_selection_examples > 0
        optimizer.metric.check(*((splits.train, splits.selection) if compares else (job.scored_examples,)))
    return job


def _checked_copy(
    optimizer: Reorderer, student: dspy.Module, trainset: Examples, valset: Examples
) -> tuple[dspy.Module, CalibratedProgram | None]:
    """Check what the user passes, and return `program` and `calibrated_student` of the job."""
    optimizer.check_together()  # They may have been set since.
    calibrated = None
    if isinstance(student, CalibratedProgram) and optimizer.calibrate is not False:
        calibrated, student = student, student.program
    datasets: dict[str, Any] = {optimizer.trainset_name: trainset, "valset": valset}
    check_given(student, name=optimizer.student_name, **datasets)
    retrievals = retrievals_of(student).values()
    if retrievals and not optimizer.chooses_demos:
        raise UserError(
            f"{optimizer.student_name} finds its demos for each input, so that there is no order to learn: pass it to "
            "PLFewShot as the student, or to BatchCalibration"
        )
    sources = [set(retrieval.pool.sources) - {""} for retrieval in retrievals]  # as far as these are known
    pools = [{tuple(name for name, _ in literal_eval(source)) for source in each} for each in sources]
    named = {tuple(sorted(each.inputs().keys())) for each in (*trainset, *valset)}
    for pooled in pools:
        if pooled and named - pooled:  # Nobody could tell which demos are made of an example.
            raise UserError(
                f"{optimizer.trainset_name} must name the inputs that the examples of the pool have, "
                f"{sorted(map(list, pooled))}; got {sorted(map(list, named - pooled))}: name these in with_inputs"
            )
    program = ProgramFactory(student).build({})
    # What an earlier optimizer found: copies would hold copies of it, and no report is twice the same, so that no
    # `log_dir` would be found again.
    vars(program).pop("calibration_report", None)
    report, found = vars(program).pop("reorder_report", None), vars(program).get("candidate_programs")
    are_candidates = isinstance(found, list) and all(
        isinstance(part, Mapping) and {"score", "program"} <= part.keys() for part in found
    )
    none_compared = isinstance(report, Mapping) and not report.get("candidates")
    if are_candidates and (found or none_compared):  # Other empty lists are of the user's own.
        del program.candidate_programs
    if isinstance(program, CalibratedProgram) and program.calibration is not None:
        program.calibration = replace(program.calibration, prompt=None)  # Its demos are to change.
    check_answers(program, optimizer.metric, [*trainset, *valset], name=optimizer.trainset_name)
    optimizer.check(program, trainset)
    return program, calibrated


@dataclass(frozen=True)
class Estimate:
    """What a compile would cost; `print` says it in a few lines.

    Attributes:
        program_calls: Program calls of all phases, at most; a compile never makes more.
        bootstrap_calls: Those of them that make demos before the search.
        plan: The phases after that, with their program calls (`search_calls`, `race_calls`, `final_calls`; what one
            leaves goes to the next; of the paper's algorithm before any limit) and examples.
        prompt_tokens: Tokens of all prompts, about: by the tokenizer of GPT-4o, whatever the model. A picture or sound
            counts as 250, as litellm has it; so does a file, or its pages where litellm can read them. What a predictor
            reads of another's outputs is taken to be as in its first demo, or empty. None where prompts cannot be made.
        cost: US dollars for these prompts, and for answers as long as those that the demos show, about: by the list
            prices that come with litellm, without hidden reasoning. None where that is not known: where no price is
            known for a model, or a language model scores the answers. As if there were no `max_cost`.
        affordable_calls: As many of the `program_calls` as `max_cost` pays for, about; None where `cost` is.
        text: What is printed.
    """

    program_calls: int
    bootstrap_calls: int
    plan: Plan
    prompt_tokens: int | None
    cost: float | None
    affordable_calls: int | None
    text: str = ""

    def __repr__(self) -> str:
        return f"<Estimate: {self.text.splitlines()[0]}>"

    def __str__(self) -> str:
        return self.text


def estimate(job: Job) -> Estimate:
    """Say what a prepared compile costs, and the calls that make demos before."""
    optimizer, plan, noun, attempts = job.optimizer, job.plan, job.slots.noun, len(job.attempts)
    max_cost, calls, cost, affordable = optimizer.max_cost, plan.program_calls + attempts, None, None
    if not calls:
        return Estimate(0, 0, plan, 0, 0.0, 0, "no program call is made")
    tokens, a_call = size_of_call(job)
    prompt_tokens = None if tokens is None else round(calls * tokens)
    _, of_teacher = size_of_call(job, job.teacher) if job.teacher is not None and attempts else (None, a_call)
    if a_call is not None and of_teacher is not None:
        cost = a_call * plan.program_calls + of_teacher * attempts
        affordable = calls if max_cost is None or cost <= max_cost else int(calls * max_cost / cost)
    line = f"at most {calls:,} program calls, prompt tokens "
    line += "not known" if prompt_tokens is None else f"about {prompt_tokens:,}"
    line += "" if cost is None else f", about {dollars(cost)} (answers as long as the demos')"
    ends_by_cost = affordable is not None and affordable < calls
    if max_cost is not None:
        effect = "may end it earlier" if affordable is None else "pays for all of them"
        if ends_by_cost:
            effect = f"ends it earlier, after about {affordable:,} calls at this price"
        line += f"; max_cost=${max_cost:g} {effect}"
    if optimizer.max_seconds is not None:
        line += f"; max_seconds={optimizer.max_seconds:g} may end it earlier"
    first, most, num_distinct = plan.num_first_examples, plan.num_train_examples, job.slots.space.num_distinct
    if optimizer.signal != "score" and not isinstance(label_output(job.program), str):  # log-probabilities may come
        first = min(first, job.planned(signal="logprobs").num_first_examples)
    examples = f"{most} {optimizer.scored_on}"
    if optimizer.scored_on == "train examples":
        number = f"{first} to {most}" if first < most else f"{most}"
        examples = f"{number} of {len(job.splits.train)} train examples"
    search_calls = plan.program_calls - min(plan.race_calls + plan.final_calls, plan.program_calls)
    num_orders, num_finalists = (min(n, num_distinct) for n in (search_calls // first, plan.num_finalists))
    distinct = {slot.predictor: slot.space.num_distinct for slot in job.slots.slots}
    if job.slots.space.programs:
        distinct["found for each input"] = len(job.slots.space.programs)
    of_each = ", ".join(f"{name}: {prompt_count(number)}" for name, number in distinct.items())
    lines = [
        line,
        *["without max_cost:"] * ends_by_cost,
        f"search: about {search_calls:,} calls, {num_orders:,} {noun}s on {examples}",
        *[f"bootstrapped demos: at most {attempts:,} calls"] * bool(attempts),
        *[f"race: about {plan.race_calls:,} calls"] * bool(plan.race_calls),
        f"final comparison: about {plan.final_calls:,} calls, {num_finalists} {noun}s on "
        f"{plan.num_selection_examples} of {len(job.splits.selection)} selection examples",
        f"{prompt_count(num_distinct)} distinct prompts ({of_each})",
    ]
    return Estimate(calls, attempts, plan, prompt_tokens, cost, affordable, "\n  ".join(lines))


def size_of_call(job: Job, asked: dspy.Module | None = None) -> tuple[float | None, float | None]:
    """Mean tokens of the prompts of a program call, and its dollars with answers as the demos show them.

    The models are the program's, or those of another one `asked`, of the same predictors. None where prompts cannot be
    made; no dollars where a price or an answer's size is not known, or the metric calls a model.
    """
    examples = job.scored_examples[:SAMPLED_PROMPTS]
    tokens, count = dict[str, dict[str, float]](), token_counter()
    try:
        predictors = job.slots.build(job.slots.showing(0.5)).predictors()
        models = predictors if asked is None else asked.predictors()
        for example, (predictor, of) in product(examples, list(zip(predictors, models, strict=False))):
            lm, known = of.lm or dspy.settings.lm, [example.inputs(), *predictor.demos[:1]]
            inputs = {
                name: next((each[name] for each in known if name in each), "")
                for name in predictor.signature.input_fields
            }
            demos = predictor.shown(inputs) if isinstance(predictor, RetrievingPredict) else predictor.demos
            messages = messages_of(predictor, demos, inputs)
            answers = [message for message in messages if message["role"] == "assistant"]
            kinds = tokens.setdefault(str(lm.model), {"prompt_tokens": 0.0, "completion_tokens": 0.0})
            kinds["prompt_tokens"] += count(messages) / len(examples)
            answer = count(answers) / len(answers) if answers else math.nan
            kinds["completion_tokens"] += answer / len(examples)
    except Exception:  # of an adapter, or a message that litellm does not know: no reason to refuse an estimate
        return None, None
    cost = None if language_models(job.optimizer.metric) else cost_of(tokens)
    return sum(kinds["prompt_tokens"] for kinds in tokens.values()), None if cost is None or math.isnan(cost) else cost


def max_calls_of(job: Job) -> int:
    """Return the program calls that a compile makes at most, those that make demos included."""
    if job.plan.max_metric_calls is None:
        return sys.maxsize
    return job.plan.max_metric_calls + len(job.attempts)


def make_budget(job: Job, log: RunLog | None = None, started: float | None = None) -> Budget:
    """Return the budget of a compile that started then; the log has what earlier runs paid for.

    A model without a price, and money that pays for no comparison of a few orders, are a ValueError.
    """
    plan = job.plan
    max_cost = job.optimizer.max_cost
    log = log or RunLog()
    budget = partial(Budget, log, max_calls=max_calls_of(job), max_seconds=job.optimizer.max_seconds, started=started)
    if max_cost is None:
        return budget()
    teaching = [] if job.teacher is None or not job.attempts else language_models(job.teacher)
    models = [*job.models, *language_models(job.optimizer.metric), *teaching]
    if unknown := {name for lm in models if price_of(name := str(lm.model)) is None}:
        raise UserError(f"max_cost needs a price for {', '.join(sorted(unknown))}: pass max_metric_calls instead")
    _, expected = size_of_call(job)
    if expected is not None and plan.program_calls and not log.tokens_before:
        num_orders = min(MIN_ORDERS, job.slots.space.num_distinct)
        num_compared = min(MIN_COMPARED, plan.num_selection_examples)
        calls = num_orders * plan.num_first_examples + plan.num_finalists * num_compared
        least = (MARGIN * calls + 1) * expected / (1.0 - BOOTSTRAP_SHARE * bool(job.attempts))
        if max_cost < least:
            raise UserError(
                f"max_cost={max_cost:g} is too small for {num_orders} candidates on {plan.num_first_examples} examples "
                f"and a final comparison on {num_compared}, some {calls} calls: pass max_cost={1.1 * least:.2g} or more"
            )
    return budget(max_cost=max_cost, expected_cost=expected)
