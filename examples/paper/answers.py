"""Functions that decide whether the answer to a reasoning task is correct.

An output may be a bare answer or a whole solution. The final answer is the content of the last box. If there is no box,
the final answer is the text after the last "answer is", "Answer:" or "####". If there is no such mark either, the final
answer is the last expression. Ambiguous answers are incorrect.
"""

from __future__ import annotations

import re

from .equivalence import require_library
from .expressions import last_number, rational, same, stated_number, tidy

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE_OR_ESCAPE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARKER = re.compile(
    r"####|\banswer\b(?:\s+to\b[^.:\n]{0,80}?)?\s*(?:\bis\b|\bare\b|=|:)(?:\s*:)?", re.IGNORECASE
)
_MATH = re.compile(
    r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+?)(?<!\\)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
_BOLD = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])")
_LINK = re.compile(
    r"[\s$]*(?:\\\)|\\\])?\s*(?:,|;|,?\s*and|,?\s*or)?\s*(?:\\\(|\\\[)?[\s$]*(?:[A-Za-z]\s*=\s*)?"
)
_ASIDE = re.compile(r"\s+\b(?:because|since|which)\b.*", re.DOTALL)
_SENTENCE_END = re.compile(r"(?:[.?]|(?<=[A-Za-z]{2})!)(?=\s|$)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z])")
_SCALE = re.compile(r"\s*(?:hundred|thousand|million|billion|dozen|percent|%)(?![A-Za-z])")
_AND = re.compile(r"\s*(?:,\s*)?(?:and|or)(?![A-Za-z])\s*|\s*,\s*")
_LAST_WORD = re.compile(r"\b(yes|no|true|false)\W*$", re.IGNORECASE)
_TRUTHS = {"yes": True, "true": True, "no": False, "false": False}
_NUMBERS = (re.compile(r"[-+]?\d+"), re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)"))


def same_number(predicted: str, gold: str) -> bool:
    """Return whether an output's final answer is the gold number, such as "1,250" (GSM8K).

    Answers with several numbers are incorrect, and so are unevaluated products such as "3 * 4".
    Currency, units and thousands commas are ignored.
    """
    expected = rational(tidy(gold))
    stated = stated_answer(predicted)
    value = last_number(_without_bold(predicted)) if stated is None else stated_number(stated)
    return expected is not None and value == expected


def same_expression(predicted: str, gold: str) -> bool:
    """Return whether an output's final answer is the gold expression, in LaTeX or words (MATH500, DeepMath).

    Different forms of a value are equal, such as "1/2" and "0.5", or "x = 5" and "5". A rounded
    decimal differs from the exact value. Units, and the order in lists and sets, are ignored.
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
    """Return whether the gold answer appears anywhere in an output.

    The published code scores answers this way. A gold number must appear as a number, and a gold
    expression must appear as LaTeX. So "Note" is accepted for "No", and "3 apples and 4 pears make 7"
    for 3. Use this metric only for comparisons with published numbers.

    Unlike in the published code, "1,250" contains not only 1 and 250, but also 1250. "3.5" contains the
    integers 3 and 5. In the published code, it contains them for GSM8K but not for the other tasks.
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
    """Return whether a number is negative, and its digits before and after the point without extra zeros."""
    whole, _, part = number.lstrip("+-").partition(".")
    return number.startswith("-"), whole.lstrip("0"), part.rstrip("0")


def _spell(latex: str) -> str:
    """Return LaTeX without spacing and sizing commands, because they do not affect the meaning."""
    latex = re.sub(r"\\[,!;: ]|\\left(?![a-z])|\\right(?![a-z])|\s|^\$+|\$+$", "", latex)
    return re.sub(r"\\[dt]frac", r"\\frac", latex)


