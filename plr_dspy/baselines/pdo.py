"""PDO: orders whose label probabilities agree with a prior.

Source: Z. Xu et al., "In-context example ordering guided by label distributions", NAACL Findings 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import dspy
import numpy as np

from plr_dspy.baselines import criteria
from plr_dspy.baselines.label_based import LabelReorderer
from plr_dspy.baselines.objective import Criterion
from plr_dspy.baselines.probing import FixedInputs, WrittenInputs
from plr_dspy.calibration.outputs import prior_shares
from plr_dspy.optimizer.base import Common
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.calls import Metric
from plr_dspy.programs.content_free import check_text_inputs
from plr_dspy.programs.validation import number

if TYPE_CHECKING:
    from typing_extensions import Unpack

Setting = Literal["few-shot", "unlabelled", "prior"]


class PDO(LabelReorderer):
    """The order whose mean label distribution is nearest to a prior, by Kullback-Leibler divergence.

    It needs a program with one predictor, one finite output (Literal, enum or bool), and an LM that gives
    log-probabilities (`label_probabilities.adapter`). It makes a program call for each order and input, and 2 on each
    selection example.

    Source: Z. Xu et al., "In-context example ordering guided by label distributions", NAACL Findings 2024.

    Args:
        metric: Only says in the report how the order does beside the original one, on the selection split.
        setting: "few-shot": an empty input, and the uniform distribution. "unlabelled": the train split without its
            labels, and the uniform distribution. "prior": the same, and `prior`.
        prior: Probability of each label, for ``setting="prior"``; None takes the shares in the trainset.
        num_candidates: Random orders, the original one among them; of fewer orders, all.
        **common: As in `PLReorder`: max_metric_calls (fewer inputs, so that it is never exceeded), max_seconds,
            num_demos, num_threads, max_errors, seed, log_dir, accept_changes, track_stats, display_progress.

    Attributes:
        report, best_program: As in `PLReorder`.
    """

    name = "PDO"

    def __init__(
        self,
        metric: Metric,
        *,
        setting: Setting = "few-shot",
        prior: Mapping[Any, float] | None = None,
        num_candidates: int = 24,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(metric, num_candidates=num_candidates, **common)
        if setting not in get_args(Setting):
            raise ValueError(f"setting must be one of {get_args(Setting)}; got {setting!r}")
        if prior is not None and (setting != "prior" or not isinstance(prior, Mapping)):
            raise ValueError(
                f"prior must be a dict of labels and probabilities, with setting='prior'; got {prior!r} with "
                f"setting={setting!r}"
            )
        self.setting = setting
        self.prior = None if prior is None else {x: number(f"prior[{x!r}]", p) for x, p in prior.items()}

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the null input is text, or the prior is one."""
        super().check(program, trainset)
        if self.setting == "few-shot":
            for example in trainset:
                check_text_inputs("PDO(setting='few-shot')", dict(example.inputs().items()))
        if self.setting == "prior":
            self._prior(program, trainset)

    def criterion(self, job: Job) -> Criterion:
        """Closeness to the prior, or to the uniform distribution."""
        _, labels = self.output(job.program)
        if self.setting == "prior":
            prior = self._prior(job.program, job.splits.train)
        else:
            prior = np.full(len(labels), 1.0 / len(labels))
        return partial(criteria.closeness, prior=prior)

    def most_calls(self, *, num_train: int, num_orders: int) -> int:
        """One with the null input, or one for each train example."""
        return 1 if self.setting == "few-shot" else num_train

    def probing(self, job: Job) -> FixedInputs | WrittenInputs:
        """The null input, or those of the train split."""
        examples = [dict(example.inputs().items()) for example in job.splits.train]
        if self.setting == "few-shot":
            return FixedInputs([dict.fromkeys(fields, "") for fields in examples[:1]])
        return FixedInputs(examples[: job.plan.num_train_examples])

    def _prior(self, program: dspy.Module, examples: Sequence[dspy.Example]) -> np.ndarray:
        """The probability of each label, ``[L]``."""
        name, labels = self.output(program)
        if self.prior is not None:
            return prior_shares(self.prior, labels)
        answers = [example.get(name) for example in examples]
        counts = {text: sum(a in (value, text) for a in answers) for text, value in labels.items()}
        shares = {text: count / max(1, sum(counts.values())) for text, count in counts.items()}
        return prior_shares(shares, labels, name="the trainset, or the prior that you pass instead,")
