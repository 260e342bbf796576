"""The optimizers LocalE and GlobalE: orders whose predictions are spread over the labels.

Source: Y. Lu et al., "Fantastically ordered prompts and where to find them", ACL 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import dspy

from plr_dspy.baselines import criteria
from plr_dspy.baselines.label_based import LabelReorderer
from plr_dspy.baselines.objective import Criterion
from plr_dspy.baselines.probing import FixedInputs, WrittenInputs
from plr_dspy.optimizer.base import Common
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.calls import Metric
from plr_dspy.programs.content_free import check_text_inputs
from plr_dspy.programs.validation import number

if TYPE_CHECKING:
    from typing_extensions import Unpack

Variant = Literal["lu", "plr"]

CRITERIA: dict[tuple[str, str], Criterion] = {
    ("LocalE", "lu"): criteria.local_entropy,
    ("GlobalE", "lu"): criteria.global_entropy,
    ("LocalE", "plr"): criteria.mean_confidence,
    ("GlobalE", "plr"): criteria.best_confidence,
}


class _Entropy(LabelReorderer):
    least_calls = 2

    def __init__(
        self,
        metric: Metric,
        *,
        variant: Variant = "lu",
        num_candidates: int = 24,
        temperature: float = 2.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(metric, num_candidates=num_candidates, **common)
        if variant not in ("lu", "plr"):
            raise ValueError(f"variant must be 'lu' or 'plr'; got {variant!r}")
        self.variant = variant
        self.temperature = number("temperature", temperature, above=0.0) or 2.0

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the LM can write inputs: text, and those of the predictor itself."""
        super().check(program, trainset)
        taken = set(program.predictors()[0].signature.input_fields)
        for example in trainset:
            inputs = dict(example.inputs().items())
            check_text_inputs(self.name, inputs)
            if inputs.keys() != taken:
                raise ValueError(
                    f"{self.name} has the LM write inputs like those of the demos, so the predictor must take the "
                    f"program's own inputs {sorted(inputs)}; it takes {sorted(taken)}: use PDO, PLReorder or TopKOrder"
                )

    def criterion(self, job: Job) -> Criterion:
        """Return the entropy of the method."""
        return CRITERIA[self.name, self.variant]

    def most_calls(self, *, num_train: int, num_orders: int) -> int:
        """One to write an input, and one for each that was written."""
        return 1 + num_orders

    def probing(self, job: Job) -> FixedInputs | WrittenInputs:
        """Make an input from each order's demos."""
        return WrittenInputs(job.plan.num_train_examples - 1, temperature=self.temperature)


class LocalE(_Entropy):
    """The order whose label distributions are least over-confident: highest mean entropy over probing inputs.

    The LM writes the probing inputs itself, one from each candidate's demos; no label is used. It needs a program
    with one predictor, one finite output (Literal, enum or bool) and text inputs, and an LM that gives
    log-probabilities (`label_probabilities.adapter`). It makes ``num_candidates * (1 + inputs)`` program calls, with
    at most as many inputs as candidates, and 2 on each selection example.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them", ACL 2022, Eq. 4 to 6.

    Args:
        metric: Only says in the report how the order does beside the original one, on the selection split.
        variant: "lu", the original; "plr", as arXiv:2603.21373 words it: lowest mean entropy, which prefers
            confident orders.
        num_candidates: Random orders, the original one among them; of fewer orders, all.
        temperature: At which probing inputs are written.
        **common: As in `PLReorder`: max_metric_calls (fewer probing inputs, so that it is never exceeded),
            max_seconds, num_demos, num_threads, max_errors, seed, log_dir, accept_changes, track_stats,
            display_progress.

    Attributes:
        report, best_program: As in `PLReorder`.
    """

    name = "LocalE"


class GlobalE(_Entropy):
    """The order whose predicted labels are most evenly spread: highest entropy of their shares over probing inputs.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them", ACL 2022, Eq. 2 and 3.

    Args:
        variant: "lu", the original; "plr", as arXiv:2603.21373 words it: lowest entropy of any probing input.
        metric, num_candidates, temperature, **common: As in `LocalE`.

    Attributes:
        report, best_program: As in `PLReorder`.
    """

    name = "GlobalE"
