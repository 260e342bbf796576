"""Train and selection splits of a program's examples, without those that its demos show."""

import logging
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import dspy
import orjson
from dspy.predict.predict import serialize_object

from plr_dspy.lm.plain_text_adapter import decided
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.media import named_by_digest

logger = logging.getLogger(__name__)

TRAIN_SHARE = 0.8

Examples: TypeAlias = Sequence[dspy.Example]


@dataclass(frozen=True)
class Splits:
    """The examples that drive the search (train), and those that choose the final order (selection)."""

    train: list[dspy.Example]
    selection: list[dspy.Example]
    names: list[str]  # what the user knows those of train, then those of selection by, such as "trainset[3]"
    num_shared: int = 0  # of the trainset, left out because the valset holds them too
    num_repeated: int = 0  # of both, left out because they are copies of other examples there

    @property
    def classes(self) -> list[int] | None:
        """Number of the answer of each example of train, then of selection; None where answers are no classes."""
        labels = [dict(example.labels().items()) for example in (*self.train, *self.selection)]
        classes = answer_classes(labels, sorted({name for fields in labels for name in fields}))
        return classes if are_classes(classes) else None


def make_splits(
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example],
    demos: Sequence[Any],
    rng: random.Random,
    *,
    balanced: bool,
    name: str = "trainset",
    prompted: Collection[str] = (),
) -> Splits:
    """Leave out what the demos show, shuffle, and split into train (80 %) and selection where the valset is empty.

    Copies of an example are no further evidence and left out, too. The parts are the same ones whatever the order of
    the examples. The name is what the user knows the trainset by; `prompted` is as in `shown_by`.
    """
    everything = [*trainset, *valset]
    names = [f"{name}[{i}]" for i in range(len(trainset))] + [f"valset[{i}]" for i in range(len(valset))]
    shown = shown_by(demos, everything, prompted)
    labels = [value_key(dict(example.labels().items())) for example in everything]
    inputs = [source_of(example.inputs()) for example in everything]
    first: dict[tuple[bool, bytes], int] = {}
    for i, example in enumerate(everything):
        first.setdefault((i < len(trainset), value_key(dict(example.items()))), i)
    num_distinct = sum(of_trainset for of_trainset, _ in first)
    warn_of_repeats(len(trainset) - num_distinct, len(trainset), name=name)
    warn_of_repeats(len(valset) - (len(first) - num_distinct), len(valset), name="valset")
    distinct = set(first.values()) - shown
    usable = [i for i in by_content(everything) if i in distinct]
    of_trainset = [i for i in usable if i < len(trainset)]
    valset_inputs = set(inputs[len(trainset) :])
    kept = [i for i in of_trainset if inputs[i] not in valset_inputs]
    num_shared = len(of_trainset) - len(kept)
    if kept and num_shared:
        logger.warning("%d examples are in both trainset and valset: they only choose the final order", num_shared)
    train = mixed(kept, labels, rng, balanced=balanced)
    if valset:
        selection = mixed([i for i in usable if i >= len(trainset)], labels, rng, balanced=balanced)
    else:
        count = len(train)
        num_selection = max(0, min(max(1, round(count * (1 - TRAIN_SHARE))), count - 1))
        # Spread evenly over each class after the other, so that both parts have its share, whatever this is.
        classes = {label: number for number, label in enumerate(dict.fromkeys(labels[i] for i in train))}
        by_class: Sequence[int] = range(count)
        if balanced and are_classes([labels[i] for i in train]):
            by_class = sorted(by_class, key=lambda place: classes[labels[train[place]]])
        places = {by_class[int((i + 0.5) * count / num_selection)] for i in range(num_selection)}
        selection = [train[place] for place in sorted(places)]
        train = [index for place, index in enumerate(train) if place not in places]
    train_examples, selection_examples = ([everything[i] for i in part] for part in (train, selection))
    num_repeated = len(everything) - len(first)
    names_of_both = [names[i] for i in (*train, *selection)]
    return Splits(train_examples, selection_examples, names_of_both, num_shared, num_repeated)


def warn_of_repeats(num_repeated: int, num_examples: int, *, name: str, what: str = "given twice") -> None:
    """Warn that some of the examples, which the user knows by this name, are copies of others and left out."""
    if num_repeated == 1:
        logger.warning("1 of %d examples of %s is %s and counts once", num_examples, name, what)
    elif num_repeated:
        logger.warning("%d of %d examples of %s are %s and count once", num_repeated, num_examples, name, what)


