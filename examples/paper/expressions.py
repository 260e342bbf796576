"""Functions that compare answers as expressions and extract numbers from answers.

Answers are normalized first, to remove variations in notation. Then numbers are compared exactly, and words as text.
The order and the brackets matter in tuples and intervals, but not in lists and sets. A computer algebra system compares
all other expressions. Answers that cannot be compared are unequal.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .equivalence import equivalent

_CHARACTERS = {"\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u00f7": "/"}
_CHARACTERS |= {"\u03c0": r"\pi ", "\u221e": r"\infty ", "\u00b0": r"^{\circ}", "\u221a": "sqrt"}
_CHARACTERS |= {
    "\u2264": r"\leq ",
    "\u2265": r"\geq ",
    "\u2260": r"\neq ",
    "\u222a": r"\cup ",
    "\u00b1": r"\pm ",
}
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
# Upright letters after a value may be units or names of variables, so answers are compared in both readings.
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
        # Remove thousands separators before the rules for spaces, because some are LaTeX spaces.
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
        (r"^([^<>=,]+)>([^<>=,]+)>([^<>=,]+)$", r"\3<\2<\1"),
    ]
]
_END = re.compile(r"(?:(?<!\\)[.,;:\s])+$")
_THOUSANDS = re.compile(r"(-?\d{1,3}(?:,\d{3})+)((?:\.\d+)?%?)")
_SPACES = re.compile(r"(\\[A-Za-z]+ (?=[A-Za-z])|\d (?=\d))| ")


def tidy(text: str, *, symbols: bool = False) -> str:
    """Return an answer as plain LaTeX, without delimiters, units, currency, spaces or final punctuation.

    Degree signs are removed. If there is a trigonometric function, degrees become radians. Thousands
    commas are removed only if the whole answer is a number. If `symbols` is true, the "m" in
    ``5\\text{ m}`` is a unit, not a name.
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
    whole = re.fullmatch(r"\\text\s*\{([^{}]*)\}", text)
    if whole:
        text = whole.group(1)
    number = _THOUSANDS.fullmatch(text)
    if number:
        text = number.group(1).replace(",", "") + number.group(2)
    text = re.sub(r"\\[A-Za-z]+", lambda command: command.group() + " ", text)
    return _SPACES.sub(r"\1", re.sub(r"\s+", " ", text).strip())


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
    # Exclude numbers before a variable, such as 5x, or before an abbreviated scale, such as 5k.
    r"(?![xyznkMBK](?![A-Za-z]))"
)
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12}
_JOINED = re.compile(
    r"\s*(?:[-+*/^x\u00d7\u00f7\u2013]|\\times|\\cdot|\\div|to|through|in|(?:out\s+)?of)\s*\(?|:"
    r"|[^.!?;\n=]*\b(?:or|and|times|plus|minus)\s*\(?|\s*[,;]\s*",
    re.IGNORECASE,
)
_PART_BEFORE = re.compile(
    r"(?:[\^_]\s*\{?|\\frac\s*\{?|\\sqrt\s*\{?|\}\s*\{|[A-Za-z)\]}]\s*[-+*/]\s*\(?)\s*-?$"
)
_PART_AFTER = re.compile(r"\s*(?:[\^_*+]|\\times|\\cdot|\\frac|\\sqrt|\\pi|/\s*\d)|!(?!\s*$)")
_DENIED = re.compile(r"\b(?:not|never|cannot)\b|n't\b", re.IGNORECASE)


Mention = tuple[Fraction, int, int]
"""A number in a string: its value, start and end."""


