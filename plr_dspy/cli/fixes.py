"""Functions that name options of the command line, instead of Python arguments, in messages."""

import argparse
import logging
import re

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

SOURCES = {"trainset": "train", "valset": "val", "devset": "data"}
"""The parsed argument that names the file of each list of examples."""

NAMES = "|".join(OPTIONS)
# Names that are not English words, and therefore always refer to an argument.
CERTAIN_NAMES = "|".join(name for name in OPTIONS if "_" in name or name.endswith("set"))
VALUED = rf"(?P<valued>{NAMES})=(?P<value>True\b|\[[^\]]*\])?"
# After "omit", even an English word, such as "programs", refers to an argument.
NAMED = rf"(?P<named>{CERTAIN_NAMES}|(?<=[Oo]mit )(?:{NAMES}))(?![\w/]|\.\w)"
# Quoted text stays unchanged, even if it is cut off with "…". So do Python calls, such as F1('yes').
QUOTED = r"(?<!\w)(?P<quote>['\"`])(?:\\.|[^\\])*?(?:(?P=quote)(?!\w)|…)"
CALL = r"\w\([^()]*\)"
ARGUMENT = re.compile(rf"{QUOTED}|{CALL}|(?<![\w(./-])(?:{VALUED}|{NAMED})")
SEPARATOR = re.compile(r"(?<=['\"]), (?=['\"])")  # between the strings in a list
ROW = re.compile(r"\b(trainset|valset|devset)\[(\d+)\]")


def in_options(message: str, args: argparse.Namespace) -> str:
    """Return a message with options in place of Python arguments, and rows of files in place of indices."""
    message = ROW.sub(lambda match: _row(match, args), message)
    return ARGUMENT.sub(_option, message)


def _row(match: re.Match[str], args: argparse.Namespace) -> str:
    """Return a phrase such as "row 4 of train.jsonl" for a matched index, such as "trainset[3]"."""
    source = getattr(args, SOURCES[match[1]], None)
    return f"row {int(match[2]) + 1} of {source}"


def _option(match: re.Match[str]) -> str:
    """Return the option for a matched argument, or other matched text unchanged.

    Flags, such as --calibrate, lose the value True. Lists become arguments for the shell.
    """
    name = match["valued"] or match["named"]
    if name is None:
        return match[0]
    option = OPTIONS[name]
    if match["named"] or match["value"] == "True":
        return option
    items = (match["value"] or "").strip("[]")
    return f"{option} {SEPARATOR.sub(' ', items)}"


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
