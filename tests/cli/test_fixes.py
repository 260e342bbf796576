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
        ("pass inputs=['a', 'b'], or omit ['c']", "pass --inputs 'a' 'b', or omit ['c']"),
        ("devset[0] must have the inputs ['a']", "row 1 of rows.csv must have the inputs ['a']"),
        ("only more examples, in trainset or valset", "only more examples, in --train or --val"),
        ("got signal='score' and calibrate=True", "got --signal 'score' and --calibrate"),
        ("got 'seed=1…: pass signal='a', or seed=2", "got 'seed=1…: pass --signal 'a', or --seed 2"),
        ("got F1(label='a'): pass log_dir", "got F1(label='a'): pass --log-dir"),
        ("pass inputs=[...] with the names", "pass --inputs ... with the names"),
        ("the inputs need calibrate=True: omit calibrate", "the inputs need --calibrate: omit --calibrate"),
        ("wait, or reduce num_threads", "wait, or reduce --threads"),
        ("the signature's inputs; log_dir isn't set", "the signature's inputs; --log-dir isn't set"),
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
        "try PLFewShot(metric, demos='retrieved', max_metric_calls=0)",
        "could not parse the reply 'the inputs=5, demos=2'",
        'got the line "it\'s trainset, seed=3"',
        "got 'the inputs=5, 'demos=2'': write a number",
        "got 'the inputs=5, dem…: write a number",
        "pass the key explicitly (api_key= on dspy.LM)",
        "the column `log_dir` has no labels",
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
