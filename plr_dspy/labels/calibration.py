"""The calibration of label probabilities, as saved with a program."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from plr_dspy.errors import UserError
from plr_dspy.labels.reader import Reading
from plr_dspy.statistics.calibration import calibrated, likeliest_labels


# Reject unknown fields: they mean that a later version saved the file.
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Calibration:
    """A calibration that adds an offset to each label's log-probability.

    The calibrated probabilities are normalized to sum to 1. ``L`` is the number of labels.

    Attributes:
        labels: The text of each label in demos, ``[L]``.
        offsets: The value to add to each label's log-probability, ``[L]``.
        shares: Target share of each label among answers, ``[L]``, or empty if there are no targets.
    """

    labels: tuple[str, ...]
    offsets: tuple[float, ...]
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.offsets) or not np.isfinite(self.offsets).all():
            raise UserError(
                f"calibration must have a finite offset for each label; got {self}: pass one finite number per label "
                "as offsets"
            )

    @classmethod
    def none(cls, labels: Iterable[str]) -> Calibration:
        """Return a calibration that leaves all label probabilities unchanged."""
        names = tuple(labels)
        return cls(names, (0.0,) * len(names))

    def applied(self, reading: Reading) -> Reading:
        """Return a reading with calibrated log-probabilities and the likeliest label.

        `likeliest_labels` defines how ties are broken.
        """
        is_unseen = np.isin(np.arange(len(self.labels)), reading.unseen)
        logs = calibrated(reading.log_probabilities, self.offsets, unseen=is_unseen)
        likeliest = likeliest_labels(reading.log_probabilities, self.offsets, unseen=is_unseen)
        return Reading(self.labels[int(likeliest)], tuple(logs.tolist()), reading.unseen)