def rational(latex: str) -> Fraction | None:
    """Return the value of a normalized decimal, fraction or mixed number, or None for other expressions."""
    match = _RATIONAL.fullmatch(latex) if len(latex) <= _MAX_LENGTH else None
    if match is None:
        return None
    over = match["top"] or match["over"] or match["number"]
    under = match["bottom"] or match["under"] or "1"
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
    """Return all numbers in `text`, in order."""
    numbers = []
    for match in _MENTION.finditer(text.replace("\u2212", "-")):
        under = match["under"]
        if len(match[0]) <= _MAX_LENGTH and not (under and not int(under)):
            value = Fraction(match["number"].replace(",", "")) / int(under or 1)
            value *= _SCALES.get(match["scale"] or "", 1) * (-1 if match[0].startswith("-") else 1)
            numbers.append((value, *match.span()))
    return numbers


def stated_number(answer: str) -> Fraction | None:
    """Return the number in a stated answer, such as "$18 a day", or None if it is missing or ambiguous."""
    number = _whole_number(answer)
    if number is not None:
        return number
    answer = answer.rsplit("=", 1)[-1]
    numbers = mentions(answer)
    if not numbers or not _is_separate(answer, numbers[0]):
        return None
    value, start, end = numbers[0]
    if _DENIED.search(answer[:start]):
        return None
    if len({value for value, *_ in numbers}) > 1:
        is_first = not re.search(r"[A-Za-z]", answer[:start])
        if not is_first or _JOINED.fullmatch(answer[end : numbers[1][1]]):
            return None
    return value


def last_number(text: str) -> Fraction | None:
    """Return the last number in `text`.

    Return None if this number is negated, or if it is one of several terms or alternatives.
    """
    number = _whole_number(text)
    if number is not None:
        return number
    numbers = mentions(text)
    if not numbers or not _is_separate(text, numbers[-1]):
        return None
    value, start, _ = numbers[-1]
    if re.search(r"\bnot\s*$", text[:start]):
        return None
    if len(numbers) > 1 and numbers[-2][0] != value:
        between = text[numbers[-2][2] : start]
        if _JOINED.fullmatch(between.rstrip("$\u20ac\u00a3")):
            return None
    return value


def _whole_number(text: str) -> Fraction | None:
    """Return the value of `text` if it is only a number, else None."""
    return rational(tidy(text)) if len(text) <= _MAX_LENGTH else None


def _is_separate(text: str, mention: Mention) -> bool:
    """Return whether a number is not part of a power, a product, a fraction or a subscript."""
    return not _PART_BEFORE.search(text[: mention[1]]) and not _PART_AFTER.match(text, mention[2])


_NAME = re.compile(
    r"(?:\\text ?\{[^{}]*\}|\\?[A-Za-z]+ ?|\([A-Za-z](?:,[A-Za-z])+\)|\|[A-Za-z]+\||\[[A-Z]+\])"
    r"(?:_\{[^{}]*\}|'|\^\{-1\})*(?:\([A-Za-z0-9,|=<>\\ ]*\))?|\\angle [A-Z]+|m\\angle [A-Z]+"
)
_TEXT_COMMAND = r"\\(?:text(?:normal|bf|it|rm)?|mbox|mathrm)\s*\{([^{}]*)\}"
_WORDS = re.compile(r"(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z\s.'-]*|[ivx]{2,}", re.DOTALL)
_OPTION = re.compile(r"^\s*(?:option|choice)\s+(?=\(?[A-Z]\)?\W*$)", re.IGNORECASE)
_CHOICE = re.compile(r"\(?([A-Za-z])\)?")
# math-verify misreads numbers in other bases, "1 2", "007", indexed letters i and e, and prose.
_MISREAD = re.compile(r"\d_|\d \d|(?<![\d.])0\d|[eEiI]_|[A-Za-z]{4,}")
_COMMAND = re.compile(r"\\(?:begin|end) ?\{[a-z]+\}|\\[A-Za-z]+ ?")


def same(predicted: str, gold: str) -> bool:
    """Return whether two answers are equal. The answers must have no surrounding text."""
    if not predicted.strip() or not gold.strip() or len(predicted) > _MAX_LENGTH:
        return False
    if _is_words(gold):
        return _plain_words(predicted) == _plain_words(gold)
    answer = _OPTION.sub("", predicted)
    return any(
        _same_tidy(tidy(answer, symbols=symbols), tidy(gold, symbols=symbols)) for symbols in (False, True)
    )


