"""A check that ends a search early if no improvement can be found."""

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plr_dspy.scoring.causes import cause_of, main_cause
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord

logger = logging.getLogger(__name__)

ENOUGH_ANSWERS = 20  # minimum number of answers before a warning about unparsable answers
FIRST_ANSWERS = 10  # number of answers after which unparsable answers can first stop the search
UNPARSED = 0.9  # share of unparsable answers at which the search stops
MOSTLY_UNPARSED = 0.5  # share of unparsable answers at which a warning is logged
MANY_FAILURES = 5  # number of failed calls from which the reason to stop mentions them
ENOUGH_SCORES = 60  # number of scores after which the search stops if all are equal
# The search stops after this many comparisons of two scores on the same example if all were ties.
ENOUGH_PAIRS = 250


@dataclass
class FutilityCheck:
    """A check of all calls so far for signs that no improvement can be found."""

    evaluator: Evaluator
    num_train: int  # number of examples in the train split; calls on other examples are ignored
    sample: Callable[[], str] = str  # returns one of the program's answers as text
    compares: bool = True  # whether to stop if all scores and answers are equal
    advice: str = "try another adapter"  # what to do if replies cannot be parsed
    by_program: bool = False  # whether whole programs are compared, not prompts
    has_warned: bool = False  # whether a warning about unparsable answers was logged

    def check(self) -> str:
        """Return the reason to stop the search, or an empty string if the search can continue.

        Raise RuntimeError if almost no answer can be parsed.
        """
        by_prompt: dict[str, list[CallRecord]] = defaultdict(list)
        by_example: dict[int, list[CallRecord]] = defaultdict(list)
        failures = []
        for (prompt, example), record in self.evaluator.records_asked().items():
            if record.outcome == FAILED:
                failures.append(record)
            elif example < self.num_train:
                by_prompt[prompt].append(record)
                by_example[example].append(record)
        self._check_parsed(list(by_prompt.values()))
        if not self.compares:
            return ""
        reason = self._find_no_difference(list(by_example.values()))
        if reason and len(failures) >= MANY_FAILURES:
            reason += f", and {len(failures)} calls failed ({failures[0].error}: {failures[0].message})"
        if reason:
            logger.warning(
                "%s, so more calls would be wasted. If you did not expect this, check that the metric compares the "
                "right fields, and that the demos reach the model. One answer: %s",
                reason,
                self.sample() or "unknown",
            )
        return reason

    def _check_parsed(self, prompts: Sequence[Sequence[CallRecord]]) -> None:
        """Warn if many answers cannot be parsed. Raise RuntimeError if almost none can be parsed."""
        unparsable = list(itertools.chain.from_iterable(map(_unparsable, prompts)))
        num_calls = sum(map(len, prompts))
        if num_calls < FIRST_ANSWERS or len(unparsable) < MOSTLY_UNPARSED * num_calls:
            return
        cause = main_cause(record.error for record in unparsable)
        first = next(record for record in unparsable if cause_of(record.error) is cause)
        share = f"{len(unparsable)} of {num_calls}"
        message = (
            f"{share} answers could not be parsed. One error: {first.message}. To fix this, {self.advice}"
        )
        if cause is not None:
            message = f"{share} calls failed ({first.error}: {first.message}): {cause.fix}"
        if len(unparsable) >= UNPARSED * num_calls and not any(map(self._is_readable, prompts)):
            raise RuntimeError(message)
        if num_calls >= ENOUGH_ANSWERS and not self.has_warned:
            logger.warning("%s", message)
            self.has_warned = True

    def _is_readable(self, records: Sequence[CallRecord]) -> bool:
        """Return whether the replies to a prompt show that the model can follow the output format.

        For a whole program, a few parsable replies are enough. For a prompt, there must be
        several replies, and all of them must be parsable.
        """
        if self.by_program:
            return len(_unparsable(records)) < UNPARSED * len(records)
        return len(records) > 1 and not any(record.outcome for record in records)

    def _find_no_difference(self, examples: Sequence[Sequence[CallRecord]]) -> str:
        """Return the reason to stop if no score differs on any example, else an empty string."""
        scores: list[float] = []
        num_differing = 0
        for records in examples:
            scores += [record.score or 0.0 for record in records]
            # If the metric is a metric over a set, answers with equal scores may still have
            # different labels.
            num_differing += len({(record.score or 0.0, repr(record.value)) for record in records}) > 1
        if len(scores) >= ENOUGH_SCORES and len(set(scores)) == 1:
            return f"every score was {scores[0]:g} in {len(scores)} calls of the search"
        num_pairs = len(scores) - len(examples)
        if num_pairs >= ENOUGH_PAIRS and not num_differing:
            return f"no score differed between two prompts in {num_pairs} comparisons"
        return ""


def _unparsable(records: Sequence[CallRecord]) -> list[CallRecord]:
    """Return the calls whose replies could not be parsed."""
    return [record for record in records if record.outcome == WRONG and record.label_logprobs is None]
