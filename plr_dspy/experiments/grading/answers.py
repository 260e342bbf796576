"""Decides when the answer to a reasoning task is right.

What is predicted may be a bare answer or a whole solution: the final answer is what stands in its last box, else after
the last "answer is", "Answer:" or "####", else its last expression. In doubt, an answer is wrong.
"""

from __future__ import annotations

import re

from plr_dspy.experiments.grading.equivalence import require_library
from plr_dspy.experiments.grading.expressions import same
from plr_dspy.experiments.grading.final_answers import last_expression, stated_answer, unmarked, verdict
from plr_dspy.experiments.grading.latex import tidy
from plr_dspy.experiments.grading.numerals import last_number, rational, stated_number

_INTEGER = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)")
_TRUTHS = {"yes": True, "true": True, "no": False, "false": False}


def same_number(predicted: str, gold: str) -> bool:
    """Whether an output's final answer is the gold number (GSM8K).

    Args:
        predicted: An answer or a whole solution. An answer that names several numbers is wrong, as is an
            unevaluated "3 * 4"; currency, units and thousands commas do not matter.
        gold: A number, such as "1,250".
    """
    expected = rational(tidy(gold))
    if expected is None:
        return False
    stated = stated_answer(predicted)
    value = last_number(unmarked(predicted)) if stated is None else stated_number(stated)
    return value == expected


def same_expression(predicted: str, gold: str) -> bool:
    """Whether an output's final answer is the gold expression (MATH500, DeepMath).

    Args:
        predicted: An answer or a whole solution. Forms of one value are equal ("1/2" and "0.5", "x = 5" and "5"), a
            rounded decimal and the exact value are not; units do not matter, nor does the order in lists and sets.
        gold: LaTeX, or a word: a choice, yes or no, true or false.

    Raises:
        ImportError: If math-verify is not installed.
    """
    require_library()
    truth = _TRUTHS.get(re.sub(r"\\text\w*|\W", "", gold).lower())
    if truth is not None:
        return verdict(predicted) is truth
    stated = stated_answer(predicted)
    if stated is not None:
        return same(stated, gold)
    candidate, is_prose = last_expression(predicted)
    if same(candidate, gold):
        return True
    return is_prose and same_number(predicted, gold)


def lenient(predicted: str, gold: str) -> bool:
    """Whether the gold answer appears anywhere in an output, as the published code counts answers.

    An integer is right where the output holds it, any other number likewise, and an expression where its LaTeX is part
    of the output's. So "No" is right in "Note", and 3 in "3 apples and 4 pears make 7": a measure to compare with
    published numbers, not one of accuracy.

    Deviation: commas between groups of three digits may also be left out; there, "1,250" holds only 1 and 250. Any
    digits count as an integer, as there for GSM8K; there, for MATH500 and DeepMath, "3.5" does not hold 3.
    """
    gold, outputs = _join(gold.strip()), (predicted, _join(predicted))
    for number in (_INTEGER, _NUMBER):
        if number.fullmatch(gold):
            return any(
                _digits(gold) == _digits(found) for output in outputs for found in number.findall(output)
            )
    spelled, output = _spell(gold), _spell(predicted)
    if fraction := re.fullmatch(r"\\frac\{([^{}]+)\}\{([^{}]+)\}", spelled):
        top, bottom = fraction.groups()
        return any(form in output for form in (spelled, f"{top}/{bottom}", f"({top})/({bottom})"))
    return bool(spelled) and spelled in output


def _join(text: str) -> str:
    """Return a text without the commas between groups of three digits."""
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


def _digits(number: str) -> tuple[bool, str, str]:
    """Return a number's sign and digits, without the zeros that do not count."""
    whole, _, part = number.lstrip("+-").partition(".")
    return number.startswith("-"), whole.lstrip("0"), part.rstrip("0")


def _spell(latex: str) -> str:
    """Return LaTeX without the spacing and the sizes that do not change what it says."""
    latex = re.sub(r"\\[,!;: ]|\\left(?![a-z])|\\right(?![a-z])|\s|^\$+|\$+$", "", latex)
    return re.sub(r"\\[dt]frac", r"\\frac", latex)
