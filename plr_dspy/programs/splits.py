"""Train and selection splits of a program's examples, without those that its demos show."""

import logging
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import dspy
import orjson

from plr_dspy.dspy_compat import serialize_object
from plr_dspy.lm.plain_text_adapter import decided
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.media import named_by_digest

logger = logging.getLogger(__name__)

TRAIN_SHARE = 0.8
EXAMPLES_PER_CLASS = 4  # Answers are classes if they have at least this many examples on average.
COMMON_SHARE = 0.1  # A demo whose inputs more than this share of the examples have shows none of them by these.

Examples: TypeAlias = Sequence[dspy.Example]


@dataclass(frozen=True)
class Splits:
    """The examples that drive the search, and those that decide at the end.

    Attributes:
        train: Examples that drive the search.
        selection: Examples that decide which candidate is returned.
        names: What the user calls the examples of `train`, then those of `selection`, such as "trainset[3]".
        num_shared: Examples of the trainset that were left out because the valset contains them, too.
        num_repeated: Examples of both that were left out because they are copies of others.
    """

    train: list[dspy.Example]
    selection: list[dspy.Example]
    names: list[str]
    num_shared: int = 0
    num_repeated: int = 0

    @property
    def classes(self) -> list[int] | None:
        """Return the class of each example of train, then of selection, or None if answers are no classes."""
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
    name: str = "trainset",
    prompted: Collection[str] = (),
) -> Splits:
    """Split the examples into train and selection, without those that the demos show and without copies.

    The selection split is the valset. If that is empty, a fifth of the trainset takes its place. The order of the
    examples changes nothing.

    Args:
        trainset: Examples to split.
        valset: Examples of the selection split; may be empty.
        demos: Demos that the program shows or may show.
        rng: Shuffles the examples.
        balanced: Whether every prefix of a split has its share of each class.
        name: What messages call the trainset.
        prompted: As in `shown_by`.
    """
    examples = [*trainset, *valset]
    num_trainset = len(trainset)
    labels = [value_key(dict(example.labels().items())) for example in examples]
    sources = [source_of(example.inputs()) for example in examples]
    distinct = _distinct(examples, num_trainset, name=name)
    usable = distinct - shown_by(demos, examples, prompted)
    in_order = [index for index in by_content(examples) if index in usable]

    of_trainset = [index for index in in_order if index < num_trainset]
    valset_sources = set(sources[num_trainset:])
    unshared = [index for index in of_trainset if sources[index] not in valset_sources]
    num_shared = len(of_trainset) - len(unshared)
    if unshared and num_shared:
        logger.warning("%d examples are in both trainset and valset: they only choose the final order", num_shared)

    train = mixed(unshared, labels, rng, balanced=balanced)
    if valset:
        of_valset = [index for index in in_order if index >= num_trainset]
        selection = mixed(of_valset, labels, rng, balanced=balanced)
    else:
        train, selection = _split_off(train, [labels[index] for index in train], balanced=balanced)

    names = [f"{name}[{index}]" for index in range(num_trainset)]
    names += [f"valset[{index}]" for index in range(len(valset))]
    return Splits(
        train=[examples[index] for index in train],
        selection=[examples[index] for index in selection],
        names=[names[index] for index in (*train, *selection)],
        num_shared=num_shared,
        num_repeated=len(examples) - len(distinct),
    )


def _distinct(examples: Examples, num_trainset: int, *, name: str) -> set[int]:
    """Return the indices of the examples without copies within either set, and warn of copies."""
    first_places: dict[tuple[bool, bytes], int] = {}
    for index, example in enumerate(examples):
        key = (index < num_trainset, value_key(dict(example.items())))
        first_places.setdefault(key, index)
    num_distinct = sum(in_trainset for in_trainset, _ in first_places)
    num_valset = len(examples) - num_trainset
    warn_of_repeats(num_trainset - num_distinct, num_trainset, name=name)
    warn_of_repeats(num_valset - (len(first_places) - num_distinct), num_valset, name="valset")
    return set(first_places.values())


