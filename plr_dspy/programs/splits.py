"""Functions that divide examples into a train and a selection split, without examples that demos show."""

import hashlib
import logging
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, TypeAlias

import dspy
import orjson

from plr_dspy.dspy_compat import CUSTOM_TYPE_START_IDENTIFIER, serialize_for_json, serialize_object
from plr_dspy.lm.plain_text_adapter import decided
from plr_dspy.programs.fingerprint import digest
from plr_dspy.report.formats import count

logger = logging.getLogger(__name__)

TRAIN_SHARE = 0.8
# Answers are treated as classes if there are, on average, at least this many examples per distinct answer.
EXAMPLES_PER_CLASS = 4
# A demo that matches more than this share of the examples is assumed to share only a common value with them.
COMMON_SHARE = 0.1

Examples: TypeAlias = Sequence[dspy.Example]


@dataclass(frozen=True)
class Splits:
    """The train split, used to guide the search, and the selection split, used to choose the result.

    Attributes:
        names: Names such as "trainset[3]" for the train examples, followed by those for the
            selection examples.
        num_repeated: Number of unused duplicates.
    """

    train: list[dspy.Example]
    selection: list[dspy.Example]
    names: list[str]
    num_repeated: int = 0

    @property
    def classes(self) -> list[int] | None:
        """The classes of the train examples, followed by those of the selection examples.

        None if the labels are not classes.
        """
        labels = [dict(example.labels().items()) for example in (*self.train, *self.selection)]
        names = {name for fields in labels for name in fields}
        classes = answer_classes(labels, sorted(names))
        if not are_classes(classes):
            return None
        return classes


def make_splits(
    trainset: Examples,
    valset: Examples,
    demos: Sequence[Any],
    rng: random.Random,
    *,
    balanced: bool,
    prompted: Collection[str] = (),
) -> Splits:
    """Split the examples into a train split and a selection split.

    Omit duplicates, examples that demos show, and trainset examples whose inputs are also in the
    valset. The splits do not depend on the order of the examples.

    Args:
        trainset: Examples for training. If `valset` is empty, a fifth of them is used for
            selection.
        valset: Examples for selection.
        demos: Demos that the program's prompts may show.
        rng: The random number generator that shuffles the examples.
        balanced: Whether to stratify every prefix of a split by class.
        prompted: As in `shown_by`.
    """
    examples = [*trainset, *valset]
    labels = [value_key(dict(example.labels().items())) for example in examples]
    sources = [source_of(example.inputs()) for example in examples]
    distinct = _distinct(trainset, name="trainset")
    distinct |= {len(trainset) + index for index in _distinct(valset, name="valset")}
    names = [f"trainset[{index}]" for index in range(len(trainset))]
    names += [f"valset[{index}]" for index in range(len(valset))]
    _warn_of_conflicts(examples, sources, names)
    usable = distinct - shown_by(demos, examples, prompted)
    usable_in_order = [index for index in by_content(examples) if index in usable]
    trainset_indices = [index for index in usable_in_order if index < len(trainset)]
    valset_indices = [index for index in usable_in_order if index >= len(trainset)]

    valset_sources = set(sources[len(trainset) :])
    trainset_only = [index for index in trainset_indices if sources[index] not in valset_sources]
    if len(trainset_only) < len(trainset_indices):
        num_shared = len(trainset_indices) - len(trainset_only)
        logger.warning(
            "%s in trainset cannot be used, because examples in valset have the same inputs",
            count(num_shared, "example"),
        )
    train = mixed(trainset_only, labels, rng, balanced=balanced)
    if valset:
        selection = mixed(valset_indices, labels, rng, balanced=balanced)
    else:
        train, selection = _split_by_inputs(train, labels, sources, balanced=balanced)

    return Splits(
        train=[examples[index] for index in train],
        selection=[examples[index] for index in selection],
        names=[names[index] for index in (*train, *selection)],
        num_repeated=len(examples) - len(distinct),
    )


def _has_inputs(example: dspy.Example) -> bool:
    """Return whether an example has a non-empty input, or no input fields at all."""
    values = [value for _, value in example.inputs().items()]
    return not values or not all(
        value is None or (isinstance(value, str) and not value) for value in values
    )


def _distinct(examples: Examples, *, name: str) -> set[int]:
    """Return the index of each distinct example. Log warnings about duplicates and empty inputs."""
    without_inputs = [index for index, example in enumerate(examples) if not _has_inputs(example)]
    if without_inputs:
        logger.warning(
            "in %s, all inputs are empty in %d of %d examples, such as %s[%d]: drop these rows",
            name,
            len(without_inputs),
            len(examples),
            name,
            without_inputs[0],
        )
    first_places: dict[bytes, int] = {}
    for index, example in enumerate(examples):
        first_places.setdefault(value_key(dict(example.items())), index)
    num_repeated = len(examples) - len(first_places)
    if num_repeated:
        logger.warning(
            "%d of %d examples in %s are duplicates and are not used", num_repeated, len(examples), name
        )
    return set(first_places.values())


