"""Functions that rewrite messages for the command line, with options instead of Python arguments."""

import argparse
import ast
import logging
import re
import shlex

OPTIONS = {
    "accept_changes": "--accept-changes",
    "api_base": "--api-base",
    "api_key": "--api-key-env",
    "auto": "--auto",
    "calibrate": "--calibrate",
    "demos": "--select",
    "devset": "--data",
    "inputs": "--inputs",
    "instructions": "--instructions",
    "log_dir": "--log-dir",
    "max_cost": "--max-cost",
    "max_demos": "--max-demos",
    "max_metric_calls": "--max-calls",
    "max_seconds": "--max-seconds",
    "max_tokens": "--max-tokens",
    "min_per_class": "--min-per-class",
    "num_instructions": "--num-instructions",
    "num_threads": "--threads",
    "programs": "--programs",
    "prompt_model": "--prompt-model",
    "seed": "--seed",
    "signal": "--signal",
    "trainset": "--train",
    "valset": "--val",
}
"""The option for each Python argument. Each option must be in `commands.COMMANDS`."""

PYTHON_ONLY = (
    "candidates=",
    "max_bootstrapped",
    "max_demo_tokens",
    "max_errors",
    "min_demos",
    "num_demos",
    "num_samples",
)
"""Arguments that appear in messages but have no option."""

PHRASES = {
    r"pass an instance of this class, as in metric=(\w+)\(\.\.\.\)": (
        r"write metric = \1(...) in the file, and pass FILE.py:metric"
    ),
    r"pass allow_pickle=True if you trust the file, or save": "save",
    r", or load it with dspy\.load if it was saved with save_program=True": (
        ", or pass FILE.py:NAME of a function that loads it with dspy.load"
    ),
    r"pass student\.program as the student": (
        "pass FILE.py:NAME of the same program without calibration as the first argument"
    ),
    r"pass \S+\.program, and calibrate the result": "start from the uncalibrated program, and pass --calibrate",
    r"pass the data set itself or as_examples\(dataset, program\)": "pass a data set on the hub, as hub:NAME:SPLIT",
    r"as in F1\(\.\.\., field='label'\)": (
        "as in F1(..., field='label'), in a Python file, and pass FILE.py:NAME of this metric as --metric"
    ),
    r"add the missing names to with_inputs\(\.\.\.\)": "add the missing names to --inputs",
    r"num_demos=\w+ added none: pass a program .*, or set num_demos and pass at least": (
        "none could be added: pass --select, or at least"
    ),
    r"pass instructions=\{.*": (
        "pass --instructions propose, or use PLFewShot(instructions={...}) in Python to choose from your own texts"
    ),
    r"pass instructions as a list": "pass your own texts as --instructions",
    r"pass the result and these programs to choose_program": (
        "pass the result and these programs to plr-dspy choose"
    ),
    r"PLFewShot\(demos='(\w+)'\)": r"--select \1",
    r", or pass candidates='labeled', which makes no calls to get demos": "",
    r"\(PLFewShot: max_demos, max_demo_tokens\)": "(--max-demos)",
    r"reduce num_threads, or increase the LM's \w+": "or reduce num_threads",
    r"pass other names as inputs": "pass other names as --inputs",
    r"another value for auto": "another value for --auto",
    # Phrases from reports.
    r"; optimizer\.best_program is (?:your program|the best program so far)": "",
    r"nothing was returned": "nothing was saved",
    r"save the program with program\.save, and load it with": "load the saved program in Python with",
    r"compare the results with evaluate_programs": "compare the results with plr-dspy evaluate",
    r"programs on other examples with evaluate_programs": "programs on other examples with plr-dspy evaluate",
    r"try PLFewShot\(metric, demos='retrieved', max_metric_calls=0\)": "try --select retrieved --max-calls 0",
    r"try PLFewShot\(metric, demos='retrieved', max_metric_calls=0, max_demos=(\d+)\)": (
        r"try --select retrieved --max-calls 0 --max-demos \1"
    ),
    r"use (BatchCalibration\S*), or calibrate=True": r"pass --calibrate, or use \1 in Python",
    r"use (BatchCalibration\S*)$": r"use \1 in Python",
    r"build it: optimizer": "build it in Python: optimizer",
    r"with dspy\.inspect_history\(\) that": "with dspy.inspect_history() in Python that",
    r"set disable_history=False in dspy\.settings, or pass": "pass",
}
"""Patterns of phrases in messages, mapped to their replacements on the command line, as in `re.sub`."""

STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
LIST = rf"""\[(?:{STRING}|[^\]'"])*\]"""
VALUE = rf"{STRING}|{LIST}|[\w.+-]+"
NAMES = "|".join(OPTIONS)
# Names that are not English words, and therefore always refer to an argument.
CERTAIN_NAMES = "|".join(name for name in OPTIONS if "_" in name or name.endswith("set"))
ROW = re.compile(r"\b(trainset|valset|devset)\[(\d+)\]")
PROGRAM = re.compile(rf"\bprograms\[({STRING})\]")
# Quoted text comes from the user, unless it is an argument's value or a program's name. An
# apostrophe within a word does not begin quoted text.
QUOTED = re.compile(rf"={LIST}|\bprograms\[(?:{STRING})\]|(?<![\w=])({STRING}|`[^`]*`)(?!\w)")
KEPT = re.compile("\0(\\d+)\0")  # a placeholder for text that must stay unchanged

# An argument with a value. Arguments in calls, such as PLReorder(auto='light'), do not match.
WITH_VALUE = re.compile(rf"(?<![\w(.])({NAMES})=({VALUE})")
WITHOUT_VALUE = re.compile(
    rf"(?<![\w./'\"-])(?:({CERTAIN_NAMES})|(?<=argument )({NAMES})|(?<=[Oo]mit )({NAMES})"
    rf"|^({NAMES})(?= (?:must|needs|cannot)\b))(?![\w=/]|\.\w)"
)


def in_options(message: str, args: argparse.Namespace) -> str:
    """Return a message with command-line options in place of Python arguments.

    Also replace indices of examples with rows of files. Leave quoted text unchanged, because it may
    come from the user. If an argument has no option, add that it is available only in Python.
    """
    kept: list[str] = []  # text that must stay unchanged

    def keep(text: str) -> str:
        kept.append(text)
        return f"\0{len(kept) - 1}\0"

    def quoted(match: re.Match[str]) -> str:
        return match[0] if match[1] is None else keep(match[1])

    def option_with_value(match: re.Match[str]) -> str:
        option, value = _with_value(OPTIONS[match[1]], match[2])
        return f"{option} {keep(value)}" if value else option

    # Replace quoted text with placeholders first, so that later steps leave the text unchanged.
    message = QUOTED.sub(quoted, message.replace("\0", ""))
    # Replace phrases and rows before arguments, because phrases and rows contain arguments.
    for phrase, replacement in PHRASES.items():
        message = re.sub(phrase, replacement, message)
    message = ROW.sub(lambda match: _row(match, args), message)
    message = PROGRAM.sub(lambda match: keep(str(ast.literal_eval(match[1]))), message)
    message = WITH_VALUE.sub(option_with_value, message)
    message = WITHOUT_VALUE.sub(_option, message).replace("the argument --", "--")
    without_option = [name for name in PYTHON_ONLY if re.search(rf"(?<![\w(]){name}", message)]
    if without_option:
        message += f" (only in Python: {', '.join(without_option).replace('=', '')})"
    return KEPT.sub(lambda match: kept[int(match[1])], message)


def _row(match: re.Match[str], args: argparse.Namespace) -> str:
    """Return a phrase for the row of the user's file that a matched index, such as "trainset[3]", denotes."""
    sources = {
        "trainset": getattr(args, "train", None),
        "valset": getattr(args, "val", None),
        "devset": getattr(args, "data", None),
    }
    return f"row {int(match[2]) + 1} of {sources[match[1]]}"


def _option(match: re.Match[str]) -> str:
    """Return the option that replaces a matched argument."""
    return next(OPTIONS[name] for name in match.groups() if name is not None)


def _with_value(option: str, text: str) -> tuple[str, str]:
    """Return an option and its value for a shell command, given the repr of the argument's value.

    If the argument is None or a bool, the value is empty. For None and False, put "no" before the option.
    """
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return option, text
    if value is None or value is False:
        return f"no {option}", ""
    if value is True or value is ... or value == [...]:
        return option, ""
    values = value if isinstance(value, list) else [value]
    return option, shlex.join(map(str, values))


class OptionFormatter(logging.Formatter):
    """A log formatter that applies `in_options` to the messages of this package."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("%(message)s")
        self._args = args

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.name.startswith("plr_dspy"):
            return in_options(text, self._args)
        return text
