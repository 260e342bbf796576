"""Export of a program's prompts for use without DSPy."""

from __future__ import annotations

import enum
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import dspy
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from plr_dspy.dspy_compat import (
    CUSTOM_TYPE_START_IDENTIFIER,
    allows_none,
    current_adapter,
    format_field_value,
    sent_messages,
)
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.per_input_order import PerInputOrder
from plr_dspy.lm.plain_text_adapter import one_block, without_none
from plr_dspy.programs.attached_results import sub_modules
from plr_dspy.programs.checks import check_adapter, check_module
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.runtime import write_atomically

Messages: TypeAlias = list[dict[str, str]]
Format: TypeAlias = Literal["openai", "langchain"]

# Text with parts that adapters or templates might change, such as braces, escapes and blank lines.
AWKWARD_TEXT = ' \n{x} {{y}} {{{z}}} %s $1 \\1 "q" <b>&amp;</b> [[ ## x ## ]]\r\n\r\n\n end. \n'


@dataclass(frozen=True)
class PromptInput:
    """The format in which a prompt shows an input.

    Attributes:
        is_text: Whether the field's type is `str`. If so, lists of several values are shown as
            numbered lines. Otherwise, lists are shown as JSON.
        is_block: Whether blank lines and surrounding whitespace are removed, as in
            `PlainTextAdapter`.
        is_optional: Whether the value can be None.
        default: The text to show if no value is passed, or None if a value is required.
    """

    is_text: bool = True
    is_block: bool = False
    is_optional: bool = False
    default: str | None = None

    def text_of(self, value: Any) -> str:
        """Return the text that DSPy writes for a value."""
        text = format_field_value(FieldInfo(annotation=str if self.is_text else object), value)
        return one_block(text) if self.is_block else str(text)


