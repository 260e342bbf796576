"""A check that ends a search early if further calls are unlikely to find an improvement."""

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from plr_dspy.scoring.causes import cause_of, main_cause
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord
from plr_dspy.search.space import Candidate, WholeProgram

logger = logging.getLogger(__name__)

ENOUGH_ANSWERS = 20  # minimum number of answers before a warning about unparsable answers
FIRST_ANSWERS = 10  # minimum number of answers before unparsable answers can stop the search
UNPARSED = 0.9  # minimum share of unparsable answers that stops the search
MOSTLY_UNPARSED = 0.5  # minimum share of unparsable answers for a warning
MANY_FAILURES = 5  # minimum number of failed calls to mention in the reason for stopping
ENOUGH_SCORES = 60  # number of scores after which the search stops if all of them are equal
# The search stops after this many comparisons of results on the same example if no results differ.
ENOUGH_PAIRS = 250
SHOW_DEMOS = (
    "show demos, which teach the output format (use PLFewShot, or --select on the command line), or "
)
GIVE_DEMOS = (
    "give each program demos, which teach the output format (in Python, dspy.LabeledFewShot(k=8)), or "
)


class UnreadableReplies(RuntimeError):
    """An error raised if almost no reply can be parsed. Repeating the compile run would raise it again."""


@dataclass
class FutilityCheck:
    """A check of whether further calls of a search would be wasted."""

    evaluator: Evaluator
    num_train: int  # number of examples in the train split; calls on other examples are ignored
    sample: Callable[[], str] = str  # returns one of the answers and its score as text
    compares: bool = True  # whether to stop if no scores differ
    advice: str = "try another adapter"  # what to do if replies cannot be parsed
    by_program: bool = False  # whether this is a race of programs, not a search over prompts
    # Whether a candidate's prompts show demos. By default, assume that they do.
    shows_demos: Callable[[Candidate], bool] = lambda candidate: True
    # Whether any candidate can show demos. If so, unparsable replies stop the search only if their
    # prompts show demos, because demos may teach the output format.
    can_show_demos: bool = True
    has_warned: bool = False  # whether a warning about unparsable answers was logged

    def check(self) -> str:
        """Return why the search should stop, or an empty string if it should continue.

        Raise `UnreadableReplies` if almost no answer can be parsed.
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
        self._check_parsed(by_prompt)
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

    def _check_parsed(self, prompts: Mapping[str, Sequence[CallRecord]]) -> None:
        """Warn if many answers cannot be parsed. Raise `UnreadableReplies` if almost none can be parsed."""
        judged = {
            prompt: records for prompt, records in prompts.items() if self._is_judged(prompt, records)
        }
        records = list(itertools.chain.from_iterable(judged.values()))
        if len(records) < FIRST_ANSWERS or _share_unparsable(records) < MOSTLY_UNPARSED:
            return
        all_records = list(itertools.chain.from_iterable(prompts.values()))
        smaller_share = min(_share_unparsable(records), _share_unparsable(all_records))
        # A single prompt with readable replies is enough to continue.
        if smaller_share >= UNPARSED and not any(map(self._is_readable, prompts.values())):
            raise UnreadableReplies(self._message(judged))
        if len(records) >= ENOUGH_ANSWERS and not self.has_warned:
            logger.warning("%s", self._message(judged))
            self.has_warned = True

    def _message(self, judged: Mapping[str, Sequence[CallRecord]]) -> str:
        """Return a message about unparsable replies to `judged` prompts, with a fix for the main cause."""
        records = list(itertools.chain.from_iterable(judged.values()))
        unparsable = _unparsable(records)
        cause = main_cause(record.error for record in unparsable)
        first = next(record for record in unparsable if cause_of(record.error) is cause)
        share = f"{len(unparsable)} of {len(records)}"
        if cause is not None:
            return f"{share} calls failed ({first.error}: {first.message}): {cause.fix}"
        fix = self.advice
        if not any(map(self._has_demos, judged)):
            fix = (GIVE_DEMOS if self.by_program else SHOW_DEMOS) + fix
        programs = self._of_programs(judged)
        return (
            f"{share} answers could not be parsed{programs}. One error: {first.message}. To fix this, {fix}"
        )

    def _is_judged(self, prompt: str, records: Sequence[CallRecord]) -> bool:
        """Return whether a message about unparsable replies includes this prompt.

        In a race, the message includes programs with many unparsable replies. In a search, it includes
        prompts with demos or, if no candidate can show demos, all prompts.
        """
        if self.by_program:
            return _share_unparsable(records) >= MOSTLY_UNPARSED
        return not self.can_show_demos or self._has_demos(prompt)

    def _of_programs(self, prompts: Iterable[str]) -> str:
        """Return the programs' names in parentheses, or an empty string in a search over prompts."""
        if not self.by_program:
            return ""
        candidates = map(self.evaluator.candidate_with, prompts)
        names = [repr(program.name) for program in candidates if isinstance(program, WholeProgram)]
        return f" ({', '.join(names)})"

    def _has_demos(self, prompt: str) -> bool:
        """Return whether the prompt with this fingerprint shows demos, or True if the prompt is unknown."""
        candidate = self.evaluator.candidate_with(prompt)
        return candidate is None or self.shows_demos(candidate)

    def _is_readable(self, records: Sequence[CallRecord]) -> bool:
        """Return whether the replies to a prompt show that the model can follow the output format.

        In a race, more than 10% of a program's replies must be parsable. In a search, a prompt
        must have several replies, and all of them must be parsable.
        """
        if self.by_program:
            return _share_unparsable(records) < UNPARSED
        return len(records) > 1 and not any(record.outcome for record in records)

    def _find_no_difference(self, examples: Sequence[Sequence[CallRecord]]) -> str:
        """Return why the search should stop if no results differ, else an empty string."""
        scores: list[float] = []
        num_differing = 0
        for records in examples:
            scores += [record.score or 0.0 for record in records]
            # With a metric over a set, different answers may have equal scores.
            num_differing += len({(record.score or 0.0, repr(record.value)) for record in records}) > 1
        if len(scores) >= ENOUGH_SCORES and len(set(scores)) == 1:
            return f"every score was {scores[0]:g} in {len(scores)} calls"
        num_pairs = len(scores) - len(examples)
        if num_pairs >= ENOUGH_PAIRS and not num_differing:
            return f"no score differed between two prompts in {num_pairs} comparisons"
        return ""


def _share_unparsable(records: Sequence[CallRecord]) -> float:
    """Return the share of replies that could not be parsed."""
    return len(_unparsable(records)) / len(records)


def _unparsable(records: Sequence[CallRecord]) -> list[CallRecord]:
    """Return the records of replies that could not be parsed and have no log-probabilities of labels."""
    return [record for record in records if record.outcome == WRONG and record.label_logprobs is None]
