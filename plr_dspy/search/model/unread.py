"""A model for replies without log-probabilities of labels: their frequency and their mean score."""

import numpy as np

from plr_dspy.search.model.gains import Families
from plr_dspy.search.model.process import OUTSIDER_VARIANCE, AdditiveProcess
from plr_dspy.search.model.responses import Calls
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.statistics.arrays import Array


class UnreadReplies:
    """The mean score of unread replies, and each ordering's share of read replies.

    A separate process models the share of read replies, because orderings may differ far more in
    this share than in their answers.

    Attributes:
        mean_score: Mean score of unread replies.
        shares, variances: Posterior means and variances of the shares of read replies, ``[m]``.
        process: The process fitted to these shares. None if all replies were read.
    """

    def __init__(self, calls: Calls, features: Families) -> None:
        size = len(calls.is_program)
        self.mean_score = 0.0
        self.shares = np.ones(size)
        self.variances = np.zeros(size)
        self.process: AdditiveProcess | None = None
        is_read = calls.labels.known
        is_called = calls.scored.known
        is_unread = is_called & ~is_read
        if not is_unread.any():
            return
        self.mean_score = float(calls.scored.scores[is_unread].mean())
        table = ScoreTable(np.where(is_called, is_read, np.nan))
        outsider_variances = OUTSIDER_VARIANCE * calls.is_outsider
        self.process = AdditiveProcess(features, table, outsider_variances=outsider_variances)
        self.shares = np.clip(self.process.mean, 0.0, 1.0)
        self.variances = self.process.variances

    def predict(self, features: Families) -> Array:
        """Return the expected shares of read replies for new orderings, ``[c]``."""
        shares = 1.0 if self.process is None else self.process.predict(features)
        return np.clip(shares, 0.0, 1.0)

    def mixed(self, read_scores: Array, shares: Array) -> Array:
        """Return the expected scores of all replies, given the scores and the shares of read replies."""
        return np.asarray(self.mean_score + shares * (read_scores - self.mean_score))