@dataclass(frozen=True)
class ExportedPrompt:
    """A predictor's prompt, with a placeholder for each input.

    Attributes:
        format: The format of placeholders. In "openai", the placeholder for the input `review`
            is ``{{review}}``. In "langchain", it is ``{review}``, and literal braces are
            doubled, as in `str.format`.
        messages: Dicts with the keys "role" and "content". The placeholders are in "content".
        inputs: The format of each input's value, keyed by input name.
    """

    format: Format
    messages: Messages
    inputs: dict[str, PromptInput]

    def fill(self, **inputs: Any) -> Messages:
        """Return the messages for these inputs, exactly as DSPy would send them.

        Raises:
            ValueError: If an input is missing or unknown, or contains an object such as an image.
        """
        unknown = [name for name in inputs if name not in self.inputs]
        if unknown:
            raise UserError(
                f"fill accepts only the inputs {list(self.inputs)}; got {unknown[0]!r}: omit {unknown[0]!r}"
            )
        texts = {name: self._text_of(name, inputs) for name in self.inputs}
        return [
            {**message, "content": self._filled(message["content"], texts)} for message in self.messages
        ]

    def _text_of(self, name: str, inputs: Mapping[str, Any]) -> str:
        """Return the text of an input's value or default. Raise a ValueError if it is missing or not text."""
        prompt_input = self.inputs[name]
        if name not in inputs and prompt_input.default is not None:
            return prompt_input.default
        if name not in inputs or (inputs[name] is None and not prompt_input.is_optional):
            raise UserError(f"fill needs a value for the input {name!r}: pass {name}=...")
        text = prompt_input.text_of(inputs[name])
        if CUSTOM_TYPE_START_IDENTIFIER in text:
            raise UserError(
                f"input {name!r} has a value of type {type(inputs[name]).__name__}, which is not text: call the DSPy "
                "program instead"
            )
        return text

    def _filled(self, template: str, texts: Mapping[str, str]) -> str:
        """Fill all placeholders in a template in one pass, so that braces in values stay unchanged."""

        def replacement(match: re.Match[str]) -> str:
            name = match["name"]
            if name is None:
                return match[0][0]  # A double brace represents a single brace.
            if self.inputs[name].is_block and not texts[name]:
                return ""  # `PlainTextAdapter` strips the space before an empty value.
            return match["space"] + texts[name]

        names = "|".join(map(re.escape, texts)) or "(?!)"
        if self.format == "openai":
            return re.sub(rf"(?P<space> ?)\{{\{{(?P<name>{names})\}}\}}", replacement, template)
        return re.sub(rf"\{{\{{|\}}\}}|(?P<space> ?)\{{(?P<name>{names})\}}", replacement, template)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the prompt to a JSON file. An existing file is replaced atomically."""
        write_atomically(Path(path), TypeAdapter(ExportedPrompt).dump_json(self, indent=2) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ExportedPrompt:
        """Read a prompt that `save` wrote.

        Raises:
            ValueError: If the file is not an exported prompt.
        """
        try:
            return TypeAdapter(cls).validate_json(Path(path).read_bytes())
        except ValidationError as error:
            raise UserError(
                f"{os.fspath(path)} is not an exported prompt: pass a file that ExportedPrompt.save wrote"
            ) from error


def export(program: dspy.Module, format: Format = "openai") -> dict[str, ExportedPrompt]:
    """Export each predictor's prompt for use without DSPy.

    The configured adapter and language model determine the prompts, as in a real call, but
    nothing is sent. Each prompt is filled with sample values and compared with the messages
    that DSPy would send. Model settings, such as `temperature` and `stop`, are not exported.

    Args:
        program: A program whose prompts differ only in the values of the inputs.
        format: "openai" for placeholders such as ``{{review}}``; "langchain" for messages that
            ``ChatPromptTemplate.from_messages`` accepts, with placeholders such as ``{review}``.

    Returns:
        The prompts, keyed by predictor name. If the program is a `dspy.Predict`, the key is "self".

    Raises:
        TypeError: If `program` is not a `dspy.Module`, or the configured adapter is not an adapter.
        ValueError: If `format` is unknown, the program has no predictors, or a prompt cannot be
            exported.
    """
    check_module(program, "program", fix="pass the program to export")
    if format not in get_args(Format):
        raise UserError(
            f"format must be 'openai' or 'langchain'; got {format!r}: pass one of these formats"
        )
    check_adapter()
    _check_prompts_are_fixed(program)
    predictors = _named_predictors(program)
    if not predictors:
        raise UserError(
            "program has no predictors, and therefore no prompts: pass a program that contains a dspy.Predict"
        )
    return {name: _exported(name, predictor, format) for name, predictor in predictors.items()}


def _named_predictors(program: dspy.Module) -> dict[str, dspy.Predict]:
    """Return the predictors, keyed by name, including predictors in modules that are marked as compiled."""
    predictors = dict(program.named_predictors())
    known = {id(predictor) for predictor in predictors.values()}
    for name, predictor in sub_modules(program, dspy.Predict):
        if id(predictor) not in known:
            predictors[name.removeprefix("self.")] = predictor
    return predictors


def _check_prompts_are_fixed(program: dspy.Module) -> None:
    """Raise a ValueError if a part of the program may adapt its prompt to the input, or changes answers."""
    for path, part in sub_modules(program):
        name = path.replace("self", "program", 1)
        if isinstance(part, CalibratedProgram):
            raise UserError(
                f"{name} is a CalibratedProgram, and a prompt cannot contain its calibration: export "
                f"{name}.program, without the calibration"
            )
        if isinstance(part, PerInputOrder):
            raise UserError(
                f"{name} orders its demos for each input, so the prompt is not fixed: export {name}.program, with "
                "the demos in their original order"
            )
        if isinstance(part, RetrievingPredict):
            raise UserError(
                f"{name} retrieves its demos for each input, so the prompt is not fixed: compile the "
                "program with PLFewShot(demos='fixed'), and export the result"
            )
        forward = vars(part).get("forward")
        # `dspy.syncify` also replaces `forward`, but the prompt stays the same.
        if forward is not None and getattr(forward, "__module__", None) != dspy.syncify.__module__:
            raise UserError(
                f"{name}.forward was replaced, as by dspy.KNNFewShot, so the prompt may not be fixed: "
                "compile the program with an optimizer that keeps forward, such as PLFewShot(demos='fixed')"
            )


def _exported(name: str, predictor: dspy.Predict, format: Format) -> ExportedPrompt:
    """Return a predictor's prompt. Raise a ValueError if no template can reproduce DSPy's messages."""
    fields = predictor.signature.input_fields
    for field_name, field in fields.items():
        _check_is_text(name, field_name, field.annotation)
    marks = {field_name: uuid.uuid4().hex for field_name in fields}
    messages = sent_messages(predictor, marks)
    if not all(isinstance(message["content"], str) for message in messages):
        raise UserError(
            f"the prompt for predictor {name!r} has parts that are not text, such as images in demos: remove such "
            "demos, or call the DSPy program instead"
        )
    templates = [
        {**message, "content": _template(message["content"], marks, format)} for message in messages
    ]
    inputs = {field_name: _input_of(field, is_block=False) for field_name, field in fields.items()}
    prompt = ExportedPrompt(format, templates, inputs)
    if prompt.fill(**marks) != messages:
        literals = [f"{{{{{field_name}}}}}" for field_name in fields]
        literals = [text for text in literals if any(text in message["content"] for message in messages)]
        raise UserError(
            f"the prompt for predictor {name!r} contains the literal text {' and '.join(map(repr, literals))}, which "
            "is reserved for placeholders: pass format='langchain', which escapes literal braces"
        )
    for field_name in fields:
        inputs[field_name] = _matching_input(name, predictor, prompt, field_name, marks)
    return prompt


def _template(content: str, marks: Mapping[str, str], format: Format) -> str:
    """Return a message's content with placeholders in place of the marks.

    `marks` contains the unique value that was sent for each input.
    """
    template = content
    if format == "langchain":
        template = content.replace("{", "{{").replace("}", "}}")
    for field_name, mark in marks.items():
        placeholder = f"{{{field_name}}}"
        if format == "openai":
            placeholder = f"{{{placeholder}}}"
        template = template.replace(mark, placeholder)
    return template


def _check_is_text(name: str, field_name: str, annotation: Any) -> None:
    """Raise a ValueError if an input's type, such as `dspy.Image`, cannot be exported as text."""
    types = dspy.Type.extract_custom_type_from_annotation(annotation)
    if dspy.History in (annotation, *get_args(annotation)):
        types.append(dspy.History)
    for unsupported in types:
        if not issubclass(unsupported, (dspy.Code, dspy.Reasoning)):
            raise UserError(
                f"input {field_name!r} of predictor {name!r} is of type {unsupported.__name__}, which is not text: "
                "call the DSPy program instead, or export the program's other predictors one by one"
            )


