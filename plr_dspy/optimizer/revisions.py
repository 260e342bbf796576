"""Instructions that the prompt model proposes from failures during the search, using GEPA's proposer.

The best arrangements are run again on examples on which they scored low. The records of these calls
contain each predictor's inputs and outputs, and the metric's feedback. From these records, the
prompt model writes at most one instruction for each predictor. The run log keeps the records and
the instructions, so a resumed run gets the same instructions at no cost.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy

from plr_dspy.dspy_compat import (
    InstructionProposer,
    REPLHistory,
    compact_history,
    compact_repl_history,
    first_messages,
    serialize_for_json,
)
from plr_dspy.metrics.by_example import as_score
from plr_dspy.optimizer.call_sizes import PROPOSED_INSTRUCTION
from plr_dspy.optimizer.opening import OpenCompile
from plr_dspy.optimizer.proposals import PromptModelWork, most_tokens, num_texts
from plr_dspy.optimizer.setup import CompileSetup, Proposal
from plr_dspy.programs.calls import MetricWork
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.instructions import Instruction, usable_instructions
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.programs.tokens import token_counter
from plr_dspy.report.formats import count
from plr_dspy.scoring.budget import cost_of
from plr_dspy.scoring.run_log import CallKey, CallRecord
from plr_dspy.search.space import Candidate, Ordering

logger = logging.getLogger(__name__)

FROM_FAILURES = "from failures"  # origin of instructions proposed from failures
# Proposals from failures may use at most this share of max_cost and max_seconds, in addition to
# what earlier calls used.
SHARE = 0.1


class TracingWork(MetricWork):
    """Program calls whose records contain each predictor's inputs and outputs, and the metric's feedback."""

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        prediction = self._answered(program, example)
        trace = list(dspy.settings.trace)
        calls = {}
        for name, predictor in program.named_predictors():
            for caller, inputs, outputs in trace:
                if caller is predictor:  # Keep the last call, because it affects the answer most.
                    calls[name] = {"inputs": _plain(inputs), "outputs": _plain(outputs)}
        result = self._judged(example, prediction)
        return CallRecord(None, value={"calls": calls, "feedback": self._feedback(example, result)})

    def _feedback(self, example: int, result: object) -> str:
        """Return the metric's feedback if there is any, else the score and the example's labels."""
        feedback = result.get("feedback") if isinstance(result, dspy.Prediction) else None
        if feedback:
            return str(feedback)
        labels = dict(self.examples[example].labels().items())
        return f"The score is {as_score(result):g}. The right output is {labels}."


def _plain(fields: Any) -> Any:
    """Return a call's fields as JSON data that GEPA's proposer shows like the original values.

    As with the proposer's option `truncate_history_outputs`, shorten the results in histories.
    """
    shortened = {}
    for name, value in fields.items():
        if isinstance(value, dspy.History):
            value = compact_history(value)
        elif isinstance(value, REPLHistory):
            value = compact_repl_history(value)
        shortened[name] = value
    return serialize_for_json(shortened)


class RevisionWork(PromptModelWork):
    """A call that asks the prompt model to revise a predictor's instruction, given examples of failures."""

    def __init__(
        self, setup: CompileSetup, instruction: str, failures: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__(setup)
        self._instruction = instruction
        self._failures = failures
        self._proposer = InstructionProposer(adapter=dspy.ChatAdapter())

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Return a record with the revised instruction. `example` is used only in the record's key."""
        return CallRecord(None, value={"text": self._revised(self.model)})

    def _revised(self, lm: dspy.BaseLM) -> str:
        name = "instruction"
        with dspy.context(lm=lm):
            texts = self._proposer({name: self._instruction}, {name: self._failures}, [name])
        return str(texts[name])

    def cost(self) -> float | None:
        """Return the expected cost in US dollars, or None if it is unknown.

        The new instruction is assumed to be as long as the old one, but to have at least
        `PROPOSED_INSTRUCTION` tokens.
        """
        num_tokens = token_counter()
        instruction = num_tokens([{"role": "user", "content": self._instruction}])
        try:
            prompt = num_tokens(first_messages(self.model, self._revised))
        except Exception:  # If the prompt cannot be built, the call will report the error.
            return None
        usage = {"prompt_tokens": prompt, "completion_tokens": max(PROPOSED_INSTRUCTION, instruction)}
        return cost_of({str(self.model.model): usage})


def propose_from_failures(open_compile: OpenCompile, failures: Mapping[int, Ordering]) -> CompileSetup:
    """Ask the prompt model to revise instructions, and return the setup with the usable revisions.

    Args:
        open_compile: The compile run.
        failures: Arrangements, keyed by the index of the example on which each scored low. All of
            them have the same instructions, and the prompt model revises these instructions.
    """
    setup = open_compile.setup
    slots = setup.slots
    assert isinstance(slots, PoolSlots)
    cells: dict[CallKey, Candidate] = {}
    for example, arrangement in failures.items():
        fingerprint, _ = open_compile.evaluator.key(arrangement, example)
        cells[f"traced {fingerprint}", example] = arrangement
    work = TracingWork(setup.options.metric, setup.scored_examples)
    records = open_compile.evaluator.call_unscored(
        open_compile.make_payer(slots, work, names=setup.splits.names), cells
    )
    first_example, first_arrangement = next(iter(failures.items()))
    numbers = slots.instructions(first_arrangement)
    shown = [(prompt, setup.scored_examples[example]) for prompt, example in cells]
    budget = open_compile.evaluator.budget
    proposals: list[Proposal] = []
    with budget.other_model(SHARE):
        for name, instructions in slots.alternatives.items():
            examples = _reflective_examples(name, records)
            if examples:
                revision = RevisionWork(setup, instructions[numbers[name]].text, examples)
                budget.expect(revision.cost() if setup.options.max_cost is not None else None)
                prompt = f"revised by {digest([revision.model, name, shown, setup.seed])}"
                task = Proposal(name, 1, prompt, from_failures=True)
                proposal = _propose(open_compile, revision, task, first_example)
                if proposal is not None:
                    proposals.append(proposal)
    texts = count(num_texts(proposals), "instruction")
    logger.info("the prompt model proposed %s from %s", texts, count(len(records), "failure"))
    return _with_instructions(replace(setup, proposals=[*setup.proposals, *proposals]), slots, proposals)


def _reflective_examples(predictor: str, records: Sequence[CallRecord]) -> list[dict[str, Any]]:
    """Return the recorded calls to a predictor, in the form that GEPA's proposer expects."""
    examples = []
    for record in records:
        call = (record.value or {}).get("calls", {}).get(predictor)
        if call is not None:
            feedback = record.value["feedback"]
            examples.append(
                {"Inputs": call["inputs"], "Generated Outputs": call["outputs"], "Feedback": feedback}
            )
    return examples


def _propose(
    open_compile: OpenCompile, work: RevisionWork, task: Proposal, example: int
) -> Proposal | None:
    """Make a proposal, or read it from the log.

    Return None if the cost limit or the time limit prevents the call to the prompt model. If an
    error in the call would end the run, warn that the search continues without the instruction.
    """
    log = open_compile.evaluator.log
    budget = open_compile.evaluator.budget
    key = (task.prompt, example)
    num_recalled = log.num_recalled
    budget.max_calls += 1  # Proposals do not count as program calls.
    if not budget.recall(key):
        try:
            proposer = open_compile.make_payer(
                open_compile.setup.slots, work, names={example: task.name}, num_threads=1
            )
            proposer.pay({key: None})
        except Exception:
            logger.warning("the search continues without an %s, because the prompt model failed", task.name)
    log.num_recalled = num_recalled
    if key not in log.records:
        budget.max_calls -= 1  # The call was not made.
        if budget.limit_reached is not None:
            logger.warning("the search continues without an %s: %s", task.name, budget.limit_reached.value)
        return None
    return replace(task, record=log.records[key])


def _with_instructions(
    setup: CompileSetup, slots: PoolSlots, proposals: Sequence[Proposal]
) -> CompileSetup:
    """Return the setup with the usable proposals added to the instructions in `slots`."""
    new = {}
    for proposal in proposals:
        if not proposal.record.error:
            new[proposal.predictor] = [
                Instruction(proposal.text, f"{FROM_FAILURES}[{proposal.number - 1}]")
            ]
    choices = usable_instructions(
        setup.program, new, rivals=(), max_tokens=most_tokens(setup), known=slots.alternatives
    )
    dropped = dict(setup.dropped_instructions)
    for name, instructions in choices.dropped.items():
        dropped[name] = [*dropped.get(name, ()), *instructions]
    return replace(setup, slots=slots.with_alternatives(choices.by_predictor), dropped_instructions=dropped)
