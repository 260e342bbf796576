"""An adapter for few-shot prompts in plain text, for small and base models."""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args, get_origin

import dspy
import pydantic
from pydantic.fields import FieldInfo

from plr_dspy.dspy_compat import (
    AdapterParseError,
    Choice,
    Noul,
    allows_none,
    apply_output_field_defaults,
    format_field_value,
)
from plr_dspy.errors import UserError

Annotation: TypeAlias = Any
Value: TypeAlias = Any
Demos: TypeAlias = Sequence[Mapping[str, Value]]
Messages: TypeAlias = list[dict[str, str]]
Signature: TypeAlias = type[dspy.Signature]

BLANK_LINES = re.compile(r"\n\s*\n")
# Match any field names, because modules such as ChainOfThought add fields, but keep the instructions.
_DEFAULT_INSTRUCTIONS = re.compile(r"Given the fields [`\w, ]*, produce the fields [`\w, ]*\.")


class PlainTextAdapter(dspy.Adapter):
    """An adapter that shows demos as blocks of "Title: value" lines, and parses answers strictly.

    The prompt is one user message. It contains custom instructions, a block for each demo with
    inputs and outputs, and a last block that ends with the title of the first output field. Blank
    lines separate blocks, so blank lines inside a value become line breaks. Fields without a value
    are skipped. None is a value only if the field's type allows None.

    Args:
        show_instructions: Whether to show instructions that differ from DSPy's default.
        callbacks: DSPy callbacks to run around `format` and `parse`.
    """

    def __init__(
        self, *, show_instructions: bool = True, callbacks: Sequence[object] | None = None
    ) -> None:
        super().__init__(callbacks=callbacks)
        self.show_instructions = show_instructions
        # For some LMs, DSPy removes fields of native types, such as `dspy.Reasoning`, from signatures
        # and demos. Declare no native types, so that all fields are kept.
        self.native_response_types: list[type] = []

    def _call_preprocess(
        self, lm: dspy.BaseLM, lm_kwargs: dict[str, Value], signature: Signature, inputs: Value
    ) -> Value:
        """Make the LM stop at the end of the answer, unless `stop` is already set."""
        if "stop" not in {**getattr(lm, "kwargs", {}), **lm_kwargs}:
            outputs = list(signature.output_fields.values())
            one_line = len(outputs) == 1 and _is_one_line(outputs[0].annotation)
            # Modify the dict in place, because DSPy passes this object to the LM.
            lm_kwargs["stop"] = ["\n"] if one_line else ["\n\n"]
        return super()._call_preprocess(lm, lm_kwargs, signature, inputs)

    def format(self, signature: Signature, demos: Demos, inputs: dict[str, Value]) -> Messages:
        """Render the prompt as one user message."""
        blocks = [message["content"] for message in self.format_demos(signature, demos)]
        instructions = signature.instructions.strip()
        is_default = _DEFAULT_INSTRUCTIONS.fullmatch(instructions)
        if self.show_instructions and instructions and not is_default:
            blocks.insert(0, instructions)
        first_output = next(iter(signature.output_fields.items()))
        question = [*_lines(signature.input_fields, inputs), title_of(*first_output)]
        blocks.append("\n".join(question))
        return [{"role": "user", "content": "\n\n".join(blocks)}]

    def format_demos(self, signature: Signature, demos: Demos) -> Messages:
        """Render each demo as one user message. Skip demos without inputs or without outputs."""
        for name, field in signature.fields.items():
            _check_text_like(name, field.annotation)
        messages = []
        for demo in demos:
            input_lines = _lines(signature.input_fields, demo)
            output_lines = _lines(signature.output_fields, demo)
            if input_lines and output_lines:
                block = "\n".join(input_lines + output_lines)
                messages.append({"role": "user", "content": block})
        return messages

    def parse(self, signature: Signature, completion: str) -> dict[str, Value]:
        """Return the values of the output fields in a completion that continues the prompt.

        A value ends at a blank line or at the next field's title. A number also ends at the end of
        its line, and so does a label, unless a label of the type contains a line break. Each value
        after the first begins on a line with its field's title. If the type has labels, the whole
        value must be a label. Case matters only if it distinguishes labels.
        """
        name = type(self).__name__
        outputs = signature.output_fields
        try:
            sections = _sections(outputs, completion)
            values = {
                field: _parse_value(field, outputs[field].annotation, text)
                for field, text in sections.items()
                if text
            }
        except ValueError as error:
            raise AdapterParseError(name, signature, completion, str(error)) from error
        values = dict(apply_output_field_defaults(signature, values))
        missing = [field for field in outputs if field not in values]
        if missing:
            message = f"The reply has no value for {', '.join(missing)}."
            raise AdapterParseError(name, signature, completion, message, values)
        return values


def title_of(name: str, field: FieldInfo) -> str:
    """Return a field's title, such as "Review:"."""
    extra: Value = field.json_schema_extra or {}
    prefix = " ".join((extra.get("prefix") or "").split())
    return prefix or name.replace("_", " ").title() + ":"