def _same_tidy(predicted: str, gold: str) -> bool:
    """Return whether two normalized answers are equal."""
    if not predicted or not gold:
        return False
    if predicted == gold:
        return True
    if _CHOICE.fullmatch(gold) and _CHOICE.fullmatch(predicted):
        return predicted.strip("()") == gold.strip("()")
    if ":" in predicted + gold:
        return _ratio(predicted) == _ratio(gold)
    if "=" in predicted and "=" not in gold and "," not in predicted:
        # "2 + 3 = 5" and "x = 5" state the value 5, but "x^2 + y^2 = 5" does not.
        left, _, value = predicted.rpartition("=")
        name = left.split("=")[0]
        return bool(_NAME.fullmatch(name) or not re.search("[A-Za-z]", name)) and _same_tidy(value, gold)
    if "=" in gold and "=" not in predicted and "," not in gold:
        # "y = 2x" assigns a value to a name, but "f = g" does not.
        name, _, value = gold.partition("=")
        return bool(_NAME.fullmatch(name) and not _NAME.fullmatch(value)) and _same_tidy(predicted, value)
    return _same_value(predicted, gold)


def _same_value(predicted: str, gold: str) -> bool:
    """Return whether two numbers, collections or other expressions are equal."""
    # If the gold answer is a percentage, the percent sign is optional in the predicted answer.
    first = rational(predicted.rstrip("%") if gold.endswith("%") else predicted)
    second = rational(gold.rstrip("%"))
    if first is not None and second is not None and not gold.endswith("%"):
        return first == second
    if first is not None and first == second:
        return True
    if _differ_in_form(predicted, gold):
        return False
    return _is_readable(predicted, gold) and equivalent(predicted, gold)


def _differ_in_form(predicted: str, gold: str) -> bool:
    """Return whether two collections differ in a way that math-verify overlooks."""
    if "=" not in gold and len(set(re.findall(r"([A-Za-z]) ?=", predicted))) > 1:
        return True  # "x = 2, y = 3" differs from "2, 3", which has no names.
    if "," not in predicted or "," not in gold:
        return False
    # math-verify reads a tuple as a list and drops repeated members of a set, so compare the numbers of
    # members and the kinds of brackets.
    return predicted.count(",") != gold.count(",") or (predicted[0] in "([") != (gold[0] in "([")


def _is_readable(predicted: str, gold: str) -> bool:
    """Return whether math-verify parses both answers as intended, although it ignores case."""
    plain = [_COMMAND.sub(r"\\", latex) for latex in (predicted, gold)]
    letters = set(filter(str.isalpha, plain[0] + plain[1]))
    in_both_cases = any(letter.swapcase() in letters for letter in letters)
    return not in_both_cases and not any(map(_MISREAD.search, plain))


def _ratio(latex: str) -> str:
    """Return a ratio or a time of day in a normalized form."""
    text = re.sub(r"\\text|[{}\s.]", "", latex).lower()
    return re.sub(r"(?<=\d)/(?=\d)", ":", text)


def _is_words(gold: str) -> bool:
    """Return whether an answer consists of words, not mathematics."""
    text = re.fullmatch(rf"\s*{_TEXT_COMMAND}[\s.,;]*", gold)
    if text:
        return bool(re.search(r"[A-Za-z]{3}", text[1]) or _WORDS.fullmatch(text[1].strip()))
    return bool(_WORDS.fullmatch(gold.strip())) and not re.search(rf"\b(?:{FUNCTIONS})\b", gold)


def _plain_words(text: str) -> str:
    """Return `text` in lowercase, without markup, punctuation or a leading article."""
    inner = re.sub(_TEXT_COMMAND, r"\1", text)
    inner = re.sub(r"[$\"'.,;:!\\]|\\[()]", " ", inner).casefold()
    return re.sub(r"^(?:the|an|a) ", "", " ".join(inner.split()))
