"""Replies in which no label can be read: their mean score, and their frequency by ordering.

code          shape   meaning
m, c, E               orderings, other orderings, examples
call_scores   [m, E]  scores of calls, NaN if unknown
read          [m, E]  calls with a label that can be read
shares        [m]     shares of read replies
mean_score            mean score of unread replies
"""

import numpy as np

from plr_dspy.search.model.components import Variances
from plr_dspy.search.model.gains import Families
from plr_dspy.search.model.process import AdditiveProcess
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.statistics.arrays import Array, Mask


class UnreadReplies:
    """The mean score of unread replies, and each ordering's share of read ones.

    Orderings may differ far more in this share than in their answers, so it has its own
    process.

    Attributes:
        mean_score: Mean score of unread replies.
        shares, variances: Posterior of the shares of read replies, ``[m]``.
        process: The process of these shares; None if all replies were read.
        state: Variances of the process, as JSON data.
    """

    def __init__(
        self, call_scores: Array, read: Mask, features: Families | None, is_outsider: Mask, earlier: Variances
    ) -> None:
        self.mean_score = 0.0
        self.shares = np.ones(len(read))
        self.variances = np.zeros(len(read))
        self.process: AdditiveProcess | None = None
        self.state: list[float] = []
        is_called = ~np.isnan(call_scores)
        is_unread = is_called & ~read
        if not is_unread.any():
            return
        self.mean_score = float(call_scores[is_unread].mean())
        table = ScoreTable(np.where(is_called, read, np.nan))
        shares = table.scores[table.known].mean() + table.shrunk_means
        if features is not None:
            self.process = AdditiveProcess(features, table, is_outsider=is_outsider, earlier={"variances": earlier})
            shares = self.process.mean
            self.variances = self.process.variances
            self.state = self.process.state["variances"]
        self.shares = np.clip(shares, 0.0, 1.0)

    def predict(self, features: Families) -> Array:
        """Return the expected shares of read replies of other orderings, ``[c]``."""
        shares = 1.0 if self.process is None else self.process.predict(features)
        return np.clip(shares, 0.0, 1.0)

    def mixed(self, read_scores: Array, shares: Array) -> Array:
        """Return expected scores of all replies, given the scores and shares of read ones."""
        return np.asarray(self.mean_score + shares * (read_scores - self.mean_score))
