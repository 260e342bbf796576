"""Whether two answers are the same expression.

Numbers are compared exactly, lists and sets without regard to order, tuples and intervals bracket for bracket, and
words as words; what is left is compared by a computer algebra system. In doubt, answers differ.
"""

from __future__ import annotations

import re

from plr_dspy.experiments.grading.equivalence import equivalent
from plr_dspy.experiments.grading.latex import FUNCTIONS, members, tidy
from plr_dspy.experiments.grading.numerals import rational

_MAX_LENGTH = 1000
_NAME = re.compile(
    r"(?:\\text ?\{[^{}]*\}|\\?[A-Za-z]+ ?|\([A-Za-z](?:,[A-Za-z])+\)|\|[A-Za-z]+\||\[[A-Z]+\])"
    r"(?:_\{[^{}]*\}|'|\^\{-1\})*(?:\([A-Za-z0-9,|=<>\\ ]*\))?|\\angle [A-Z]+|m\\angle [A-Z]+"
)
_WORDS = re.compile(r"(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z\s.'-]*|[ivx]{2,}", re.DOTALL)
_TEXT = re.compile(r"\s*\\(?:text(?:normal|bf|it|rm)?|mbox|mathrm|textrm)\s*\{([^{}]*)\}[\s.,;]*")
_OPTION = re.compile(r"^\s*(?:option|choice)\s+(?=\(?[A-Z]\)?\W*$)", re.IGNORECASE)
_CHOICE = re.compile(r"\(?([A-Za-z])\)?")
# A number in another base, "1 2", "007" and indices of i and e are read as other numbers, and prose as a product.
_MISREAD = re.compile(r"\d_|\d \d|(?<![\d.])0\d|[eEiI]_|[A-Za-z]{4,}")
_COMMAND = re.compile(r"\\(?:begin|end) ?\{[a-z]+\}|\\[A-Za-z]+ ?")
_RELATION = re.compile(r"<|>|\\[lg]eq|\\in(?![A-Za-z])|\\cup")


def same(predicted: str, gold: str) -> bool:
    """Whether two answers, without any text around them, are the same.

    Raises:
        ImportError: If that needs math-verify, and it is not installed.
    """
    if not predicted.strip() or not gold.strip() or len(predicted) > _MAX_LENGTH:
        return False
    words = _words(gold)
    if words is not None:
        return _plain_words(predicted) == words
    answer = _OPTION.sub("", predicted)
    readings = dict.fromkeys((tidy(answer, symbols=s), tidy(gold, symbols=s)) for s in (False, True))
    return any(_same(*reading) for reading in readings)


def _same(predicted: str, gold: str) -> bool:
    """Whether two tidy answers are the same."""
    if not predicted or not gold:
        return False
    if predicted == gold:
        return True
    if _CHOICE.fullmatch(gold) and _CHOICE.fullmatch(predicted):
        return predicted.strip("()") == gold.strip("()")
    answers, expected = predicted.split(r"\cup"), gold.split(r"\cup")
    if len(answers) == len(expected) > 1:
        return _same_collection([part.strip() for part in answers], [part.strip() for part in expected])
    if ":" in predicted or ":" in gold:
        return _ratio(predicted) == _ratio(gold)
    if members(predicted)[0] or members(gold)[0]:
        return _same_members(predicted, gold)
    if "=" in predicted or "=" in gold:
        return _same_equation(predicted, gold)
    if predicted.endswith("%") or gold.endswith("%"):
        return _same_percentage(predicted, gold)
    first, second = rational(predicted), rational(gold)
    if first is not None and second is not None:
        return first == second
    return _comparable(predicted, gold) and equivalent(predicted, gold)


def _same_members(predicted: str, gold: str) -> bool:
    """Whether two answers are the same of which at least one has members."""
    (predicted_kind, answers), (gold_kind, expected) = members(predicted), members(gold)
    if {predicted_kind, gold_kind} <= {"{}", ",", ""}:
        return _same_collection(answers, expected)
    if predicted_kind == gold_kind:
        return len(answers) == len(expected) and all(map(_same, answers, expected))
    # An interval may also be written as an inequality, or as what a name stands for.
    if "" not in (predicted_kind, gold_kind):
        return False
    if "=" in predicted or "=" in gold:
        return _same_equation(predicted, gold)
    written = predicted if not predicted_kind else gold
    return bool(_RELATION.search(written)) and _comparable(predicted, gold) and equivalent(predicted, gold)


