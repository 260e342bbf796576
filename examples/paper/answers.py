"""Decides when the answer to a reasoning task is right.

What is predicted may be a bare answer or a whole solution: the final answer is what stands in its last box, else after
the last "answer is", "Answer:" or "####", else its last expression. In doubt, an answer is wrong.
"""

from __future__ import annotations

import re

from .equivalence import require_library
from .expressions import last_number, rational, same, stated_number, tidy

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE_OR_ESCAPE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARKER = re.compile(r"####|\banswer\b(?:\s+to\b[^.:\n]{0,80}?)?\s*(?:\bis\b|\bare\b|=|:)(?:\s*:)?", re.IGNORECASE)
_MATH = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+?)(?<!\\)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BOLD = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])")
_LINK = re.compile(r"[\s$]*(?:\\\)|\\\])?\s*(?:,|;|,?\s*and|,?\s*or)?\s*(?:\\\(|\\\[)?[\s$]*(?:[A-Za-z]\s*=\s*)?")
_ASIDE = re.compile(r"\s+\b(?:because|since|which)\b.*", re.DOTALL)
_SENTENCE_END = re.compile(r"(?:[.?]|(?<=[A-Za-z]{2})!)(?=\s|$)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z])")
_SCALE = re.compile(r"\s*(?:hundred|thousand|million|billion|dozen|percent|%)(?![A-Za-z])")
_AND = re.compile(r"\s*(?:,\s*)?(?:and|or)(?![A-Za-z])\s*|\s*,\s*")
_LAST_WORD = re.compile(r"\b(yes|no|true|false)\W*$", re.IGNORECASE)
_TRUTHS = {"yes": True, "true": True, "no": False, "false": False}
_NUMBERS = (re.compile(r"[-+]?\d+"), re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)"))


def same_number(predicted: str, gold: str) -> bool:
    """Whether an output's final answer is the gold number, such as "1,250" (GSM8K).

    An answer that names several numbers is wrong, as is an unevaluated "3 * 4"; currency, units and thousands commas do
    not matter.
    """
    expected = rational(tidy(gold))
    stated = stated_answer(predicted)
    value = last_number(_without_bold(predicted)) if stated is None else stated_number(stated)
    return expected is not None and value == expected


def same_expression(predicted: str, gold: str) -> bool:
    """Whether an output's final answer is the gold expression: LaTeX or a word (MATH500, DeepMath).

    Forms of one value are equal ("1/2" and "0.5", "x = 5" and "5"), a rounded decimal and the exact value are not;
    units do not matter, nor does the order in lists and sets.
    """
    require_library()
    truth = _TRUTHS.get(re.sub(r"\\text\w*|\W", "", gold).lower())
    if truth is not None:
        return verdict(predicted) is truth
    stated = stated_answer(predicted)
    if stated is not None:
        return same(stated, gold)
    candidate, is_prose = last_expression(predicted)
    return same(candidate, gold) or (is_prose and same_number(predicted, gold))


def lenient(predicted: str, gold: str) -> bool:
    """Whether the gold answer appears anywhere in an output, as the published code counts answers.

    An integer is right where the output holds it, any other number likewise, and an expression where its LaTeX is part
    of the output's. So "No" is right in "Note", and 3 in "3 apples and 4 pears make 7": a measure to compare with
    published numbers, not one of accuracy.

    Deviation: commas between groups of three digits may also be left out; there, "1,250" holds only 1 and 250. Any
    digits count as an integer, as there for GSM8K; there, for MATH500 and DeepMath, "3.5" does not hold 3.
    """
    gold, *outputs = (re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text) for text in (gold.strip(), predicted))
    outputs.append(predicted)
    for number in _NUMBERS:
        if number.fullmatch(gold):
            return any(_digits(gold) in map(_digits, number.findall(output)) for output in outputs)
    spelled = _spell(gold)
    output = _spell(predicted)
    fraction = re.fullmatch(r"\\frac\{([^{}]+)\}\{([^{}]+)\}", spelled)
    if fraction:
        top, bottom = fraction.groups()
        return any(form in output for form in (spelled, f"{top}/{bottom}", f"({top})/({bottom})"))
    return bool(spelled) and spelled in output


def _digits(number: str) -> tuple[bool, str, str]:
    """A number's sign and digits, without the zeros that do not count."""
    whole, _, part = number.lstrip("+-").partition(".")
    return number.startswith("-"), whole.lstrip("0"), part.rstrip("0")


def _spell(latex: str) -> str:
    """LaTeX without the spacing and the sizes that do not change what it says."""
    latex = re.sub(r"\\[,!;: ]|\\left(?![a-z])|\\right(?![a-z])|\s|^\$+|\$+$", "", latex)
    return re.sub(r"\\[dt]frac", r"\\frac", latex)