def _split_off(shuffled: list[int], labels: Sequence[Hashable], *, balanced: bool) -> tuple[list[int], list[int]]:
    """Split shuffled examples into train and selection, both with the same share of each class if `balanced`."""
    count = len(shuffled)
    wanted = max(1, round(count * (1 - TRAIN_SHARE)))
    num_selection = max(0, min(wanted, count - 1))
    by_class = list(range(count))
    if balanced and are_classes(labels):
        numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        by_class.sort(key=lambda place: numbers[labels[place]])
    # Evenly spaced places, class after class, give both parts their share of each class.
    places = {by_class[int((i + 0.5) * count / num_selection)] for i in range(num_selection)}
    train = [index for place, index in enumerate(shuffled) if place not in places]
    selection = [shuffled[place] for place in sorted(places)]
    return train, selection


def warn_of_repeats(num_repeated: int, num_examples: int, *, name: str, what: str = "given twice") -> None:
    """Warn if some examples are copies of others and therefore left out."""
    if num_repeated == 1:
        logger.warning("1 of %d examples of %s is %s and counts once", num_examples, name, what)
    elif num_repeated:
        logger.warning("%d of %d examples of %s are %s and count once", num_repeated, num_examples, name, what)


def empty_split(splits: Splits, num_trainset: int, num_valset: int, *, name: str, cure: str) -> str:
    """Return why a split has no example, and the cure."""
    if num_valset and not splits.selection:
        return f"valset must hold an example that no demo shows; demos show all {num_valset}: {cure}"
    if splits.num_shared > 1 and not splits.train:
        return (
            f"trainset must hold an example that valset does not; all {splits.num_shared} that no demo shows are in "
            "both: leave valset out (20 % of trainset take its place), or split the examples between the two"
        )
    needed = "two examples that no demo shows"
    num_usable = len(splits.train)
    if num_valset:
        needed += ", or one beside a valset"
    else:
        num_usable += len(splits.selection)
    left = f"it holds {num_trainset}"
    if num_usable < num_trainset:
        reasons = "shown by demos or given twice"
        if splits.num_shared:
            reasons = "shown by demos or in valset too or given twice"
        left = f"of its {num_trainset} examples {num_usable} are left, the others are {reasons}"
    return f"{name} must hold at least {needed}; {left}: {cure}"


def shown_by(demos: Iterable[Any], examples: Examples, prompted: Collection[str] = ()) -> set[int]:
    """Return the indices of the examples that some demo shows.

    With its answer in the prompt, an example proves nothing. A demo shows an example in one of three cases:

    - All inputs that both name are equal.
    - The demo contains all input values of the example, under whatever names: predictors inside a program rename them.
    - All shared inputs that reach a prompt are equal. The number of an example, for instance, reaches none.

    A demo that would show more than a tenth of the examples shares something common with them, such as a language.
    It shows none by that.

    Args:
        demos: Examples or dicts.
        examples: Examples with inputs.
        prompted: Names of the inputs that reach a prompt.
    """
    index = _InputIndex(examples)
    largest = max(1, int(len(examples) * COMMON_SHARE))
    shown: set[int] = set()
    for demo in demos:
        fields = {name: input_key(value) for name, value in dict(demo.items()).items()}
        equal_inputs = index.with_fields(fields, index.names)
        shown |= {i for i in equal_inputs if index.inputs[i].keys() <= fields.keys()}
        equal_prompts = index.with_fields(fields, index.names.intersection(prompted))
        for matches in (equal_inputs, equal_prompts, index.with_values(set(fields.values()))):
            if len(matches) <= largest:
                shown |= matches
    return shown


