"""LocalE, GlobalE and PDO: the order with the best criterion of its label probabilities.

Criteria are functions of tables ``[E, L]``, a probability distribution over L labels for each of E inputs; larger is
better. Entropies are in nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import dspy
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from plr_dspy.baselines.label_based import Criterion, LabelReorderer
from plr_dspy.labels.outputs import prior_shares
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.arguments import Number, Positive, arguments
from plr_dspy.statistics.calibration import Array


def entropy(distribution: ArrayLike) -> Array:
    """Entropy of distributions ``[..., L]``."""
    entropies: Array = entr(np.asarray(distribution, dtype=np.float64)).sum(axis=-1)
    return entropies


def local_entropy(table: ArrayLike) -> float:
    """Mean entropy over the inputs (LocalE; Lu et al., ACL 2022, Eq. 5): high where no answer is over-confident."""
    return float(entropy(table).mean())


def global_entropy(table: ArrayLike) -> float:
    """Entropy of the shares of the predicted labels (GlobalE; Lu et al., ACL 2022, Eq. 3): high where all occur.

    Of equally probable labels the first is predicted.
    """
    table = np.asarray(table)
    return float(entropy(np.bincount(table.argmax(axis=1), minlength=table.shape[1]) / len(table)))


def mean_confidence(table: ArrayLike) -> float:
    """Minus the mean entropy over the inputs: LocalE as arXiv:2603.21373 words it, which prefers confidence."""
    return -local_entropy(table)


def best_confidence(table: ArrayLike) -> float:
    """Minus the least entropy of any input: GlobalE as arXiv:2603.21373 words it."""
    return -float(entropy(table).min())


def closeness(table: ArrayLike, prior: ArrayLike) -> float:
    """Minus KL(mean distribution || prior) (PDO; Xu et al., NAACL Findings 2024); 0 at best.

    No label has a share of 0 in `prior`, ``[L]``.
    """
    mean = np.asarray(table).mean(axis=0)
    return float(entropy(mean) + mean @ np.log(prior))


@arguments
class LocalE(LabelReorderer):
    """The order whose label distributions are least over-confident: highest mean entropy over probing inputs.

    The LM writes the probing inputs itself, one from each candidate's demos; no label is used. It needs a program
    with one predictor, one finite output (Literal, enum or bool) and text inputs, and an LM that gives
    log-probabilities. It makes ``num_candidates * (1 + inputs)`` program calls, with at most as many inputs as
    candidates, and 2 on each selection example.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them", ACL 2022, Eq. 4 to 6.

    Args:
        metric: Only says in the report how the order does beside the original one, on the selection split.
        variant: "lu", the original; "plr", as arXiv:2603.21373 words it: lowest mean entropy, which prefers
            confident orders.
        num_candidates: Random orders, the original one among them; of fewer orders, all.
        temperature: At which probing inputs are written.
        all others: As in `PLReorder`; with max_metric_calls fewer probing inputs, so that it is never exceeded.
    """

    name = "LocalE"
    entropies: ClassVar[dict[str, Criterion]] = {
        "lu": local_entropy,
        "plr": mean_confidence,
    }

    variant: Literal["lu", "plr"] = "lu"
    temperature: Positive = 2.0  # type: ignore[misc]

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise unless the LM can write inputs: text, and those of the predictor itself."""
        super().check(program, trainset)
        taken = set(program.predictors()[0].signature.input_fields)
        for example in trainset:
            if (given := set(example.inputs().keys())) != taken:
                raise ValueError(
                    f"{self.name} has the LM write inputs like those of the demos, so the predictor must take the "
                    f"program's own inputs {sorted(given)}; it takes {sorted(taken)}: use PDO, PLReorder or TopKOrder"
                )

    def criterion(self, job: Job) -> Criterion:
        """Return the entropy of the method."""
        return self.entropies[self.variant]


@arguments
class GlobalE(LocalE):
    """The order whose predicted labels are most evenly spread: highest entropy of their shares over probing inputs.

    Source: Y. Lu et al., "Fantastically ordered prompts and where to find them", ACL 2022, Eq. 2 and 3.

    Args:
        variant: "lu", the original; "plr", as arXiv:2603.21373 words it: lowest entropy of any probing input.
        metric, num_candidates, temperature, all others: As in `LocalE`.
    """

    name = "GlobalE"
    entropies: ClassVar[dict[str, Criterion]] = {
        "lu": global_entropy,
        "plr": best_confidence,
    }


@arguments
class PDO(LabelReorderer):
    """The order whose mean label distribution is nearest to a prior, by Kullback-Leibler divergence.

    It needs a program with one predictor, one finite output (Literal, enum or bool), and an LM that gives
    log-probabilities. It makes a program call for each order and input, and 2 on each selection example.

    Source: Z. Xu et al., "In-context example ordering guided by label distributions", NAACL Findings 2024.

    Args:
        metric: Only says in the report how the order does beside the original one, on the selection split.
        setting: "few-shot": an empty input, and the uniform distribution. "unlabelled": the train split without its
            labels, and the uniform distribution. "prior": the same, and `prior`.
        prior: Probability of each label, for ``setting="prior"``; None takes the shares in the trainset.
        num_candidates: Random orders, the original one among them; of fewer orders, all.
        all others: As in `PLReorder`; with max_metric_calls fewer inputs, so that it is never exceeded.
    """

    name = "PDO"

    setting: Literal["few-shot", "unlabelled", "prior"] = "few-shot"
    prior: Mapping[Any, Number] | None = None

    def check_together(self) -> None:
        """Raise a ValueError where arguments do not go together."""
        if self.prior is not None and self.setting != "prior":
            raise ValueError(f"prior needs setting='prior'; got setting={self.setting!r}")

    @property
    def fillers(self) -> tuple[str, ...]:  # type: ignore[override]
        """The null input."""
        return ("",) if self.setting == "few-shot" else ()

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        """Raise also where the prior is none."""
        super().check(program, trainset)
        self._prior(program, trainset)

    def criterion(self, job: Job) -> Criterion:
        """Closeness to the prior, or to the uniform distribution."""
        return partial(closeness, prior=self._prior(job.program, job.splits.train))

    def _prior(self, program: dspy.Module, examples: Sequence[dspy.Example]) -> Array:
        """The probability of each label, ``[L]``."""
        output = self.output(program)
        if self.setting != "prior":
            return np.full(len(output.labels), 1.0 / len(output.labels))
        if self.prior is not None:
            return prior_shares(self.prior, output.labels)
        known = output.numbers(examples)
        counts = np.bincount(known[known >= 0], minlength=len(output.labels)).tolist()
        shares = {text: each / max(1, sum(counts)) for text, each in zip(output.labels, counts, strict=True)}
        return prior_shares(shares, output.labels, name="the trainset, or the prior that you pass instead,")
