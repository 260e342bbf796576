"""Writes LaTeX answers in one way: what people vary, and what does not change the value, is removed."""

from __future__ import annotations

import re

_CHARACTERS = {
    "\u2212": "-",
    "\u2013": "-",
    "\u00d7": r"\times ",
    "\u00b7": r"\cdot ",
    "\u00f7": "/",
    "\u03c0": r"\pi ",
    "\u221e": r"\infty ",
    "\u00b0": r"^{\circ}",
    "\u221a": "sqrt",
    "\u2264": r"\leq ",
    "\u2265": r"\geq ",
    "\u2260": r"\neq ",
    "\u222a": r"\cup ",
    "\u00b1": r"\pm ",
    "\u2208": r"\in ",
    "\u00b2": "^{2}",
    "\u00b3": "^{3}",
    "\u00a0": " ",
    "**": "^",
    "<=": r"\leq ",
    ">=": r"\geq ",
    "!=": r"\neq ",
    r"\$": "",
    "$": "",
    "\u20ac": "",
    "\u00a3": "",
}
FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|gcd|lcm|min|max|det|dim"
_NAMES = "|".join([FUNCTIONS, "pi", "theta", "alpha", "beta", "gamma", "infty"])
_UNIT_WORDS = (
    "cm|mm|km|kg|ft|mph|lbs?|inch(?:es)?|foot|feet|yards?|miles?|(?:centi|milli|kilo)?met(?:er|re)s?|lit(?:er|re)s?|"
    "(?:kilo|milli)?grams?|pounds?|ounces?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|dollars?|cents?|"
    "degrees?|radians?|units?|ways?|people|persons?|students?|points?|values?|pieces?|numbers?|integers?|solutions?"
)
_UNITS = re.compile(
    rf"(?<=[\d}})%\s])\s*(?:(?:square|sq\.?|cubic)\s+)?(?<![A-Za-z\\])(?:{_UNIT_WORDS})"
    rf"(?:\s*(?:/|per)\s*(?:{_UNIT_WORDS}))?\.?(?:\^\{{?\d\}}?)?\s*$"
)
# Upright letters behind a value. They may also be names, so that an answer is read in both ways.
_SYMBOLS = re.compile(
    r"(?<=[\d})])(?:(?:\s|~|\\[ ,;:])*\\(?:text(?:normal|rm)?|mbox|mathrm)\s*\{\s*[msghLlNJWVAKCF]\.?\s*\}"
    r"|~\s*[msghLlNJWVAKCF](?![A-Za-z]))"
)
_TEXT_UNITS = re.compile(r"(?<=[^\s,(\[])\s*\\text\{([^{}]*)\}\s*(?:\^\s*\{?\d\}?)?\s*$")
_NO_UNITS = re.compile(
    r"\d|\b(?:and|or|not|no|if|for|when|hundred|thousand|million|billion|dozen|[ap]\.?\s*m\.?)(?![a-z])"
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREES = r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))"
_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        # Commas and spaces between groups of three digits, before spaces lose their names.
        (r"(?<=\d)(?:,\s*\\!|\{,\}|\\,|\\!)\s*(?=\d{3}(?!\d))", ""),
        (r"\\\(|\\\)|(?<!\\)\\\[|(?<!\\)\\\]|\\displaystyle(?![A-Za-z])|\\!", ""),
        (r"\\(?:left|right|[bB]ig+[lr]?)(?![A-Za-z])\.?", ""),
        (r"(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~", " "),
        (r"\\(?:d|t|c)frac(?![A-Za-z])", r"\\frac"),
        (r"\\([lg])e(?:qslant)?(?![A-Za-z])", r"\\\1eq"),
        (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(?:text(?:normal|bf|it|rm)?|mbox|math(?:rm|bf|it|sf))\s*\{\s*([A-Za-z])\s*\}", r" \1"),
        (r"\\(?:text(?:normal|bf|it|rm)?|mbox|math(?:rm|bf|it|sf))\s*\{", r"\\text{"),
        (r"\s*(?:\\%|\bpercent(?:age)?\b|\\text\{\s*percent(?:age)?\s*\})", "%"),
        (r"\s*,?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*", ","),
        (r"(?<![A-Za-z\\])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])sqrt\s*(\d+|[A-Za-z](?![A-Za-z]))", r"\\sqrt{\1}"),
        (rf"(?<![A-Za-z\\])({_NAMES})(?![A-Za-z])", r"\\\1 "),
        (r"\^\s*(-?(?:\d+|[A-Za-z]))", r"^{\1}"),
        (r"_\s*(\d+|[A-Za-z])", r"_{\1}"),
        (r"(?<!\d)\.(?=\d)", "0."),
        (r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*(?=[(\[\\])", ""),
        (r"^\s*\+", ""),
    ]
]
_END = re.compile(r"(?:(?<!\\)[.,;:\s])+$")
_THOUSANDS = re.compile(r"(-?\d{1,3}(?:,\d{3})+)((?:\.\d+)?%?)")
_SPACES = re.compile(r"(\\[A-Za-z]+ (?=[A-Za-z])|\d (?=\d))| ")


def tidy(text: str, *, symbols: bool = False) -> str:
    """Return an answer in plain LaTeX, without delimiters, units, currency, degrees, spaces and final punctuation.

    Degrees stay in the arguments of trigonometric functions, as radians. A number's thousands commas go; in a list or
    between brackets a comma separates. With `symbols`, the "m" of ``5\\text{ m}`` is a unit too, and not a name.
    """
    if symbols:
        text = _SYMBOLS.sub(r"\\text{unit}", text)
    for character, latex in _CHARACTERS.items():
        text = text.replace(character, latex)
    text = _END.sub("", text.strip())
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _without_units(_without_degrees(text)).strip().rstrip("\\.,;: ")
    if whole := re.fullmatch(r"\\text\s*\{([^{}]*)\}", text):
        text = whole.group(1)
    if number := _THOUSANDS.fullmatch(text):
        text = number.group(1).replace(",", "") + number.group(2)
    text = re.sub(r"\\[A-Za-z]+", lambda command: command.group() + " ", text)
    return _SPACES.sub(r"\1", re.sub(r"\s+", " ", text).strip())


def members(latex: str) -> tuple[str, list[str]]:
    """Take a tidy list, set, tuple or interval apart.

    Returns:
        Its kind: "()", "[]", "(]" or "[)" for what has an order, "{}" for a set, "," for a list, and "" for
        anything else; and its members, those of ``a \\pm b`` both.
    """
    kind, inner = "", latex
    if latex.startswith(r"\{") and latex.endswith(r"\}") and _closes_at(latex, 1) == len(latex) - 1:
        kind, inner = "{}", latex[2:-2]
    elif (
        latex[:1] in {"(", "[", "{"}
        and latex[-1:] in {")", "]", "}"}
        and _closes_at(latex, 0) == len(latex) - 1
    ):
        kind, inner = latex[0] + latex[-1], latex[1:-1]
    parts = [latex] if r"\begin" in latex else _split(inner)
    if kind != "{}" and len(parts) == 1:
        kind, parts = "", [latex]
    parts = [sign for part in parts for sign in _both_signs(part)] if kind in {"", "{}"} else parts
    if len(parts) > 1 and not kind:
        kind = ","
    return kind, parts


def _without_degrees(text: str) -> str:
    """Return LaTeX without degree signs; in the arguments of trigonometric functions degrees become radians."""
    if _TRIGONOMETRY.search(text):
        text = re.sub(rf"(\d+(?:\.\d+)?){_DEGREES}", r"(\1\\cdot\\frac{\\pi}{180})", text)
    return re.sub(_DEGREES, "", text)


def _without_units(text: str) -> str:
    """Return LaTeX without the unit that may follow a number."""
    unit = _TEXT_UNITS.search(text)
    if unit and not _NO_UNITS.search(unit.group(1)):
        text = text[: unit.start()]
    return _UNITS.sub("", text)


def _closes_at(latex: str, start: int) -> int:
    """Return where the bracket at an index is closed, by a bracket of whatever kind; -1 where it is not."""
    depth = 0
    for index in range(start, len(latex)):
        depth += (latex[index] in "([{") - (latex[index] in ")]}")
        if depth == 0:
            return index
    return -1


def _split(latex: str) -> list[str]:
    """Cut a text at the commas and semicolons that no bracket holds."""
    parts, depth = [""], 0
    for character in latex:
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _both_signs(part: str) -> list[str]:
    """Return both values of an expression with one plus-minus sign; any other as it is."""
    if part.count(r"\pm") != 1 or r"\mp" in part:
        return [part]
    return [re.sub(r"^\+", "", re.sub(r"\\pm ?", sign, part)) for sign in "+-"]