def _warn_of_conflicts(examples: Examples, sources: Sequence[Hashable], names: Sequence[str]) -> None:
    """Log a warning if examples have the same inputs but differ in other fields, such as the label."""
    first_places: dict[Hashable, int] = {}
    conflicts: list[tuple[int, int, list[str]]] = []
    for index, source in enumerate(sources):
        first = first_places.setdefault(source, index)
        different = _different_fields(examples[first], examples[index])
        if different:
            conflicts.append((first, index, different))
    # If all examples have the same inputs or no inputs, their labels are meant to differ.
    if conflicts and len(first_places) > 1:
        first, second, different = conflicts[0]
        logger.warning(
            "%s and %s have the same inputs, but different values of %s (pairs like this: %d): check which values are "
            "right",
            names[first],
            names[second],
            ", ".join(different),
            len(conflicts),
        )


def _different_fields(first: dspy.Example, second: dspy.Example) -> list[str]:
    """Return the names of the shared non-input fields whose values differ between two examples."""
    first_labels = dict(first.labels().items())
    second_labels = dict(second.labels().items())
    fields = sorted(first_labels.keys() & second_labels.keys(), key=str)
    return [name for name in fields if value_key(first_labels[name]) != value_key(second_labels[name])]


def _split_by_inputs(
    shuffled: list[int], labels: Sequence[Hashable], sources: Sequence[Hashable], *, balanced: bool
) -> tuple[list[int], list[int]]:
    """Split shuffled examples into train and selection examples, so that the splits share no inputs.

    Examples may have the same inputs but different labels. Ignore the inputs if they are all the
    same or if there are none.
    """
    firsts: dict[Hashable, int] = {}
    for index in shuffled:
        firsts.setdefault(sources[index], index)
    to_split = list(firsts.values()) if len(firsts) > 1 else shuffled
    train, selection = _split_off(to_split, [labels[index] for index in to_split], balanced=balanced)
    if len(to_split) < len(shuffled):
        selection_sources = {sources[index] for index in selection}
        train = [index for index in shuffled if sources[index] not in selection_sources]
        selection = [index for index in shuffled if sources[index] in selection_sources]
    return train, selection


def _split_off(
    shuffled: list[int], labels: Sequence[Hashable], *, balanced: bool
) -> tuple[list[int], list[int]]:
    """Split shuffled examples into train and selection examples, both stratified by class if `balanced`."""
    num_examples = len(shuffled)
    target = max(1, round(num_examples * (1 - TRAIN_SHARE)))
    num_selection = max(0, min(target, num_examples - 1))
    by_class = list(range(num_examples))
    if balanced and are_classes(labels):
        by_class.sort(key=lambda place: labels.index(labels[place]))
    # Take evenly spaced positions in class order, so that both splits have the same class proportions.
    places = {by_class[int((i + 0.5) * num_examples / num_selection)] for i in range(num_selection)}
    train = [index for place, index in enumerate(shuffled) if place not in places]
    selection = [shuffled[place] for place in sorted(places)]
    return train, selection


def empty_split(splits: Splits, num_trainset: int, num_valset: int) -> str:
    """Return an error message about an empty split."""
    if num_valset:
        needed = (
            "trainset and valset must each contain an example that no demo shows, and trainset must have one whose "
            "inputs are not in valset"
        )
        numbers = (
            f"{count(num_trainset, 'example')} in trainset ({len(splits.train)} usable) and {num_valset} in valset "
            f"({len(splits.selection)} usable)"
        )
    else:
        num_usable = len(splits.train) + len(splits.selection)
        needed = "trainset must contain at least two different examples that no demo shows"
        numbers = f"{count(num_trainset, 'example')} ({num_usable} usable)"
    return f"{needed}; got {numbers}: pass more examples, or fewer demos"


def shown_by(demos: Iterable[Any], examples: Examples, prompted: Collection[str] = ()) -> set[int]:
    """Return the indices of examples that demos show. Scores on these examples would be too high.

    A demo shows an example if one of these rules applies:

    - The demo has fields with names of inputs, and the example has equal values in all of them.
    - The demo contains all input values of the example. Names may differ, because inner predictors
      may rename inputs.

    Values are equal if `input_key` returns the same key for them. If a rule matches several examples,
    and more than a tenth of all examples, the matches may be accidental. In this case, keep only the
    examples whose inputs are all in the demo under the same names.

    Args:
        demos: The demos, as examples or dicts.
        examples: Examples with inputs, to compare with the demos.
        prompted: Names of the inputs that prompts contain, if known. The first rule ignores
            other inputs, such as an ID, unless the examples have no prompted input.
    """
    inputs = [_keys_by_name(example.inputs()) for example in examples]
    input_names = set[str]().union(*inputs)
    compared_names = input_names.intersection(prompted) or input_names
    by_field: dict[tuple[str, str], set[int]] = defaultdict(set)
    by_value: dict[str, set[int]] = defaultdict(set)
    for number, keys in enumerate(inputs):
        for name, key in keys.items():
            by_field[name, key].add(number)
            by_value[key].add(number)
    max_matches = max(1, int(len(examples) * COMMON_SHARE))
    shown: set[int] = set()
    for demo in demos:
        fields = _keys_by_name(demo)
        with_equal_fields = _with_equal_fields(fields, compared_names, by_field)
        with_all_values = _with_all_values(fields, inputs, by_value)
        with_all_fields = {
            number for number in with_equal_fields if inputs[number].items() <= fields.items()
        }
        shown |= with_all_fields
        for matches in (with_equal_fields, with_all_values):
            if len(matches) <= max_matches:
                shown |= matches
    return shown