class _InputIndex:
    """Find examples by their inputs.

    Attributes:
        inputs: The keys of the inputs of each example, by name.
        names: The names of all inputs.
    """

    def __init__(self, examples: Examples) -> None:
        self.inputs = []
        self.names: set[str] = set()
        self._by_field: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._by_value: dict[str, set[int]] = defaultdict(set)
        for index, example in enumerate(examples):
            keys = {name: input_key(value) for name, value in example.inputs().items()}
            self.inputs.append(keys)
            self.names.update(keys)
            for name, key in keys.items():
                self._by_field[name, key].add(index)
                self._by_value[key].add(index)

    def with_fields(self, fields: Mapping[str, str], names: Collection[str]) -> set[int]:
        """Return the examples that are equal to some fields in all of these names that the fields have."""
        matches = [self._by_field.get((name, key), set()) for name, key in fields.items() if name in names]
        if not matches:
            return set()
        return set.intersection(*matches)

    def with_values(self, values: set[str]) -> set[int]:
        """Return the examples whose input values are all among these."""
        counts: Counter[int] = Counter()
        for value in values:
            counts.update(self._by_value.get(value, ()))
        return {index for index, count in counts.items() if count == len(set(self.inputs[index].values()))}


def by_content(examples: Examples) -> list[int]:
    """Return the indices of examples in an order that depends on their content alone."""
    digests = [digest(example) for example in examples]
    return sorted(range(len(examples)), key=digests.__getitem__)


def mixed(indices: Sequence[int], labels: Sequence[Hashable], rng: random.Random, *, balanced: bool) -> list[int]:
    """Shuffle examples, and if `balanced` spread each class evenly over them.

    Then every prefix has its share of each class. A search scores orders on prefixes, and an order that favours one
    class must not look better by chance.

    Args:
        indices: Indices of the examples.
        labels: The label of each index.
        rng: Shuffles them.
        balanced: Whether to spread the classes, if labels are classes.
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
    """Return whether labels are classes: at least two, with four examples each on average."""
    return 1 < len(set(labels)) <= len(labels) / EXAMPLES_PER_CLASS


def answer_classes(rows: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Number the answers of demos or examples, so that equal answers have equal numbers.

    Fields that hardly any two rows share, such as a reasoning, say nothing about classes and are ignored.

    Args:
        rows: Demos, examples or dicts.
        names: Names of the outputs.
    """
    columns = [[value_key({name: decided(row.get(name))}) for row in rows] for name in names]
    shared = [column for column in columns if 3 * len(set(column)) <= 2 * len(rows)]
    if not shared:
        return [0] * len(rows)
    answers = list(zip(*shared, strict=True))
    numbers = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    return [numbers[answer] for answer in answers]


def source_of(inputs: Mapping[str, Any]) -> str:
    """Return a text that identifies the inputs of an example, in the way of `input_key`."""
    return repr(sorted((name, input_key(value)) for name, value in inputs.items()))


def input_key(value: Any) -> str:
    """Return a text that identifies the value of an input.

    Copies may differ in case, white space, quotes and Unicode form. The text is the same for all of them.
    """
    key = value_key(named_by_digest(value))
    text = unicodedata.normalize("NFC", key.decode(errors="backslashreplace"))
    return " ".join(re.sub(r'"|\\[fnrt]', " ", text).casefold().split())


class _SortedSet(frozenset[Any]):
    """A set whose members come in the same order in every process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=repr))

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}"


def in_fixed_order(value: Any) -> Any:
    """Return a value whose sets, also those within lists, tuples and dicts, have a fixed order.

    Python hashes texts differently in each process, so that a set of them is shown in another order.
    """
    kind = type(value)
    if kind in (set, frozenset):
        return _SortedSet(in_fixed_order(member) for member in value)
    if kind in (list, tuple):
        return kind(in_fixed_order(part) for part in value)
    if kind is dict:
        return {key: in_fixed_order(part) for key, part in value.items()}
    return value


def value_key(value: Any) -> bytes:
    """Return bytes that identify a value, equal for an object and for what a saved program loads in its place."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    value = in_fixed_order(value)
    try:
        return orjson.dumps(serialize_object(value), option=options)
    except Exception:
        # The value is no plain data, or a text that is not Unicode.
        return repr(value).encode(errors="backslashreplace")
