"""Whether two answers are the same expression, and the numbers that answers name.

Answers are written in one way first: what people vary, and what does not change the value, is removed. Numbers are then
compared exactly, lists and sets without regard to order, tuples and intervals bracket for bracket, and words as words;
what is left is compared by a computer algebra system. In doubt, answers differ.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import accumulate, pairwise

from .equivalence import equivalent

_CHARACTERS = {"\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u00f7": "/"}
_CHARACTERS |= {"\u03c0": r"\pi ", "\u221e": r"\infty ", "\u00b0": r"^{\circ}", "\u221a": "sqrt"}
_CHARACTERS |= {"\u2264": r"\leq ", "\u2265": r"\geq ", "\u2260": r"\neq ", "\u222a": r"\cup ", "\u00b1": r"\pm "}
_CHARACTERS |= {"\u2208": r"\in ", "\u00b2": "^{2}", "\u00b3": "^{3}", "\u00a0": " ", "**": "^"}
_CHARACTERS |= {"<=": r"\leq ", ">=": r"\geq ", "!=": r"\neq "}
_CHARACTERS |= dict.fromkeys((r"\$", "$", "\u20ac", "\u00a3"), "")
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
    """An answer in plain LaTeX, without delimiters, units, currency, degrees, spaces and final punctuation.

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
    if _TRIGONOMETRY.search(text):
        text = re.sub(rf"(\d+(?:\.\d+)?){_DEGREES}", r"(\1\\cdot\\frac{\\pi}{180})", text)
    text = re.sub(_DEGREES, "", text)
    unit = _TEXT_UNITS.search(text)
    if unit and not _NO_UNITS.search(unit[1]):
        text = text[: unit.start()]
    text = _UNITS.sub("", text).strip().rstrip("\\.,;: ")
    if whole := re.fullmatch(r"\\text\s*\{([^{}]*)\}", text):
        text = whole.group(1)
    if number := _THOUSANDS.fullmatch(text):
        text = number.group(1).replace(",", "") + number.group(2)
    text = re.sub(r"\\[A-Za-z]+", lambda command: command.group() + " ", text)
    return _SPACES.sub(r"\1", re.sub(r"\s+", " ", text).strip())


def members(latex: str) -> tuple[str, list[str]]:
    """The kind of a tidy answer, and its members, those of ``a \\pm b`` both.

    "()", "[]", "(]" and "[)" have an order, "{}" is a set, "," a list, and "" anything else.
    """
    kind, inner, depths = "", latex, _depths(latex)
    closed = depths[-1:] == [0]
    if closed and latex.startswith(r"\{") and latex.endswith(r"\}") and 0 not in depths[1:-1]:
        kind, inner = "{}", latex[2:-2]
    elif closed and latex[0] in "([{" and latex[-1] in ")]}" and 0 not in depths[:-1]:
        kind, inner = latex[0] + latex[-1], latex[1:-1]
    parts = [latex] if r"\begin" in latex else _split(inner)
    if kind != "{}" and len(parts) == 1:
        kind, parts = "", [latex]
    parts = [sign for part in parts for sign in _both_signs(part)] if kind in {"", "{}"} else parts
    return ("," if len(parts) > 1 and not kind else kind), parts


def _depths(latex: str) -> list[int]:
    """How many brackets, of whatever kind, are open after each character."""
    return list(accumulate((each in "([{") - (each in ")]}") for each in latex))


def _split(latex: str) -> list[str]:
    """Cut a text at the commas and semicolons that no bracket holds."""
    places = enumerate(zip(latex, _depths(latex), strict=True))
    cuts = [-1, *(i for i, (each, depth) in places if each in ",;" and depth == 0), len(latex)]
    return [latex[start + 1 : end].strip() for start, end in pairwise(cuts)]


def _both_signs(part: str) -> list[str]:
    """Both values of an expression with one plus-minus sign; any other as it is."""
    if part.count(r"\pm") != 1 or r"\mp" in part:
        return [part]
    return [re.sub(r"^\+", "", re.sub(r"\\pm ?", sign, part)) for sign in "+-"]


_MAX_LENGTH = 1000
_DIGITS = r"(?!0\d)\d+(?:\.\d+)?"
_RATIONAL = re.compile(
    rf"(?P<sign>-?)(?:(?P<whole>\d+)(?: (?=\d+/)|(?=\\frac)))?"
    rf"(?:\\frac ?\{{(?P<inner>-?)(?P<top>{_DIGITS})\}}\{{(?P<bottom>{_DIGITS})\}}"
    rf"|(?P<over>\d+)/(?P<under>\d+)|(?P<number>{_DIGITS}))"
)
_MENTION = re.compile(
    r"(?:(?<![\w)\].}^])-)?(?<![\w.^])[$\u20ac\u00a3]?"
    r"(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?!\.?\d)(?:/(?P<under>\d+))?"
    r"(?:\s*(?P<scale>hundred|thousand|million|billion|dozen)\b)?"
    # An unknown, or an abbreviated thousand, makes it another number.
    r"(?![xyznkMBK](?![A-Za-z]))"
)
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12}
_JOINED = re.compile(
    r"\s*(?:[-+*/^x\u00d7\u00f7\u2013]|\\times|\\cdot|\\div|to|through|in|(?:out\s+)?of)\s*\(?|:"
    r"|[^.!?;\n=]*\b(?:or|and|times|plus|minus)\s*\(?|\s*[,;]\s*",
    re.IGNORECASE,
)
_PART_BEFORE = re.compile(r"(?:[\^_]\s*\{?|\\frac\s*\{?|\\sqrt\s*\{?|\}\s*\{|[A-Za-z)\]}]\s*[-+*/]\s*\(?)\s*-?$")
_PART_AFTER = re.compile(r"\s*(?:[\^_*+]|\\times|\\cdot|\\frac|\\sqrt|\\pi|/\s*\d)|!(?!\s*$)")
_DENIED = re.compile(r"\b(?:not|never|cannot)\b|n't\b", re.IGNORECASE)