def _keys_by_name(fields: Any) -> dict[str, str]:
    return {name: input_key(value) for name, value in fields.items()}


def _with_equal_fields(
    demo: Mapping[str, str], names: Collection[str], by_field: Mapping[tuple[str, str], set[int]]
) -> set[int]:
    """Return the examples that have all those fields of a demo whose names are in `names`.

    If the demo has no such fields, return no examples. `by_field` maps each field to the examples
    with this field.
    """
    matches = [by_field.get((name, key), set()) for name, key in demo.items() if name in names]
    return set.intersection(*matches) if matches else set()


def _with_all_values(
    demo: Mapping[str, str], inputs: Sequence[Mapping[str, str]], by_value: Mapping[str, set[int]]
) -> set[int]:
    """Return the examples whose input values are all in a demo, under any names.

    `by_value` maps each value to the examples with this value.
    """
    counts: Counter[int] = Counter()
    for key in set(demo.values()):
        counts.update(by_value.get(key, ()))
    return {
        number for number, num_values in counts.items() if num_values == len(set(inputs[number].values()))
    }


def by_content(examples: Examples) -> list[int]:
    """Return the indices of examples, sorted by digests of the examples' content."""
    digests = [digest(example) for example in examples]
    return sorted(range(len(examples)), key=digests.__getitem__)


def mixed(
    indices: Sequence[int], labels: Sequence[Hashable], rng: random.Random, *, balanced: bool
) -> list[int]:
    """Return the indices of examples in random order.

    If `balanced`, spread the classes evenly, so that every prefix is stratified. A search scores
    orders on prefixes. If a class were too frequent in a prefix, orders that favor that class
    would score too high.
    """
    shuffled = list(indices)
    rng.shuffle(shuffled)
    if not balanced or not are_classes([labels[index] for index in shuffled]):
        return shuffled
    classes: dict[Hashable, list[int]] = defaultdict(list)
    for index in shuffled:
        classes[labels[index]].append(index)
    places: dict[int, tuple[float, int]] = {}
    for rank, members in enumerate(classes.values()):
        for number, index in enumerate(members):
            places[index] = ((number + 0.5) / len(members), rank)
    return sorted(shuffled, key=places.__getitem__)


def are_classes(labels: Sequence[Any]) -> bool:
    """Return whether there are at least two distinct labels, with at least four examples each on average."""
    return 1 < len(set(labels)) <= len(labels) / EXAMPLES_PER_CLASS


def answer_classes(rows: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Return each row's class index. Rows with equal answers in the fields `names` have the same class.

    Ignore fields whose values are mostly distinct, such as reasoning.
    """
    columns = []
    for name in names:
        columns.append([value_key({name: decided(row.get(name))}) for row in rows])
    shared = [column for column in columns if 3 * len(set(column)) <= 2 * len(rows)]
    if not shared:
        return [0 for _ in rows]
    answers = list(zip(*shared, strict=True))
    numbers = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    return [numbers[answer] for answer in answers]


def source_of(inputs: Mapping[str, Any]) -> str:
    """Return a string that identifies an example's inputs."""
    return repr(sorted((name, input_key(value)) for name, value in inputs.items()))


def input_key(value: Any) -> str:
    """Return a string that identifies a value.

    For values without media, ignore case, the amount of whitespace, and whether the value is text:
    5 and "5" have the same string.
    """
    key = value_key(value)
    if CUSTOM_TYPE_START_IDENTIFIER.encode() in key:
        return hashlib.sha256(key).hexdigest()
    text = unicodedata.normalize("NFC", key.decode(errors="backslashreplace"))
    return " ".join(re.sub(r'"|\\[fnrt]', " ", text).casefold().split())


def value_key(value: Any) -> bytes:
    """Return bytes that identify a value by its serialized form."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_UTC_Z
    try:
        return orjson.dumps(serialize_object(value), default=_plain, option=options)
    except Exception:
        # The value is not plain data or contains invalid Unicode.
        return repr(value).encode(errors="backslashreplace")


def _plain(value: Any) -> Any:
    """Return the value in the form that bootstrapped demos have, but with sets as sorted lists."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, (bytes, Decimal, timedelta, PurePath)):
        return serialize_for_json(value)
    raise TypeError
