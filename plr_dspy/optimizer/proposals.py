"""Instructions that a prompt model proposes before the search, with DSPy's `GroundedProposer`, as in MIPROv2.

The prompt model's first task is to describe the data. Each further task is to write one instruction
for one predictor. A task usually takes three calls. The run log keeps the results of tasks as call
records, so a resumed run does not pay for them again.
"""

import contextlib
import io
import logging
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import dspy

from plr_dspy.dspy_compat import TIPS, GroundedProposer, create_dataset_summary, model_of
from plr_dspy.optimizer.call_sizes import CallSize, CallSizes
from plr_dspy.optimizer.proposal_sizes import NUM_SHOWN, ProposalSizes, described_examples
from plr_dspy.optimizer.setup import CompileSetup, Proposal
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.instructions import (
    Instruction,
    InstructionChoices,
    instruction_tokens,
    usable_instructions,
)
from plr_dspy.programs.slots import PooledDemo, PoolSlots
from plr_dspy.report.prompts import ProposalReport
from plr_dspy.scoring.budget import window_of
from plr_dspy.scoring.causes import fix_for
from plr_dspy.scoring.run_log import CallRecord

logger = logging.getLogger(__name__)

PROPOSED = "proposed"  # origin of proposed instructions
# Bootstrapping and proposals together may use at most this share of max_seconds and max_cost.
SHARE = 0.4


def planned_proposals(program: dspy.Module, number: int) -> list[Proposal]:
    """Return a task to describe the data, and `number` tasks per predictor to write instructions."""
    proposals = [Proposal("", 0)]
    for name, _ in program.named_predictors():
        proposals += [Proposal(name, i) for i in range(1, number + 1)]
    return proposals


class PromptModelWork(MetricWork):
    """Calls to the prompt model. Their records contain text instead of scores."""

    def __init__(self, setup: CompileSetup) -> None:
        self.sample = ""
        self.confusion_scores = None
        self.model = setup.prompt_model or dspy.settings.lm
        self.models = [self.model]