def boxes(text: str) -> list[tuple[str, int, int]]:
    r"""Find the outermost boxes of a text: the content of each, and the range of the text that it takes.

    A box is a ``\boxed`` or ``\fbox`` with braces, which may be nested, or with a single word. Boxes within a box lose
    their commands. A box that is never closed has no content, and takes the rest of the text.
    """
    found: list[tuple[str, int, int]] = []
    end = 0
    while box := _BOX.search(text, end):
        start = box.end()
        content = ""
        if text[start : start + 1] == "{":
            depth = 0
            end = len(text)
            for brace in _BRACE_OR_ESCAPE.finditer(text, start):
                depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped brace is text
                if depth == 0:
                    content = text[start + 1 : brace.start()]
                    end = brace.end()
                    break
        else:
            content = re.split(r"[\s$]", text[start:], maxsplit=1)[0].rstrip(".,")
            end = start + len(content)
        found.append((_BOX.sub("", content).strip(), box.start(), end))
    return found


def stated_answer(output: str) -> str | None:
    """The answer in an output's last box, else after its last "answer is", "Answer:" or "####"; None without any."""
    output = _BOLD.sub("", output)
    contents: list[str] = []
    last_end = 0
    for content, start, end in boxes(output):  # with those that lead up to the last: "x = [1] or x = [2]"
        if contents and not _LINK.fullmatch(output, last_end, start):
            contents = []
        contents.append(content)
        last_end = end
    if contents:
        return ",".join(dict.fromkeys(contents))
    markers = list(_MARKER.finditer(output))
    if not markers:
        return None
    rest = output[markers[-1].end() :].strip()
    formulas = _leading_formulas(rest)
    if formulas:
        return formulas
    # The first sentence or line, without the reason that may follow.
    first = next(iter(rest.splitlines()), "")
    return _ASIDE.sub("", _SENTENCE_END.split(first, maxsplit=1)[0]).strip()


def _leading_formulas(text: str) -> str:
    """The formulas that a text begins with, as a list; nothing where it begins, or goes on, with words."""
    found: list[str] = []
    end = 0
    while (formula := _MATH.match(text, end)) is not None:
        scale = _SCALE.match(text, formula.end())
        found.append(_content(formula) + (scale[0] if scale else ""))
        link = _AND.match(text, scale.end() if scale else formula.end())
        if link is None:
            return ",".join(found)
        end = link.end()
    return "" if not found or text[:end].rstrip().endswith(("and", "or")) else ",".join(found)


def _content(formula: re.Match[str]) -> str:
    """What stands between the delimiters of a formula."""
    return next(group for group in formula.groups() if group)


def last_expression(output: str) -> tuple[str, bool]:
    """Find the expression that an output which marks no answer ends with, and say whether words stand around it."""
    last = next((line.strip() for line in reversed(_without_bold(output).splitlines()) if line.strip()), "")
    if len(_WORD.findall(re.sub(r"\\[A-Za-z]+\s*\{[^{}]*\}", " ", last))) < 3:
        return last, False
    formulas = list(_MATH.finditer(last))
    return (_content(formulas[-1]) if formulas else last.rsplit("=", 1)[-1].strip()), True


def _without_bold(output: str) -> str:
    """An output without markup for bold text."""
    return _BOLD.sub("", output).strip()


def verdict(output: str) -> bool | None:
    """Whether an output says yes (or true) or no (or false); None where it says neither, or both."""
    stated = stated_answer(output)
    text = _without_bold(output if stated is None else stated)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    # "No, because the limit is not finite": a first word that stands alone speaks for all.
    first = re.match(r"\W*([A-Za-z]+)(?=\s*(?:[.,;:!}\u2014-]|$))", lines[0])
    leading = _TRUTHS.get(first[1].lower()) if first else None
    if stated is not None:
        return _only_verdict(stated) if leading is None else leading
    last = _LAST_WORD.search(lines[-1])
    closing = _TRUTHS[last[1].lower()] if last and _only_verdict(lines[-1]) is not None else None
    return leading if closing is None or closing == leading else (closing if leading is None else None)


def _only_verdict(text: str) -> bool | None:
    """The only verdict in a text; None where there is none, or one that is denied, or several."""
    words = re.findall(r"[a-z]+(?:'t)?", text.lower())
    found = {_TRUTHS[word] for word in words if word in _TRUTHS}
    denied = any(word in {"not", "cannot", "neither"} or word.endswith("'t") for word in words)
    return found.pop() if len(found) == 1 and not denied else None
