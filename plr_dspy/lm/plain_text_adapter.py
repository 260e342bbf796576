"""Few-shot demos as plain text: the format of the paper, and one that small and base models follow. Also how values are
written that a field has few of."""

import enum
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import dspy
import pydantic
from dspy.adapters.types.decision import Choice, Noul
from dspy.adapters.utils import annotation_allows_none, apply_output_field_defaults, format_field_value
from dspy.utils.exceptions import AdapterParseError

BLANK_LINES = re.compile(r"\n\s*\n")
# Modules such as ChainOfThought add fields and keep the text, so it need not name the fields of today.
_DEFAULT_INSTRUCTIONS = re.compile(r"Given the fields [`\w, ]*, produce the fields [`\w, ]*\.")


class PlainTextAdapter(dspy.Adapter):
    """Shows demos as blocks of "Title: value" lines and reads the answer strictly.

    The whole prompt is one user message: the instructions if somebody wrote some, a block for each demo in
    the order given, and a last block that ends in the first output field's title. All but the last block is
    the same for every input, so a server's prefix cache serves it. Titles are the fields' prefixes
    ("Review:"). A blank line separates blocks, so blank lines inside a value become one line break. A field
    whose type allows None shows None as "None"; any other field that is missing or None has no line.

    Args:
        show_instructions: Whether instructions that differ from DSPy's default are the first block.
        callbacks: DSPy callbacks run around `format` and `parse`.
    """

    def __init__(self, *, show_instructions: bool = True, callbacks: list[Any] | None = None) -> None:
        super().__init__(callbacks=callbacks)
        self.show_instructions = show_instructions
        # Otherwise DSPy takes `dspy.Reasoning` out of the signature, and so out of the demos, for some LMs.
        self.native_response_types: list[Any] = []

    def _call_preprocess(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, inputs: dict[str, Any]) -> Any:
        """Do what adapters do before a call, and stop it where the answer ends unless the caller set `stop`."""
        if "stop" not in {**getattr(lm, "kwargs", {}), **lm_kwargs}:
            outputs = list(signature.output_fields.values())
            one_line = len(outputs) == 1 and _is_one_line(outputs[0].annotation)
            lm_kwargs["stop"] = ["\n" if one_line else "\n\n"]
        return super()._call_preprocess(lm, lm_kwargs, signature, inputs)

    def format(self, signature: Any, demos: list[Any], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Render the prompt as one user message; a ValueError names a field whose type is not text-like."""
        blocks = [message["content"] for message in self.format_demos(signature, demos)]
        instructions = str(signature.instructions).strip()
        if self.show_instructions and instructions and not _DEFAULT_INSTRUCTIONS.fullmatch(instructions):
            blocks.insert(0, instructions)
        lines = [_line(n, f, inputs[n]) for n, f in signature.input_fields.items() if _given(n, f, inputs)]
        blocks.append("\n".join([*lines, title_of(*next(iter(signature.output_fields.items())))]))
        return [{"role": "user", "content": "\n\n".join(blocks)}]

    def format_demos(self, signature: Any, demos: list[Any]) -> list[dict[str, Any]]:
        """Render each demo as `format` shows it, in the order given, as one user message: the lines it has; one without
        any input or without any output field is left out."""
        for name, field in signature.fields.items():
            kinds = dspy.Type.extract_custom_type_from_annotation(field.annotation)
            if dspy.History in (field.annotation, *get_args(field.annotation)):
                kinds.append(dspy.History)
            if strange := [kind.__name__ for kind in kinds if kind is not dspy.Reasoning]:
                raise ValueError(
                    f"field {name!r}: PlainTextAdapter writes text-like types (str, Literal, bool, numbers, "
                    f"enums, lists, dicts, pydantic models), got {strange[0]}; use another adapter for this "
                    "program, such as dspy.ChatAdapter, or change the field's type"
                )
        messages = []
        for demo in demos:
            given = {name: field for name, field in signature.fields.items() if _given(name, field, demo)}
            if given.keys() & signature.input_fields.keys() and given.keys() & signature.output_fields.keys():
                block = "\n".join(_line(name, field, demo[name]) for name, field in given.items())
                messages.append({"role": "user", "content": block})
        return messages

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """Read the output fields from a completion that continues the prompt.

        One output field is the completion's first line (labels and numbers) or the text up to the blank line
        that ends the block (anything else). Several output fields are split at their titles at line starts.
        An answer may repeat the title that the prompt ended in. A label must be the whole value: exactly, or
        in another case if only one label then matches.

        Raises:
            AdapterParseError: If a field is missing or empty, given twice, or not a value of its type.
        """
        try:
            values: dict[str, Any] = {
                name: _read(name, signature.output_fields[name].annotation, text)
                for name, text in _sections(signature, completion).items()
                if text
            }
        except ValueError as error:
            raise AdapterParseError(type(self).__name__, signature, completion, str(error)) from error
        values = dict(apply_output_field_defaults(signature, values))
        if missing := [name for name in signature.output_fields if name not in values]:
            message = f"No value for {', '.join(missing)}."
            raise AdapterParseError(type(self).__name__, signature, completion, message, values)
        return values


def _given(name: str, field: Any, values: Mapping[str, Any]) -> bool:
    return name in values and (values[name] is not None or annotation_allows_none(field.annotation))


def title_of(name: str, field: Any) -> str:
    """Return what begins a field's line, such as "Review:"."""
    prefix = " ".join(str((field.json_schema_extra or {}).get("prefix") or "").split())
    return prefix or name.replace("_", " ").title() + ":"


def _line(name: str, field: Any, value: Any) -> str:
    # An empty value leaves no trailing space: tokenizers would see another prompt.
    return f"{title_of(name, field)} {one_block(format_field_value(field, value))}".rstrip()


def _sections(signature: Any, completion: str) -> dict[str, str]:
    """Split the first block of a completion into the texts of the output fields."""
    text = completion.replace("\r\n", "\n").replace("\r", "\n")
    titles = {name: title_of(name, field) for name, field in signature.output_fields.items()}
    current = next(iter(titles))
    if _starts_with_title(text.lstrip(), titles[current]):
        text = text.lstrip()[len(titles[current]) :]
    found: dict[str, list[str]] = {current: []}
    for line in BLANK_LINES.split(text, maxsplit=1)[0].split("\n"):
        starting = [name for name, title in titles.items() if _starts_with_title(line, title)]
        if starting and len(titles) > 1:
            current = starting[0]
            if current in found:
                raise ValueError(f"The title {titles[current]!r} appears more than once.")
            found[current], line = [], line[len(titles[current]) :]
        found[current].append(line)
    for name, lines in found.items():
        if _is_one_line(signature.output_fields[name].annotation):
            del lines[1:]
    return {name: "\n".join(lines).strip() for name, lines in found.items()}


def _starts_with_title(line: str, title: str) -> bool:
    rest = line[len(title) :]
    return line.startswith(title) and not (title[-1].isalnum() and rest[:1].isalnum())


def _is_one_line(annotation: Any) -> bool:
    annotation = without_none(annotation)
    labels = labels_of(annotation)
    return annotation in (int, float) or (labels is not None and not any("\n" in label for label in labels))


def _read(name: str, annotation: Any, text: str) -> Any:
    """Read a value of a field's type from its text."""
    if annotation_allows_none(annotation) and text == "None":
        return None
    annotation = without_none(annotation)
    if (labels := labels_of(annotation)) is not None:
        matches = [text] if text in labels else [each for each in labels if each.casefold() == text.casefold()]
        if len(matches) != 1:
            raise ValueError(f"{name}: got {text!r}, expected one of {', '.join(map(repr, labels))}.")
        return labels[matches[0]]
    if annotation is str:
        return text
    if annotation is dspy.Reasoning:
        return dspy.Reasoning(content=text)
    try:
        if annotation is int:
            return int(text)
        reader = pydantic.TypeAdapter(pydantic.FiniteFloat if annotation is float else annotation)
        try:
            return reader.validate_json(text)
        except pydantic.ValidationError:
            return reader.validate_python(text)
    except ValueError as error:
        raise ValueError(f"{name}: got {text!r}, expected {annotation}.") from error


def without_none(annotation: Any) -> Any:
    """Return the annotation without its alternative None."""
    others = [each for each in get_args(annotation) if each is not type(None)]
    return others[0] if len(others) == 1 and annotation_allows_none(annotation) else annotation


def labels_of(annotation: Any) -> dict[str, Any] | None:
    """Return the values of a type that has few, by what demos call them; None for other types."""
    if annotation is bool:
        return {"True": True, "False": False}
    if get_origin(annotation) is Literal:
        values = list(get_args(annotation))
    elif isinstance(annotation, enum.EnumMeta):
        values = list(annotation.__members__.values())
    else:
        return None
    return {name_of_label(value): value for value in values}


def name_of_label(value: Any) -> str:
    """Return what demos call a value: of an enum's member, the text of what it stands for."""
    value = decided(value)
    return one_block(str(value.value if isinstance(value, enum.Enum) else value))


def decided(value: Any) -> Any:
    """Return the label that a decision (`dspy.experimental.Choice`, `Noul`) holds; other values as they are."""
    return value.value if isinstance(value, (Choice, Noul)) else value


def one_block(text: str) -> str:
    """Return the text stripped, without blank lines, which separate demos."""
    return BLANK_LINES.sub("\n", text.replace("\r\n", "\n").replace("\r", "\n")).strip()