def boxes(text: str) -> list[tuple[str, int, int]]:
    r"""Return the content, start and end of each outermost box in `text`.

    A box is a ``\boxed`` or ``\fbox`` followed by text in braces or by a single word. Braces may be
    nested. The commands of inner boxes are removed. An unclosed box has no content, and extends to the
    end of `text`.
    """
    contents: list[tuple[str, int, int]] = []
    end = 0
    while box := _BOX.search(text, end):
        start = box.end()
        content = ""
        if text[start : start + 1] == "{":
            depth = 0
            end = len(text)
            for brace in _BRACE_OR_ESCAPE.finditer(text, start):
                depth += {"{": 1, "}": -1}.get(brace[0], 0)  # An escaped brace is text.
                if depth == 0:
                    content = text[start + 1 : brace.start()]
                    end = brace.end()
                    break
        else:
            content = re.split(r"[\s$]", text[start:], maxsplit=1)[0].rstrip(".,")
            end = start + len(content)
        contents.append((_BOX.sub("", content).strip(), box.start(), end))
    return contents


def stated_answer(output: str) -> str | None:
    """Return the answer in the last box or, without a box, after the last "answer is", "Answer:" or "####".

    Return None if there is no such mark.
    """
    output = _BOLD.sub("", output)
    contents: list[str] = []
    last_end = 0
    for content, start, end in boxes(output):  # Linked boxes form one answer, as in "x = [1] or x = [2]".
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
    # Take the first sentence or line, because an explanation may follow.
    first_line = next(iter(rest.splitlines()), "")
    return _ASIDE.sub("", _SENTENCE_END.split(first_line, maxsplit=1)[0]).strip()


def _leading_formulas(text: str) -> str:
    """Return the formulas at the start of `text`, joined by commas.

    Return an empty string if words precede or continue the formulas.
    """
    formulas: list[str] = []
    end = 0
    while (formula := _MATH.match(text, end)) is not None:
        scale = _SCALE.match(text, formula.end())
        formulas.append(_content(formula) + (scale[0] if scale else ""))
        link = _AND.match(text, scale.end() if scale else formula.end())
        if link is None:
            return ",".join(formulas)
        end = link.end()
    if text[:end].rstrip().endswith(("and", "or")):
        return ""
    return ",".join(formulas)


def _content(formula: re.Match[str]) -> str:
    """Return the text between the delimiters of a formula."""
    return next(group for group in formula.groups() if group)


def last_expression(output: str) -> tuple[str, bool]:
    """Return the last expression in an output without a marked answer, and whether it is in prose."""
    last = next((line.strip() for line in reversed(_without_bold(output).splitlines()) if line.strip()), "")
    if len(_WORD.findall(re.sub(r"\\[A-Za-z]+\s*\{[^{}]*\}", " ", last))) < 3:
        return last, False
    formulas = list(_MATH.finditer(last))
    return (_content(formulas[-1]) if formulas else last.rsplit("=", 1)[-1].strip()), True


def _without_bold(output: str) -> str:
    """Return an output without the markup for bold text."""
    return _BOLD.sub("", output).strip()


def verdict(output: str) -> bool | None:
    """Return True if an output says yes or true, False if it says no or false, and None otherwise."""
    stated = stated_answer(output)
    text = _without_bold(output if stated is None else stated)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    # The first word decides if punctuation follows, as in "No, because the limit is not finite".
    first = re.match(r"\W*([A-Za-z]+)(?=\s*(?:[.,;:!}\u2014-]|$))", lines[0])
    leading = _TRUTHS.get(first[1].lower()) if first else None
    if stated is not None:
        return _only_verdict(stated) if leading is None else leading
    last = _LAST_WORD.search(lines[-1])
    closing = _TRUTHS[last[1].lower()] if last and _only_verdict(lines[-1]) is not None else None
    return leading if closing is None or closing == leading else (closing if leading is None else None)


def _only_verdict(text: str) -> bool | None:
    """Return the verdict in `text` if there is exactly one verdict and no negation, else None."""
    words = re.findall(r"[a-z]+(?:'t)?", text.lower())
    verdicts = {_TRUTHS[word] for word in words if word in _TRUTHS}
    is_negated = any(word in {"not", "cannot", "neither"} or word.endswith("'t") for word in words)
    return verdicts.pop() if len(verdicts) == 1 and not is_negated else None