def _same_collection(answers: list[str], expected: list[str]) -> bool:
    """Whether each answer is one of the expected ones, and none is left over."""
    if len(answers) != len(expected):
        return False
    named = {answer.split("=")[0] for answer in answers if "=" in answer}
    if len(named) > 1 and not any("=" in item for item in expected):
        return False  # "x = 2, y = 3" is more than "2, 3"
    left = list(expected)
    for answer in answers:
        match = next((item for item in left if _same(answer, item)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same_equation(predicted: str, gold: str) -> bool:
    """Whether two equations are the same, or an equation and the value that it gives a name."""
    answers, expected = predicted.split("="), gold.split("=")
    if not all([*answers, *expected]):
        return False
    if len(expected) == 1:
        # "2 + 3 = 5" and "x = 5" state 5; "x^2 + y^2 = 5" does not.
        stated = _NAME.fullmatch(answers[0]) or not re.search(r"[A-Za-z]", answers[0])
        return bool(stated) and _same(answers[-1], gold)
    if len(answers) == 1:
        # "y = 2x" gives a name its value, "f = g" does not.
        gives = len(expected) == 2 and _NAME.fullmatch(expected[0]) and not _NAME.fullmatch(expected[1])
        return bool(gives) and _same(predicted, expected[1])
    if len(answers) == len(expected) == 2 and answers[0] == expected[0]:
        return _same(answers[1], expected[1])
    return _comparable(predicted, gold) and equivalent(predicted, gold)


def _same_percentage(predicted: str, gold: str) -> bool:
    """Whether two answers are the same of which at least one is a percentage.

    The sign may be left out, or the share written as a number, where that cannot be mistaken for the other.
    """
    first, second = rational(predicted.rstrip("%")), rational(gold.rstrip("%"))
    if first is None or second is None:
        return False
    if predicted.endswith("%") and gold.endswith("%"):
        return first == second
    percent, plain = (first, second) if predicted.endswith("%") else (second, first)
    return percent / 100 == plain or (percent == plain and abs(plain) > 1)


def _comparable(predicted: str, gold: str) -> bool:
    """Whether a computer algebra system would read both as they are meant."""
    plain = [_COMMAND.sub(r"\\", latex) for latex in (predicted, gold)]
    letters = {letter for latex in plain for letter in latex if letter.isalpha()}
    # It takes R for r.
    return not any(map(_MISREAD.search, plain)) and not any(
        letter.swapcase() in letters for letter in letters
    )


def _ratio(latex: str) -> str:
    """Return a ratio or a time of day, spelled one way."""
    fraction = re.fullmatch(r"\\frac ?\{(\d+)\}\{(\d+)\}", latex)
    text = f"{fraction[1]}:{fraction[2]}" if fraction else re.sub(r"\\text ?\{([^{}]*)\}", r"\1", latex)
    return re.sub(r"(?<=\d)/(?=\d)", ":", re.sub(r"[\s.]", "", text).lower())


def _words(gold: str) -> str | None:
    """Return the words of an answer in words; None where it is mathematics."""
    text = _TEXT.fullmatch(gold)
    inner = text[1] if text else gold
    if text and re.search(r"[A-Za-z]{3}", inner):
        return _plain_words(gold)
    if not _WORDS.fullmatch(inner.strip()) or re.search(rf"\b(?:{FUNCTIONS})\b", inner):
        return None
    return _plain_words(gold)


def _plain_words(text: str) -> str:
    """Return a text in small letters, without markup, punctuation and a leading article."""
    inner = re.sub(r"\\(?:text(?:normal|bf|it|rm)?|mbox|mathrm)\s*\{([^{}]*)\}", r"\1", text)
    inner = re.sub(r"[$\"'.,;:!\\]|\\[()]", " ", inner).casefold()
    return re.sub(r"^(?:the|an|a) ", "", " ".join(inner.split()))
