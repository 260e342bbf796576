"""Messages on the command line: they name options instead of arguments of Python functions."""

import argparse
import inspect
import logging
from dataclasses import fields

import pytest

from plr_dspy import PLFewShot, PLReorder, choose_program, evaluate_programs
from plr_dspy.cli.commands import COMMANDS
from plr_dspy.cli.fixes import OPTIONS, OptionFormatter, in_options

ARGS = argparse.Namespace(train="train.csv", val=None, data="rows.csv")


@pytest.mark.parametrize(
    ("message", "translation"),
    [
        (
            "rename the columns, or pass inputs=[...] with the names",
            "rename the columns, or pass --inputs with the names",
        ),
        ("pass inputs=['a b', 'c'], or omit ['c']", "pass --inputs 'a b' c, or omit ['c']"),
        ("devset[0] must have the inputs ['a']", "row 1 of rows.csv must have the inputs ['a']"),
        ("only more examples, in trainset or valset", "only more examples, in --train or --val"),
        ("programs['o.json'] must have the outputs", "o.json must have the outputs"),
        ("instructions=None and calibrate=True", "no --instructions and --calibrate"),
        ("reduce or omit min_per_class=1", "reduce or omit --min-per-class 1"),
        ("omit calibrate, and calibrate the program", "omit --calibrate, and calibrate the program"),
        ("compile without the argument programs", "compile without --programs"),
        (
            "pass candidates='labeled', or a larger max_errors",
            "pass candidates='labeled', or a larger max_errors (only in Python: candidates, max_errors)",
        ),
        ("wait, reduce num_threads, or increase the LM's num_retries", "wait, or reduce --threads"),
        ("pass inputs=['a]', 'log_dir']", "pass --inputs 'a]' log_dir"),
        ("got 'omit log_dir': omit log_dir", "got 'omit log_dir': omit --log-dir"),
        ("the signature's inputs; log_dir isn't set", "the signature's inputs; --log-dir isn't set"),
        (
            "the run did not finish, so nothing was returned; optimizer.best_program is your program",
            "the run did not finish, so nothing was saved",
        ),
        (
            "try PLFewShot(metric, demos='retrieved', max_metric_calls=0, max_demos=4), which",
            "try --select retrieved --max-calls 0 --max-demos 4, which",
        ),
        (
            "use BatchCalibration(metric=F1(label='a')), or calibrate=True",
            "pass --calibrate, or use BatchCalibration(metric=F1(label='a')) in Python",
        ),
    ],
)
def test_messages_name_options(message, translation):
    assert in_options(message, ARGS) == translation


@pytest.mark.parametrize(
    "message",
    [
        "trainset.csv cannot be read",
        "got the columns ['trainset', 'log_dir']",
        "the inputs of two programs, and their demos",
        "use PLReorder(auto='light')",
        "pass the key explicitly (api_key= on dspy.LM)",
        'got "it\'s max_tokens=100, in trainset[3]"',
        "could not parse the reply 'set max_tokens=100'",
        "the column `log_dir` has no labels",
        "got the shares {'log_dir': 0.5, 'omit seed': 0.5}",
    ],
)
def test_files_columns_words_and_python_calls_stay_unchanged(message):
    assert in_options(message, ARGS) == message


def test_each_option_for_an_argument_has_a_translation():
    arguments = {field.name for kind in (PLReorder, PLFewShot) for field in fields(kind)}
    arguments |= inspect.signature(choose_program).parameters.keys()
    arguments |= inspect.signature(evaluate_programs).parameters.keys()
    options = {}
    for _, command in COMMANDS.values():
        options |= command
    for option, settings in options.items():
        argument = settings.get("dest", option.removeprefix("--").replace("-", "_"))
        if option.startswith("--") and argument in arguments - {"metric", "demos"}:
            assert OPTIONS[argument] == option
    assert options.keys() >= set(OPTIONS.values())


def test_only_the_packages_own_log_messages_are_translated():
    formatter = OptionFormatter(ARGS)
    for name, said in (("plr_dspy.programs.calls", "pass --log-dir"), ("litellm", "pass log_dir")):
        record = logging.LogRecord(name, logging.WARNING, "", 0, "pass %s", ("log_dir",), None)
        assert formatter.format(record) == said