def empty_split(splits: Splits, num_trainset: int, num_valset: int, *, name: str, cure: str) -> str:
    """Say why a split is without any example; the name is what the user knows the trainset by."""
    if num_valset and not splits.selection:
        return f"valset must hold an example that no demo shows; demos show all {num_valset}: {cure}"
    if splits.num_shared > 1 and not splits.train:
        return (
            f"trainset must hold an example that valset does not; all {splits.num_shared} that no demo shows are in "
            "both: leave valset out (20 % of trainset take its place), or split the examples between the two"
        )
    usable = len(splits.train) + (0 if num_valset else len(splits.selection))
    beside = ", or one beside a valset" * (num_valset > 0)
    shared = " or in valset too" * (splits.num_shared > 0)
    left = f"of its {num_trainset} examples {usable} are left, the others are shown by demos{shared} or given twice"
    if usable == num_trainset:
        left = f"it holds {num_trainset}"
    return f"{name} must hold at least two examples that no demo shows{beside}; {left}: {cure}"


def shown_by(demos: Iterable[Any], examples: Sequence[dspy.Example], prompted: Collection[str] = ()) -> set[int]:
    """Indices of the examples that some demo shows: with its answer in the prompt an example proves nothing.

    A demo, an example or a dict, shows an example when the inputs that both name are equal, or when it holds all of the
    example's input values under whatever names (predictors inside a program rename them); or when those inputs are
    equal that are `prompted`, in prompts, unlike the number of an example. A demo that would so show over a tenth of
    the examples shares only something common, such as a language, and shows none by it.
    """
    inputs = [{name: input_key(value) for name, value in example.inputs().items()} for example in examples]
    by_field: dict[tuple[str, str], set[int]] = defaultdict(set)
    by_value: dict[str, set[int]] = defaultdict(set)
    for i, fields in enumerate(inputs):
        for name, key in fields.items():
            by_field[name, key].add(i)
            by_value[key].add(i)
    names = {name for fields in inputs for name in fields}
    shown: set[int] = set()
    for demo in demos:
        fields = {name: input_key(value) for name, value in dict(demo.items()).items()}
        shared = {name: by_field[name, key] for name, key in fields.items() if name in names}
        by_name = set.intersection(*shared.values()) if shared else set()
        seen = [matches for name, matches in shared.items() if name in prompted]
        by_prompt = set.intersection(*seen) if seen else set()
        held = Counter(i for key in set(fields.values()) for i in by_value.get(key, ()))
        by_values = {i for i, count in held.items() if count == len(set(inputs[i].values()))}
        shown |= {i for i in by_name if inputs[i].keys() <= fields.keys()}
        for matches in (by_name, by_prompt, by_values):
            shown |= matches if len(matches) <= max(1, len(examples) // 10) else set()
    return shown


def by_content(examples: Sequence[dspy.Example]) -> list[int]:
    """Indices of examples in an order that only what they hold decides, so that draws are the same in every order."""
    return sorted(range(len(examples)), key=list(map(digest, examples)).__getitem__)


def mixed(indices: Sequence[int], labels: Sequence[Hashable], rng: random.Random, *, balanced: bool) -> list[int]:
    """Shuffle examples; if `balanced`, spread each class evenly, so that every prefix has the classes' shares.

    A search scores orders on a prefix: an order that favours one class must not be favoured by chance.
    """
    shuffled = list(indices)
    rng.shuffle(shuffled)
    classes: dict[Hashable, list[int]] = defaultdict(list)
    for index in shuffled:
        classes[labels[index]].append(index)
    if not balanced or not are_classes([labels[index] for index in shuffled]):
        return shuffled
    ranked = enumerate(classes.values())
    placed = [((i + 0.5) / len(each), rank, index) for rank, each in ranked for i, index in enumerate(each)]
    return [index for *_, index in sorted(placed)]


def are_classes(labels: Sequence[Any]) -> bool:
    """Whether labels are classes: several, and at most a quarter as many as examples."""
    return 1 < len(set(labels)) <= len(labels) / 4


def answer_classes(rows: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Numbers the answers of demos or examples, by the names of outputs: equal for those that give the same one.

    A field that hardly any two share, such as a reasoning, says nothing about classes and is ignored.
    """
    columns = [[value_key({name: decided(fields.get(name))}) for fields in rows] for name in names]
    telling = [column for column in columns if 3 * len(set(column)) <= 2 * len(rows)]
    answers = list(zip(*telling, strict=True)) or [()] * len(rows)
    numbers = {answer: i for i, answer in enumerate(dict.fromkeys(answers))}
    return [numbers[answer] for answer in answers]


def source_of(inputs: Mapping[str, Any]) -> str:
    """What identifies the inputs of an example, as of `input_key`."""
    return repr(sorted((name, input_key(value)) for name, value in inputs.items()))


def input_key(value: Any) -> str:
    """What identifies the value of an input, without what copies differ in: case, white space, quotes and the Unicode
    form of texts."""
    key = value_key(named_by_digest(value))
    text = unicodedata.normalize("NFC", key.decode(errors="backslashreplace"))
    return " ".join(re.sub(r'"|\\[fnrt]', " ", text).casefold().split())


def value_key(value: Any) -> bytes:
    """What identifies a value, whether it is the object or what a saved program loads in its place."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(serialize_object(value), option=options)
    except Exception:  # of the value's own: no plain data, or text that is no Unicode
        return repr(value).encode(errors="backslashreplace")
