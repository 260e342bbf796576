"""Slots: the predictors' demo lists that a search reorders or fills from pools."""

import copy
import hashlib
import itertools
import json
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import dspy

from plr_dspy.dspy_compat import current_adapter, rendered_signature
from plr_dspy.errors import UserError
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.instructions import OWN, Instruction
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.splits import Examples, answer_classes, by_content
from plr_dspy.programs.tokens import Messages
from plr_dspy.search.space import WITHOUT_DEMOS, Candidate, Ordering, OrderingSpace, WholeProgram

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PooledDemo:
    """A demo in a pool, with its origin (such as "trainset[3]") and its number of prompt tokens."""

    demo: Any
    origin: str
    tokens: int


@dataclass(frozen=True)
class Slot:
    """The demos of one predictor: a list to reorder or a pool to choose from.

    Attributes:
        predictor: Name of the predictor in the program.
        demos: The demos in their original order. In a pool, the student's own demos come first.
        blocks: Groups of demo indices. Only demos in the same group can swap places. Most adapters
            show incomplete demos before complete demos, so the two form separate groups. A pool is
            a single group.
        classes: Each demo's class, by block. Demos of the same class have the same answer.
        kinds: Each demo's kind, by block. Demos of the same kind look the same in a prompt.
        pool: The pooled demos. Empty if only the order varies.
    """

    predictor: str
    demos: tuple[Any, ...]
    blocks: tuple[tuple[int, ...], ...]
    classes: tuple[tuple[int, ...], ...]
    kinds: tuple[tuple[int, ...], ...]
    pool: tuple[PooledDemo, ...] = ()


