"""Ends a search that can find nothing, before its budget is spent."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plr_dspy.scoring.causes import cause_of, main_cause
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord

logger = logging.getLogger(__name__)

ENOUGH_ANSWERS = 20  # minimum answers to warn that many cannot be parsed
FIRST_ANSWERS = 10  # minimum answers to stop if hardly any can be parsed; made before all others
UNPARSED = 0.9  # share of unparsable answers at which to stop
MOSTLY_UNPARSED = 0.5  # share of unparsable answers at which to warn
ENOUGH_SCORES = 60  # equal scores that show there is nothing to find
ENOUGH_PAIRS = 250  # pairs of equal scores of two orders on one example that show it, too


@dataclass
class FutilityCheck:
    """Tells whether the calls so far show that no search can find anything."""

    evaluator: Evaluator
    num_train: int  # number of first examples whose calls count
    sample: Callable[[], str] = str  # returns one of the program's answers
    compares: bool = True  # whether equal scores and answers show that there is nothing to find
    advice: str = "try another adapter"  # cure for unparsable replies
    has_warned: bool = False

    def check(self) -> str:
        """Explain why more calls would find nothing, or return an empty string.

        Raises:
            RuntimeError: If hardly any answers can be parsed.
        """
        by_prompt: dict[str, list[CallRecord]] = defaultdict(list)
        by_example: dict[int, list[CallRecord]] = defaultdict(list)
        for (prompt, example), record in self.evaluator.records_asked().items():
            if example < self.num_train and record.outcome != FAILED:
                by_prompt[prompt].append(record)
                by_example[example].append(record)
        self._check_parsed(list(by_prompt.values()))
        if not self.compares:
            return ""
        reason = self._find_no_difference(list(by_example.values()))
        if reason:
            logger.warning(
                "%s: going on would pay for nothing. If this is not meant: check that the metric compares the right "
                "fields, and that the demos reach the model. One answer: %s",
                reason,
                self.sample() or "not known",
            )
        return reason

    def _check_parsed(self, prompts: Sequence[Sequence[CallRecord]]) -> None:
        """Warn if many answers cannot be parsed, and raise if hardly any can; records are grouped by prompt."""
        unparsed = []
        num_calls = 0
        is_readable = False
        for records in prompts:
            num_calls += len(records)
            unparsed += [record for record in records if record.outcome == WRONG and record.label_logprobs is None]
            is_readable = is_readable or (len(records) > 1 and not any(record.outcome for record in records))
        if num_calls < FIRST_ANSWERS or len(unparsed) < MOSTLY_UNPARSED * num_calls:
            return
        cause = main_cause(record.error for record in unparsed)
        first = next(record for record in unparsed if cause_of(record.error) is cause)
        share = f"{len(unparsed)} of {num_calls}"
        message = f"{share} answers could not be parsed; one says: {first.message}. To change that, {self.advice}"
        if cause is not None:
            message = f"{share} calls got no answer ({first.error}: {first.message}): {cause.cure}"
        if len(unparsed) >= UNPARSED * num_calls and not is_readable:
            raise RuntimeError(message)
        if num_calls >= ENOUGH_ANSWERS and not self.has_warned:
            logger.warning("%s", message)
            self.has_warned = True

    def _find_no_difference(self, examples: Sequence[Sequence[CallRecord]]) -> str:
        """Report if no score differs; records are grouped by example."""
        scores: list[float] = []
        num_differing = 0
        for records in examples:
            scores += [record.score or 0.0 for record in records]
            # For a metric over a set, labels tell answers apart, too.
            num_differing += len({(record.score or 0.0, repr(record.value)) for record in records}) > 1
        if len(scores) >= ENOUGH_SCORES and len(set(scores)) == 1:
            return f"every score was {scores[0]:g} in {len(scores)} calls"
        num_pairs = len(scores) - len(examples)
        if num_pairs >= ENOUGH_PAIRS and not num_differing:
            return f"no score differed between two prompts in {num_pairs} comparisons"
        return ""