def _input_of(field: FieldInfo, *, is_block: bool) -> PromptInput:
    is_optional = allows_none(field.annotation)
    prompt_input = PromptInput(field.annotation is str, is_block, is_optional)
    if field.default is PydanticUndefined or (field.default is None and not is_optional):
        return prompt_input
    return replace(prompt_input, default=prompt_input.text_of(field.default))


def _matching_input(
    name: str, predictor: dspy.Predict, prompt: ExportedPrompt, field_name: str, marks: Mapping[str, str]
) -> PromptInput:
    """Return the format in which the adapter shows an input. Raise a ValueError if no known format fits.

    To test a format, fill the prompt with sample values, and compare it with DSPy's messages.
    """
    field = predictor.signature.input_fields[field_name]
    cases = []
    for sample in _samples(field.annotation):
        values = {**marks, field_name: sample}
        cases.append((values, sent_messages(predictor, values)))
    for is_block in (False, True):
        prompt_input = _input_of(field, is_block=is_block)
        filled = ExportedPrompt(prompt.format, prompt.messages, {**prompt.inputs, field_name: prompt_input})
        if all(filled.fill(**values) == sent for values, sent in cases):
            return prompt_input
    adapter = current_adapter()
    raise UserError(
        f"{type(adapter).__name__} writes input {field_name!r} of predictor {name!r} in a way that a template cannot "
        "reproduce: use another adapter, or call the DSPy program instead"
    )


class _SampleModel(BaseModel):
    text: str = "a"


def _samples(annotation: Any) -> list[Any]:
    """Return sample values for an input with this annotation, including text that adapters might change."""
    kind = without_none(annotation)
    samples: list[Any] = ["", AWKWARD_TEXT]
    if allows_none(annotation):
        samples.append(None)
    if kind is str:
        samples.append(["a", "b"])
    elif kind in (int, float, bool):
        samples += [1, -2.5, True]
    elif isinstance(kind, enum.EnumMeta):
        samples += list(kind)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        samples.append(_SampleModel())
    elif not isinstance(kind, type) or issubclass(kind, (list, dict)):
        samples += [["a", 1], {"a": {"b": None}}, [_SampleModel()]]
    return samples