class ProposalWork(PromptModelWork):
    """The prompt model's tasks before the search.

    Attributes:
        examples: Examples that the prompt model may see. They are never used for scoring.
        demos: Demos that the prompt model may see, keyed by predictor.
    """

    def __init__(self, setup: CompileSetup) -> None:
        super().__init__(setup)
        slots = setup.slots
        assert isinstance(slots, PoolSlots)
        self.examples = described_examples(setup)
        self._setup = setup
        self._places = {name: place for place, (name, _) in enumerate(setup.program.named_predictors())}
        self.demos = {slot.predictor: list(slot.demos) for slot in slots.slots}
        self._pools = {slot.predictor: slot.pool for slot in slots.slots}
        self._sizes = ProposalSizes(setup)
        # DSPy prints the source code of signatures, so discard its output.
        with contextlib.redirect_stdout(io.StringIO()):
            self._proposer = GroundedProposer(
                prompt_model=self.model,
                program=setup.program,
                trainset=self.examples,
                use_dataset_summary=False,  # DSPy's summary would hide the prompt model's exceptions.
                use_instruct_history=False,
                set_history_randomly=False,
            )

    def describe_data(self, text: str) -> None:
        """Show this description of the data to the prompt model in later tasks."""
        self._proposer.use_dataset_summary = bool(text)
        self._proposer.data_summary = text or None

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Run the task with the index `example`, and return a record that contains the resulting text."""
        task = self._setup.proposals[example]
        with dspy.context(lm=self.model, adapter=dspy.ChatAdapter()):
            text = self._description() if task.describes_data else self._propose(task)
        return CallRecord(None, value={"text": text})

    def _description(self) -> str:
        if not self.examples:
            return ""
        return str(create_dataset_summary(self.examples, view_data_batch_size=10, prompt_model=self.model))

    def size(self, task: Proposal) -> CallSize:
        """Return the approximate size of all calls for a task."""
        return self._sizes.of_task(task, self._shown(task, self._rng(task)))

    def _rng(self, task: Proposal) -> random.Random:
        return random.Random(f"{self._setup.seed} {task.predictor} {task.number}")

    def _shown(self, task: Proposal, rng: random.Random) -> list[PooledDemo]:
        """Return the demos that the prompt model sees in a task."""
        pool = self._pools.get(task.predictor, ())
        return rng.sample(pool, min(NUM_SHOWN, len(pool)))

    def _propose(self, task: Proposal) -> str:
        rng = self._rng(task)
        shown = [dspy.Example({**pooled.demo, "augmented": True}) for pooled in self._shown(task, rng)]
        place = self._places[task.predictor]
        # `GroundedProposer` ignores the first set of demos, so leave this set empty.
        demo_sets: dict[int, list[list[dspy.Example]]] = {place: [[], shown]}
        proposer = self._proposer
        proposer.rng = rng
        text = proposer.propose_instruction_for_predictor(
            program=self._setup.program,
            predictor=None,
            pred_i=place,
            demo_candidates=demo_sets,
            demo_set_i=1,
            trial_logs={},
            tip=rng.choice(list(TIPS.values())),
        )
        return str(text or "").strip()


def make_proposals(setup: CompileSetup, work: ProposalWork, payer: ProgramEvaluator) -> list[Proposal]:
    """Run the planned tasks or read their results from the log, and return the finished tasks.

    Stop early if `payer` raises an exception, or if the next call would exceed `SHARE` of a limit.

    Raises:
        RuntimeError: If calls failed and no instruction was proposed.
        Exception: If an error other than a failed call, such as a missing price, stopped the
            tasks.
    """
    log = payer.log
    budget = payer.budget
    prompt = f"proposed by {digest([work.model, setup.program, work.examples, work.demos, setup.seed])}"
    log.number_examples([f"{task.predictor} {task.number}" for task in setup.proposals])
    num_recalled = log.num_recalled
    cost_of_student = budget.expected_cost
    reserve = budget.largest_cost
    budget.share = SHARE
    proposals: list[Proposal] = []
    failure: Exception | None = None
    factor = 1.0  # maximum ratio of a task's cost to its estimate
    for number, task in enumerate(setup.proposals):
        key = (prompt, number)
        estimate = work.size(task).cost if setup.options.max_cost is not None else None
        budget.expect(None if estimate is None else factor * estimate)
        cost_before = budget.cost
        if not budget.recall(key):
            try:
                payer.pay({key: None})
            except Exception as error:
                failure = error
        if key not in log.records:
            break
        if estimate:
            factor = max(factor, (budget.cost - cost_before) / estimate)
        record = log.records[key]
        proposals.append(replace(task, prompt=prompt, record=record))
        if task.describes_data and record.value:
            work.describe_data(record.value["text"])
        if failure is not None:
            break
    log.num_recalled = num_recalled  # Proposals do not count as program calls.
    budget.share = 1.0
    budget.expect(cost_of_student, reserve=reserve)
    _report_missing_proposals(setup, proposals, failure)
    return proposals


def _report_missing_proposals(
    setup: CompileSetup, proposals: Sequence[Proposal], failure: Exception | None
) -> None:
    """Warn if errors or limits prevented some of the planned proposals.

    Raise an error if calls failed and no instruction was proposed. Raise `failure` if no failed
    call caused it.
    """
    num_made = num_texts(proposals)
    errors = [proposal.record for proposal in proposals if proposal.record.error]
    if failure is not None and not errors:
        raise failure
    reason = ""
    if errors:
        reason = f"{errors[0].error}: {errors[0].message}"
    elif len(proposals) < len(setup.proposals):
        reason = f"proposals may use only {SHARE:.0%} of max_cost and max_seconds"
    if errors and not num_made:
        fix = fix_for((record.error for record in errors), otherwise="check the prompt model")
        raise RuntimeError(
            f"prompt_model proposed no instruction ({reason}): {fix}, or pass instructions as a list"
        ) from failure
    if reason:
        num_planned = sum(not task.describes_data for task in setup.proposals)
        logger.warning("only %d of %d instructions were proposed (%s)", num_made, num_planned, reason)


def proposed_instructions(setup: CompileSetup, proposals: Sequence[Proposal]) -> InstructionChoices:
    """Return the usable and the dropped instructions, including those of `proposals` and rivals."""
    by_predictor: dict[str, list[Instruction]] = defaultdict(list)
    for proposal in proposals:
        if not (proposal.describes_data or proposal.record.error):
            by_predictor[proposal.predictor].append(
                Instruction(proposal.text, f"{PROPOSED}[{proposal.number - 1}]")
            )
    return usable_instructions(
        setup.program, by_predictor, rivals=setup.rivals, max_tokens=most_tokens(setup)
    )


def most_tokens(setup: CompileSetup) -> dict[str, float]:
    """Return the maximum number of instruction tokens with which each predictor's prompts fit into the window.

    Prompts are assumed to show half of the maximum number of demos. An instruction may always be as
    long as the predictor's own. Predictors are omitted if the size of their window or prompts is
    unknown.
    """
    sizes = CallSizes(setup)
    limits = {}
    for name, predictor in setup.slots.build(setup.slots.showing(0.5)).named_predictors():
        window = window_of(str(getattr(model_of(predictor), "model", "")))
        if window is None:
            continue
        size = sizes.of_program(predictor)
        if size is not None:
            own = instruction_tokens(predictor.signature.instructions)
            limits[name] = own + max(0.0, window - size.prompt_tokens)
    return limits


def num_texts(proposals: Iterable[Proposal]) -> int:
    """Return the number of instructions that the prompt model wrote."""
    return sum(bool(proposal.text) for proposal in proposals if not proposal.describes_data)


def proposal_report(setup: CompileSetup) -> ProposalReport | None:
    """Return the report's entry on proposed instructions, or None if no proposals were planned."""
    if not setup.proposals:
        return None
    model = setup.prompt_model or dspy.settings.lm
    return ProposalReport(model=str(model.model), num_texts=num_texts(setup.proposals))