Mention = tuple[Fraction, int, int]
"""A number in a text: its value, and where it begins and ends."""


def rational(latex: str) -> Fraction | None:
    """The value of a tidy decimal, fraction or mixed number; None of anything else."""
    match = _RATIONAL.fullmatch(latex) if len(latex) <= _MAX_LENGTH else None
    if match is None:
        return None
    over, under = match["top"] or match["over"] or match["number"], match["bottom"] or match["under"] or "1"
    if not Fraction(under):
        return None
    value = Fraction(over) / Fraction(under)
    if match["inner"]:
        value = -value
    if match["whole"]:
        if value < 0 or value >= 1:
            return None
        value += int(match["whole"])
    return -value if match["sign"] else value


def mentions(text: str) -> list[Mention]:
    """Find all numbers of a text, in its order."""
    found = []
    for match in _MENTION.finditer(text.replace("\u2212", "-")):
        under = match["under"]
        if len(match[0]) <= _MAX_LENGTH and not (under and not int(under)):
            value = Fraction(match["number"].replace(",", "")) / int(under or 1)
            value *= _SCALES.get(match["scale"] or "", 1) * (-1 if match[0].startswith("-") else 1)
            found.append((value, *match.span()))
    return found


def stated_number(answer: str) -> Fraction | None:
    """The number that a stated answer, such as "$18 a day", names; None where it names none, or several."""
    if (value := _written_number(answer)) is not None:
        return value
    answer = answer.rsplit("=", 1)[-1]
    found = mentions(answer)
    if not found or not _alone(answer, found[0]):
        return None
    value, start, end = found[0]
    if _DENIED.search(answer[:start]):
        return None
    if len({value for value, *_ in found}) > 1:
        leads = not re.search(r"[A-Za-z]", answer[:start])
        if not leads or _JOINED.fullmatch(answer[end : found[1][1]]):
            return None
    return value


def last_number(text: str) -> Fraction | None:
    """The last number of a text; None where there is none, or where it is one term or choice of several."""
    if (value := _written_number(text)) is not None:
        return value
    found = mentions(text)
    if not found or not _alone(text, found[-1]):
        return None
    value, start, _ = found[-1]
    if re.search(r"\bnot\s*$", text[:start]):
        return None
    if len(found) > 1 and found[-2][0] != value:
        between = text[found[-2][2] : start]
        if _JOINED.fullmatch(between.rstrip("$\u20ac\u00a3")):
            return None
    return value


def _written_number(text: str) -> Fraction | None:
    """The value of a text that is a number and nothing else; None of any other."""
    return rational(tidy(text)) if len(text) <= _MAX_LENGTH else None


def _alone(text: str, mention: Mention) -> bool:
    """Whether a number is no part of a power, a product, a fraction or a subscript."""
    return not _PART_BEFORE.search(text[: mention[1]]) and not _PART_AFTER.match(text, mention[2])


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
    """Whether two answers, without any text around them, are the same."""
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
        if (match := next((item for item in left if _same(answer, item)), None)) is None:
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
    twice = any(letter.swapcase() in letters for letter in letters)
    return not twice and not any(map(_MISREAD.search, plain))


def _ratio(latex: str) -> str:
    """A ratio or a time of day, spelled one way."""
    fraction = re.fullmatch(r"\\frac ?\{(\d+)\}\{(\d+)\}", latex)
    text = f"{fraction[1]}:{fraction[2]}" if fraction else re.sub(r"\\text ?\{([^{}]*)\}", r"\1", latex)
    return re.sub(r"(?<=\d)/(?=\d)", ":", re.sub(r"[\s.]", "", text).lower())


def _words(gold: str) -> str | None:
    """The words of an answer in words; None where it is mathematics."""
    text = _TEXT.fullmatch(gold)
    inner = text[1] if text else gold
    if text and re.search(r"[A-Za-z]{3}", inner):
        return _plain_words(gold)
    if not _WORDS.fullmatch(inner.strip()) or re.search(rf"\b(?:{FUNCTIONS})\b", inner):
        return None
    return _plain_words(gold)


def _plain_words(text: str) -> str:
    """A text in small letters, without markup, punctuation and a leading article."""
    inner = re.sub(r"\\(?:text(?:normal|bf|it|rm)?|mbox|mathrm)\s*\{([^{}]*)\}", r"\1", text)
    inner = re.sub(r"[$\"'.,;:!\\]|\\[()]", " ", inner).casefold()
    return re.sub(r"^(?:the|an|a) ", "", " ".join(inner.split()))