def _lines(fields: Mapping[str, FieldInfo], values: Mapping[str, Value]) -> list[str]:
    """Return the title and text of each field that has a value."""
    lines = []
    for name, field in fields.items():
        if name in values and (values[name] is not None or allows_none(field.annotation)):
            text = one_block(format_field_value(field, values[name]))
            # Strip the space before an empty value, because a trailing space would change the tokens.
            lines.append(f"{title_of(name, field)} {text}".rstrip())
    return lines


def _check_text_like(name: str, annotation: Annotation) -> None:
    """Raise a ValueError if a field's values, such as images, cannot be written as text."""
    types = dspy.Type.extract_custom_type_from_annotation(annotation)
    if dspy.History in (annotation, *get_args(annotation)):
        types.append(dspy.History)
    for unsupported in types:
        if unsupported is not dspy.Reasoning:
            raise UserError(
                f"PlainTextAdapter cannot write field {name!r} of type {unsupported.__name__} as text. Use another "
                "adapter, such as dspy.ChatAdapter, or change the field's type."
            )


def _sections(fields: Mapping[str, FieldInfo], completion: str) -> dict[str, str]:
    """Return the text of each output field in a completion's first block, keyed by field name."""
    titles = {name: title_of(name, field) for name, field in fields.items()}
    current = next(iter(titles))
    text = _with_unix_newlines(completion)
    if _starts_with_title(text.lstrip(), titles[current]):
        text = text.lstrip().removeprefix(titles[current])
    lines: dict[str, list[str]] = {current: []}
    block = BLANK_LINES.split(text, maxsplit=1)[0]
    for line in block.split("\n"):
        matches = [name for name, title in titles.items() if _starts_with_title(line, title)]
        if matches and len(titles) > 1:
            current = matches[0]
            if current in lines:
                raise ValueError(f"The reply has the title {titles[current]!r} more than once.")
            lines[current] = []
            line = line.removeprefix(titles[current])
        lines[current].append(line)
    for name in lines:
        if _is_one_line(fields[name].annotation):
            del lines[name][1:]
    return {name: "\n".join(section).strip() for name, section in lines.items()}


def _starts_with_title(line: str, title: str) -> bool:
    following = line[len(title) :][:1]
    return line.startswith(title) and not (title[-1].isalnum() and following.isalnum())


def _is_one_line(annotation: Annotation) -> bool:
    annotation = without_none(annotation)
    labels = labels_of(annotation)
    if labels is None:
        return annotation in (int, float)
    return not any("\n" in label for label in labels)


def _parse_value(name: str, annotation: Annotation, text: str) -> Value:
    if text == "None" and allows_none(annotation):
        return None
    annotation = without_none(annotation)
    labels = labels_of(annotation)
    if labels is not None:
        matches = [label for label in labels if label.casefold() == text.casefold()]
        if text in labels:
            matches = [text]
        if len(matches) != 1:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, labels))}; got {text!r}.")
        return labels[matches[0]]
    if annotation is str:
        return text
    if annotation is dspy.Reasoning:
        return dspy.Reasoning(content=text)
    reader = pydantic.TypeAdapter(pydantic.FiniteFloat if annotation is float else annotation)
    try:
        return reader.validate_json(text)
    except ValueError:
        return reader.validate_python(text)


def without_none(annotation: Annotation) -> Annotation:
    """Return an optional annotation without None, and any other annotation unchanged."""
    if not allows_none(annotation):
        return annotation
    others = tuple(part for part in get_args(annotation) if part not in (None, type(None)))
    if _is_literal(annotation):
        return Literal[others] if others else annotation
    return without_none(others[0]) if len(others) == 1 else annotation


def _is_literal(annotation: Annotation) -> bool:
    origin: Annotation = get_origin(annotation)
    return origin is Literal


def labels_of(annotation: Annotation) -> dict[str, Value] | None:
    """Return a dict that maps each label's text in demos to the label's value.

    Types with labels are bool, Literals, enums and decisions (`Choice`, `Noul`). For other types,
    return None.
    """
    if isinstance(annotation, type) and issubclass(annotation, (Choice, Noul)):
        annotation = annotation.model_fields["value"].annotation  # type: ignore[attr-defined]
    if annotation is bool:
        return {"True": True, "False": False}
    if _is_literal(annotation):
        return {name_of_label(value): value for value in get_args(annotation)}
    if isinstance(annotation, enum.EnumMeta):
        members: list[Value] = list(annotation)
        return {name_of_label(member): member for member in members}
    return None


def name_of_label(value: Value) -> str:
    """Return a label's text in demos. The text of an enum member is its value."""
    value = decided(value)
    if isinstance(value, enum.Enum):
        value = value.value
    return one_block(str(value))


def decided(value: Value) -> Value:
    """Return the label of a decision (`Choice`, `Noul`), or any other value unchanged."""
    return value.value if isinstance(value, (Choice, Noul)) else value


def one_block(text: str) -> str:
    """Strip `text`, and remove its blank lines, because blank lines separate demos."""
    return BLANK_LINES.sub("\n", _with_unix_newlines(text)).strip()


def _with_unix_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
