"""DEmO: an order for each input, of a few orders that favour no label."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import dspy
from pydantic import Field
from scipy.stats import entropy

from plr_dspy.baselines.label_methods import OTHERS, LabelReorderer, distribution
from plr_dspy.compilation.plan import Plan
from plr_dspy.labels.calibrated_program import Calibration
from plr_dspy.labels.outputs import CONTENT_FREE, needed_output
from plr_dspy.labels.reader import LogprobRequests, labels_read
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.calls import WRONG_ANSWERS
from plr_dspy.programs.checks import Count, WholeNumber, arguments
from plr_dspy.programs.objects import ProgramFactory
from plr_dspy.statistics.calibration import Array


class PerInputOrder(dspy.Module):
    """A program that orders its demos anew for each input.

    Of its orders it takes the one under which the input adds most to the probability of the label predicted: one
    LM call for each order. Without orders it is the program itself. It saves to JSON; `load_program` loads it.

    Args:
        program: Makes one LM call, whose finite output is the answer.
        orders: To choose from: of each, its "permutations", the demo indices by position for each predictor, and
            "content_free", the mean distribution ``[L]`` over content-free inputs.
    """

    reads_probabilities = True  # So it is not calibrated: `calibrated_output` refuses it.

    def __init__(self, program: dspy.Module, orders: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self.program = ProgramFactory(program).build({})
        self.program._compiled = False  # what is frozen would not be saved
        self.orders = tuple(orders)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """The answer in the order that the input has most influence under.

        Raises:
            NoProbabilities: when the LM gives no log-probabilities.
            Exception: of the program.
        """
        answers, requests, predictors = [], LogprobRequests("DEmO"), dict(self.program.named_predictors())
        for order in self.orders:
            demos = {name: [predictors[name].demos, places] for name, places in order["permutations"].items()}
            if any(sorted(places) != list(range(len(held))) for held, places in demos.values()):
                continue  # They are others by now, as after `reset_copy`.
            shown = {name: [held[i] for i in places] for name, (held, places) in demos.items()}
            program = ProgramFactory(self.program).build(shown)
            output, answer = needed_output(self.program, "DEmO", cure=OTHERS), None
            likeliest = Calibration.none(output.labels).applied
            reading = labels_read(program, output, requests, decision=likeliest)
            with reading as reader, suppress(*WRONG_ANSWERS):
                answer = program(*args, **inputs)
            if answer is not None and (found := reader.behind(answer)):  # Else no label is likely in this order.
                p = distribution(found.log_probabilities, found.unseen)
                answers.append((p.max() - order["content_free"][int(p.argmax())], answer))
        return max(answers, key=lambda each: each[0])[1] if answers else self.program(*args, **inputs)

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        return await dspy.asyncify(self.forward)(*args, **inputs)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        return {**super().dump_state(json_mode=json_mode), "orders": list(self.orders)}

    def load_state(self, state: Mapping[str, Any], **options: Any) -> None:
        super().load_state(state, **options)
        self.orders = tuple(state.get("orders", ()))


@arguments
class DEmO(LabelReorderer):
    """Returns a program that orders its demos for each input (`PerInputOrder`).

    The orders whose mean label distribution over content-free inputs ("[N/A]", "", "[MASK]") is nearest to uniform
    are kept; for each input, the program takes the one under which the input adds most to the probability of the
    label predicted. It makes ``3 * num_candidates`` program calls, none of them on the trainset, and the program it
    returns `num_kept` LM calls for each input. Program and LM must be as for `LocalE`.

    Source: Q. Guo et al., "What makes a good order of examples in in-context learning", ACL Findings 2024.

    Args:
        metric: By example; checked, but not used: there is no one order to compare with the original one.
        num_kept: Orders to choose from for each input. The one in the report is the fairest.
        num_candidates, all others: As in `LocalE`.
    """

    name = "DEmO"
    fillers = CONTENT_FREE

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 100
    num_kept: Count = 4

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Each order on the content-free inputs; nothing is compared, as there is no one order."""
        return super().plan(num_train=num_train, num_selection=0, num_distinct=num_distinct)

    def criterion(self, table: Array) -> float:
        return float(entropy(table.mean(axis=0)))

    def _made(self, job: Job, compilation: Any, *others: Any) -> tuple[dspy.Module, dict[str, Any]]:
        """The program that orders its demos for each input."""
        means = sorted(compilation.means.items(), key=lambda known: -float(entropy(known[1])))
        kept = [
            {"permutations": job.slots.permutations(ordering), "content_free": mean.tolist()}
            for ordering, mean in means[: self.num_kept]
        ]
        program = PerInputOrder(job.program, kept)
        program._compiled = True
        return program, {}