class PromptSlots(ABC):
    """The slots of a program, and the demos that each candidate shows in them."""

    embedder: Any = None  # embeds the inputs if demos are retrieved by embeddings
    slots: tuple[Slot, ...]
    space: OrderingSpace
    alternatives: Mapping[str, Sequence[Instruction]] = MappingProxyType({})  # keyed by predictor name

    def __init__(self, program: dspy.Module, rivals: Sequence[Rival] = ()) -> None:
        self.program = program
        self.competing = tuple(WholeProgram(number, rival.name) for number, rival in enumerate(rivals))
        self.rivals: Mapping[Candidate, Rival] = dict(zip(self.competing, rivals, strict=True))
        self._predictors = dict(program.named_predictors())
        self._factory = ProgramFactory(program)

    def permutations(self, candidate: Candidate) -> dict[str, list[int]]:
        """Return the indices of each predictor's demos in prompt order.

        The lists are empty if the candidate is a whole program or shows no demos.
        """
        if isinstance(candidate, WholeProgram) or candidate == WITHOUT_DEMOS:
            return {slot.predictor: [] for slot in self.slots}
        return self._permutations(candidate)

    @abstractmethod
    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]: ...

    def showing(self, share: float) -> Candidate:
        """Return a candidate that shows the fraction `share` of the maximum number of demos.

        Without pools to choose from, return the original order of all demos.
        """
        return self.space.identity

    def demos(self, ordering: Candidate) -> dict[str, list[Any]]:
        """Return each predictor's demos in a candidate's order, keyed by predictor name."""
        permutations = self.permutations(ordering)
        demos = {}
        for slot in self.slots:
            demos[slot.predictor] = [slot.demos[i] for i in permutations[slot.predictor]]
        return demos

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The classes of the items in each block of the search space."""
        return tuple(classes for slot in self.slots for classes in slot.classes)

    def instructions(self, candidate: Candidate) -> dict[str, int]:
        """Return the index of each predictor's instruction, or an empty dict if instructions do not vary."""
        return {}

    def shown(self, ordering: Candidate) -> dict[str, list[int]]:
        """Return the indices of the demos that each predictor's prompts show, in prompt order."""
        return self.permutations(ordering)

    def num_demos(self, candidate: Candidate) -> int:
        """Return the total number of demos that a candidate's predictors show."""
        if candidate in self.rivals:
            return self.rivals[candidate].num_demos
        return sum(map(len, self.shown(candidate).values()))

    def shows_demos(self, candidate: Candidate) -> bool:
        """Return whether a candidate's prompts show any demos."""
        return self.num_demos(candidate) > 0

    def build(self, candidate: Candidate, *, guarded: bool = False) -> dspy.Module:
        """Return a new copy of a candidate's program. For `guarded`, see `Rival.build`."""
        if candidate in self.rivals:
            return self.rivals[candidate].build(guarded=guarded)
        program = self._factory.build(self.demos(candidate))
        texts = self._other_texts(candidate)
        for name, predictor in program.named_predictors():
            if name in texts:
                predictor.signature = predictor.signature.with_instructions(texts[name])
        return program

    def fingerprint(self, candidate: Candidate, inputs: Mapping[str, Any] | None = None) -> str:
        """Return a digest of a candidate's prompts, or of the whole program if the candidate is a rival.

        Pass `inputs` if the demos may depend on them.
        """
        if candidate in self.rivals:
            return self.rivals[candidate].digest
        return self._digest(self.demos(candidate), self._other_texts(candidate))

    def _other_texts(self, candidate: Candidate) -> dict[str, str]:
        """Return the instructions that differ from the program's own, keyed by predictor name."""
        chosen = self.instructions(candidate)
        return {name: self.alternatives[name][number].text for name, number in chosen.items() if number}

    def _digest(
        self, shown: Mapping[str, Sequence[Any]], instructions: Mapping[str, str] | None = None
    ) -> str:
        text = ""
        for name, demos in shown.items():
            messages = messages_of(self._predictors[name], list(map(_without_sets, demos)))
            text += f"{name}\0{as_text(messages)}\0"
        if instructions:
            text += as_text([dict(instructions)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _without_sets(demo: Any) -> dict[str, Any]:
    """Return a demo's fields. Replace sets with sorted text that is the same in every process."""
    fields = dict(demo.items())
    for name, value in fields.items():
        if isinstance(value, (set, frozenset)):
            fields[name] = repr(sorted(value, key=repr))
    return fields


class WholeProgramSlots(PromptSlots):
    """Whole programs to compare, without slots. The first program is kept unless another one is better."""

    slots = ()

    def __init__(self, rivals: Sequence[Rival]) -> None:
        super().__init__(rivals[0].program, rivals)
        self.original = self.competing[0]
        # The empty ordering represents the first program.
        self.space = OrderingSpace((), programs=self.competing[1:])

    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        return {}


class ProgramSlots(PromptSlots):
    """The slots of a program that keeps its demos, and the space of the demos' orders."""

    def __init__(self, program: dspy.Module, rivals: Sequence[Rival] = ()) -> None:
        super().__init__(program, rivals)
        self._hidden: dict[str, list[int]] = {}
        slots = [
            self._slot(name, predictor) for name, predictor in self._predictors.items() if predictor.demos
        ]
        self.slots = tuple(slots)
        kinds = tuple(itertools.chain(*(slot.kinds for slot in slots)))
        self.space = OrderingSpace(kinds, programs=self.competing)

    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        """Return the demos' indices, with each block permuted within its own positions."""
        block_orders = iter(ordering)
        permutations = {}
        for slot in self.slots:
            permutation = list(range(len(slot.demos)))
            for block in slot.blocks:
                for place, item in zip(block, next(block_orders), strict=True):
                    permutation[place] = block[item]
            permutations[slot.predictor] = permutation
        return permutations

    def shown(self, ordering: Candidate) -> dict[str, list[int]]:
        shown = {}
        for name, items in self.permutations(ordering).items():
            shown[name] = [i for i in items if i not in self._hidden[name]]
        return shown

    def _slot(self, name: str, predictor: dspy.Predict) -> Slot:
        """Return a predictor's slot. The blocks depend on the adapter, so render the demos to find them."""
        demos = tuple(predictor.demos)
        texts = demo_texts(predictor, demos)
        kinds = {i: texts.index(text) for i, text in enumerate(texts) if text}
        self._hidden[name] = [i for i in range(len(demos)) if i not in kinds]
        blocks = _blocks(predictor, demos, kinds)
        classes = answer_classes(demos, list(predictor.signature.output_fields))
        return Slot(
            name,
            demos,
            blocks,
            classes=tuple(itemgetter(*block)(classes) for block in blocks),
            kinds=tuple(itemgetter(*block)(kinds) for block in blocks),
        )


def _blocks(
    predictor: dspy.Predict, demos: Sequence[Any], kinds: Mapping[int, int]
) -> tuple[tuple[int, ...], ...]:
    """Return groups of demo indices such that swapping two different demos of a group changes the prompt."""
    groups: list[list[int]] = []
    for kind in dict.fromkeys(kinds.values()):
        for group in groups:
            first = demos[group[0]]
            if messages_of(predictor, [first, demos[kind]]) != messages_of(predictor, [demos[kind], first]):
                group.append(kind)
                break
        else:
            groups.append([kind])
    blocks = []
    for group in groups:
        if len(group) > 1:
            blocks.append(tuple(i for i in kinds if kinds[i] in group))
    return tuple(blocks)


class _Block(NamedTuple):
    """A block of the search space: a pool of demos or a predictor's alternative instructions.

    The defaults are for instructions: a prompt shows exactly one of them.

    Attributes:
        size: The number of items.
        limits: The minimum and maximum number of items shown.
        own: The items in the student's own prompt.
        shortest: The items with the fewest tokens, as many as the minimum.
        num_tokens: The total number of tokens in the demos of `shortest`.
    """

    size: int
    limits: tuple[int, int] = (1, 1)
    own: tuple[int, ...] = (0,)
    shortest: tuple[int, ...] = (0,)
    num_tokens: int = 0


def _blocks_of_pools(pools: Iterable[Sequence[PooledDemo]], min_demos: int, max_demos: int) -> list[_Block]:
    blocks = []
    for pool in pools:
        minimum = min(min_demos, len(pool))
        by_length = sorted(range(len(pool)), key=lambda item: pool[item].tokens)
        shortest = tuple(by_length[:minimum])
        num_own = [pooled.origin for pooled in pool].count(OWN)
        block = _Block(
            len(pool),
            limits=(minimum, min(max_demos, len(pool))),
            own=tuple(range(num_own)),  # The student's own demos come first.
            shortest=shortest,
            num_tokens=sum(pool[item].tokens for item in shortest),
        )
        blocks.append(block)
    return blocks


def _short_enough(pool: Sequence[PooledDemo], max_tokens: int | None) -> tuple[PooledDemo, ...]:
    """Return the student's own demos and all other demos within the token limit."""
    token_limit = math.inf if max_tokens is None else max_tokens
    return tuple(pooled for pooled in pool if pooled.origin == OWN or pooled.tokens <= token_limit)


class PoolSlots(PromptSlots):
    """The demo pools of a program's predictors, and the space of allowed arrangements.

    Args:
        program: The student.
        pools: For each predictor, the demos to choose from.
        min_demos: Minimum number of demos per predictor. If a pool is smaller, all its demos are
            shown.
        max_demos: Maximum number of demos per predictor.
        max_tokens: Maximum total number of tokens in all demos. None means no limit.
        rivals: The user's programs to compare with the arrangements.
        programs: Other whole programs to compare with the arrangements.
        alternatives: For each predictor with several instructions, the instructions to choose
            from. The program's own instruction comes first.

    Raises:
        ValueError: If no arrangement is within the limits.
    """

    def __init__(
        self,
        program: dspy.Module,
        pools: Mapping[str, Sequence[PooledDemo]],
        *,
        min_demos: int,
        max_demos: int,
        max_tokens: int | None,
        rivals: Sequence[Rival] = (),
        programs: Sequence[WholeProgram] = (),
        alternatives: Mapping[str, Sequence[Instruction]] = MappingProxyType({}),
    ) -> None:
        super().__init__(program, rivals)
        self.alternatives = dict(alternatives)
        short_demos = {name: _short_enough(pool, max_tokens) for name, pool in pools.items()}
        usable_pools = {name: pool for name, pool in short_demos.items() if pool}
        self.slots = tuple(self._slot(name, pool) for name, pool in usable_pools.items())
        blocks = _blocks_of_pools(usable_pools.values(), min_demos, max_demos)
        least_tokens = sum(block.num_tokens for block in blocks)
        if not blocks:  # There are no demos, or all demos exceed the limit.
            least_tokens = min((pooled.tokens for pooled in itertools.chain(*pools.values())), default=0)
        if max_tokens is not None and least_tokens > max_tokens:
            # `usable_pools` lacks demos that exceed the limit. With a higher limit, `min_demos` may
            # require these demos.
            full_blocks = _blocks_of_pools(pools.values(), min_demos, max_demos)
            required_tokens = max(least_tokens, sum(block.num_tokens for block in full_blocks))
            shortest = "the shortest demo has"
            fix = "increase max_demo_tokens"
            if min_demos:
                shortest = f"the shortest demos with {min_demos=} have"
                fix += ", or reduce min_demos"
            raise UserError(
                f"max_demo_tokens must be at least {required_tokens}, because {shortest} this many tokens; got "
                f"{max_tokens}: {fix}"
            )
        blocks += [_Block(len(instructions)) for instructions in alternatives.values()]
        # The student's own prompt may exceed the limits.
        self.original: Candidate = tuple(block.own for block in blocks)
        self.space = self._make_space(blocks, max_tokens, programs)

    def _slot(self, name: str, pool: tuple[PooledDemo, ...]) -> Slot:
        items = tuple(range(len(pool)))
        demos = tuple(pooled.demo for pooled in pool)
        classes = tuple(answer_classes(demos, list(self._predictors[name].signature.output_fields)))
        return Slot(name, demos, blocks=(items,), classes=(classes,), kinds=(items,), pool=pool)

    def _make_space(
        self, blocks: Sequence[_Block], max_tokens: int | None, programs: Sequence[WholeProgram]
    ) -> OrderingSpace:
        """Return the space.

        The identity is the student's own prompt if the space allows it, or else the shortest arrangement.
        """
        token_limit = math.inf if max_tokens is None else max_tokens

        def fits(ordering: Ordering) -> bool:
            return self.tokens(ordering) <= token_limit

        numbers_of_slots = {slot.predictor: number for number, slot in enumerate(self.slots)}
        space = OrderingSpace(
            kinds=tuple(tuple(range(block.size)) for block in blocks),
            limits=tuple(block.limits for block in blocks),
            identity=tuple(block.shortest for block in blocks),
            allowed=None if max_tokens is None else fits,
            programs=(*self.competing, *programs),
            choices=tuple(map(numbers_of_slots.get, self.alternatives)),
        )
        if space.contains(self.original) and space.allows(self.original):
            return replace(space, identity=self.original)
        return space

    def with_alternatives(self, alternatives: Mapping[str, Sequence[Instruction]]) -> "PoolSlots":
        """Return a copy that chooses from `alternatives`. Existing instructions must keep their indices."""
        slots = copy.copy(self)
        slots.alternatives = dict(alternatives)
        slots.space = self.space.with_choices([len(instructions) for instructions in alternatives.values()])
        return slots

    def showing(self, share: float) -> Candidate:
        """Return an arrangement of the first demos of each pool.

        Show the fraction `share` of each pool's maximum number of demos, but at least its minimum.
        If the arrangement is not allowed, drop demos until it is. If that fails, return the
        original arrangement.
        """
        numbers = [max(minimum, math.ceil(share * maximum)) for minimum, maximum in self.space.limits]
        arrangement = tuple(tuple(range(number)) for number in numbers)
        return self.space.shortened(arrangement) or self.space.identity

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        of_instructions = (tuple(0 for _ in instructions) for instructions in self.alternatives.values())
        return (*super().classes, *of_instructions)

    def instructions(self, candidate: Candidate) -> dict[str, int]:
        if isinstance(candidate, WholeProgram) or candidate == WITHOUT_DEMOS:
            return dict.fromkeys(self.alternatives, 0)
        return {
            name: item
            for name, (item,) in zip(self.alternatives, candidate[len(self.slots) :], strict=True)
        }

    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        arrangements = ordering[: len(self.slots)]
        return {slot.predictor: list(items) for slot, items in zip(self.slots, arrangements, strict=True)}

    def tokens(self, candidate: Candidate) -> int:
        """Return the number of tokens in a candidate's demos, or 0 if the candidate is a whole program."""
        tokens = 0
        permutations = self.permutations(candidate)
        for slot in self.slots:
            tokens += sum(slot.pool[item].tokens for item in permutations[slot.predictor])
        return tokens


def add_labeled_demos(
    program: dspy.Module, trainset: Examples, num_demos: int, rng: random.Random
) -> list[str]:
    """Add labeled examples as demos to a program without demos. Return the names of changed predictors.

    If any predictor has demos, change nothing, because the user probably left the other predictors
    without demos on purpose. Leave at least two examples for scoring.
    """
    predictors = dict(program.named_predictors())
    if any(predictor.demos for predictor in predictors.values()):
        return []
    number = max(0, min(num_demos, len(trainset) - 2))
    demos = [trainset[index] for index in rng.sample(by_content(trainset), number)]
    filled_predictors = []
    for name, predictor in predictors.items():
        if demos and messages_of(predictor, demos) != messages_of(predictor, []):
            predictor.demos = list(demos)
            filled_predictors.append(name)
    if filled_predictors:
        logger.warning(
            "student has no demos, so %d labeled examples from trainset were added to %s. The search only orders them. "
            "To choose demos as well, use PLFewShot (--select on the command line)",
            len(demos),
            ", ".join(filled_predictors),
        )
    return filled_predictors


def messages_of(
    predictor: dspy.Predict, demos: Sequence[Any], inputs: Mapping[str, Any] | None = None
) -> Messages:
    """Return the messages of a call. If `inputs` is None, return only the messages that show the demos."""
    adapter = current_adapter()
    signature = rendered_signature(predictor)
    if inputs is None:
        return list(adapter.format_demos(signature, list(demos)))
    return list(adapter.format(signature, list(demos), inputs))


def demo_texts(predictor: dspy.Predict, demos: Sequence[Any]) -> list[str]:
    """Return each demo's messages as text, or as an empty string if the adapter does not show the demo."""
    no_text = as_text(messages_of(predictor, []))
    texts = [as_text(messages_of(predictor, [demo])) for demo in demos]
    return ["" if text == no_text else text for text in texts]


def as_text(messages: Messages) -> str:
    """Return messages as one string. Different prompts give different strings."""
    return json.dumps(messages, default=repr, sort_keys=True)
