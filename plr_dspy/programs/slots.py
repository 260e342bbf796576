"""Slots: the demo lists of a program's predictors, which a search reorders or fills from pools."""

import copy
import hashlib
import itertools
import json
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import dspy

from plr_dspy.dspy_compat import rendered_signature
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.instructions import Instruction
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.splits import Examples, answer_classes, by_content
from plr_dspy.programs.token_limits import too_many_tokens
from plr_dspy.programs.tokens import Messages
from plr_dspy.search.quotas import Quotas
from plr_dspy.search.space import WITHOUT_DEMOS, Candidate, Ordering, OrderingSpace, WholeProgram

logger = logging.getLogger(__name__)

OWN = "student"  # origin of the student's own demos


@dataclass(frozen=True)
class PooledDemo:
    """A demo in a pool, with its origin, such as "trainset[3]", and its number of prompt tokens."""

    demo: Any
    origin: str
    tokens: int


@dataclass(frozen=True)
class Slot:
    """The demos of one predictor: a list to reorder, or a pool to choose from.

    Attributes:
        predictor: Name of the predictor in the program.
        demos: The demos in their original order. In a pool, the student's own demos come first.
        blocks: Groups of indices of demos that can swap places. Most adapters show incomplete
            demos before complete demos, so these are separate groups. A pool is a single group.
        classes: The classes of each block's demos. Demos of the same class have the same answer.
        kinds: The kinds of each block's demos. Demos of the same kind look the same in a prompt.
        pool: The pooled demos, or empty if only the order varies.
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
        """Return a candidate that shows this share of the maximum number of demos.

        If demos cannot be chosen, return the original order, which shows all demos.
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
        """Return how many demos a candidate's predictors show in total."""
        if candidate in self.rivals:
            return self.rivals[candidate].num_demos
        return sum(map(len, self.shown(candidate).values()))

    def shows_demos(self, candidate: Candidate) -> bool:
        """Return whether a candidate's prompts show any demos."""
        if candidate in self.rivals:
            return self.rivals[candidate].shows_demos
        return self.num_demos(candidate) > 0

    def build(self, candidate: Candidate, *, guarded: bool = False) -> dspy.Module:
        """Return a new copy of a candidate's program. `guarded` is as in `Rival.build`."""
        if candidate in self.rivals:
            return self.rivals[candidate].build(guarded=guarded)
        return self._factory.build(self.demos(candidate))

    def fingerprint(self, candidate: Candidate, inputs: Mapping[str, Any] | None = None) -> str:
        """Return a digest of a candidate's prompts, or of the whole program if the candidate is a rival.

        Pass `inputs` if they may determine the demos.
        """
        if candidate in self.rivals:
            return self.rivals[candidate].digest
        return self._digest(self.demos(candidate))

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
    """Return a demo's fields, with sets as sorted text, which is the same in every process."""
    fields = dict(demo.items())
    for name, value in fields.items():
        if isinstance(value, (set, frozenset)):
            fields[name] = repr(sorted(value, key=repr))
    return fields


class WholeProgramSlots(PromptSlots):
    """Whole programs to compare, without slots. The first is kept unless another program is better."""

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
        """Return the demos' indices, permuted within the positions of each block."""
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
        """Return a predictor's slot. Render its demos to find the blocks, which depend on the adapter."""
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


def _own_items(slot: Slot) -> tuple[int, ...]:
    """Return the indices of the student's own demos, which come first in a slot's pool."""
    return tuple(range([pooled.origin for pooled in slot.pool].count(OWN)))


def _no_quotas(demos: Sequence[Any]) -> Quotas:
    return Quotas()


def _fewest_tokens(
    pools: Mapping[str, Sequence[PooledDemo]],
    min_demos: int,
    quotas_of: Mapping[str, Callable[[Sequence[Any]], Quotas]],
) -> int:
    """Return the number of tokens in the shortest demos that meet every pool's minimum and quotas."""
    tokens = 0
    for name, pool in pools.items():
        quotas = quotas_of.get(name, _no_quotas)([pooled.demo for pooled in pool])
        by_length = sorted(range(len(pool)), key=lambda item: pool[item].tokens)
        items = quotas.first(by_length, max(min(min_demos, len(pool)), quotas.total))
        tokens += sum(pool[item].tokens for item in items)
    return tokens


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
        alternatives: The instructions of each predictor that has several. The program's own
            instruction comes first.
        quotas_of: For each predictor, a function that takes the demos of a pool and returns the
            minimum number of demos for each class.

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
        quotas_of: Mapping[str, Callable[[Sequence[Any]], Quotas]] = MappingProxyType({}),
    ) -> None:
        super().__init__(program, rivals)
        token_limit = math.inf if max_tokens is None else max_tokens
        slots: list[Slot] = []
        limits: list[tuple[int, int]] = []
        quotas: list[Quotas] = []
        shortest: list[tuple[int, ...]] = []
        for name, pooled_demos in pools.items():
            pool = tuple(
                pooled for pooled in pooled_demos if pooled.origin == OWN or pooled.tokens <= token_limit
            )
            if not pool:
                continue
            items = tuple(range(len(pool)))
            demos = tuple(pooled.demo for pooled in pool)
            quotas.append(quotas_of.get(name, _no_quotas)(demos))
            minimum = max(min(min_demos, len(pool)), quotas[-1].total)
            limits.append((minimum, min(max_demos, len(pool))))
            by_length = sorted(items, key=lambda item: pool[item].tokens)
            shortest.append(quotas[-1].first(by_length, minimum))
            classes = tuple(answer_classes(demos, list(self._predictors[name].signature.output_fields)))
            slots.append(Slot(name, demos, (items,), (classes,), (items,), pool))
        self.slots = tuple(slots)
        self.alternatives = dict(alternatives)
        least_tokens = self.tokens(tuple(shortest))
        if not slots:
            least_tokens = min((pooled.tokens for pooled in itertools.chain(*pools.values())), default=0)
        if least_tokens > token_limit:
            # Demos that exceed the limit were dropped, but the quotas of the full pools may require them.
            least_tokens = max(least_tokens, _fewest_tokens(pools, min_demos, quotas_of))
            raise too_many_tokens(least_tokens, max_tokens, min_demos, has_quotas=bool(quotas_of))
        fits: Callable[[Ordering], bool] | None = None
        if max_tokens is not None:
            fits = lambda ordering: self.tokens(ordering) <= token_limit  # noqa: E731
        self.space = self._make_space(limits, quotas, shortest, fits, programs)
        own_prompt = (*map(_own_items, slots), *((0,) for _ in self.alternatives))
        if self.space.contains(own_prompt) and self.space.allows(own_prompt):
            self.space = replace(self.space, identity=own_prompt)
        self.original: Candidate = own_prompt  # the student's own prompt, which may exceed the limits

    def _make_space(
        self,
        limits: Sequence[tuple[int, int]],
        quotas: Sequence[Quotas],
        shortest: Sequence[tuple[int, ...]],
        fits: Callable[[Ordering], bool] | None,
        programs: Sequence[WholeProgram],
    ) -> OrderingSpace:
        """Return the space, which has a block for each pool and a block for each choice of instructions.

        `limits`, `quotas` and `shortest` have one entry for each pool.
        """
        numbers_of_slots = {slot.predictor: number for number, slot in enumerate(self.slots)}
        kinds = [slot.kinds[0] for slot in self.slots]
        block_limits = [*limits]
        block_quotas = [*quotas]
        shortest_blocks = [*shortest]
        choices = []
        for name, instructions in self.alternatives.items():
            kinds.append(tuple(range(len(instructions))))
            block_limits.append((1, 1))
            block_quotas.append(Quotas())
            shortest_blocks.append((0,))
            choices.append(numbers_of_slots.get(name))
        return OrderingSpace(
            tuple(kinds),
            tuple(block_limits),
            tuple(shortest_blocks),
            fits,
            (*self.competing, *programs),
            choices=tuple(choices),
            quotas=tuple(block_quotas),
        )

    def with_alternatives(self, alternatives: Mapping[str, Sequence[Instruction]]) -> "PoolSlots":
        """Return a copy that chooses from these instructions. Existing instructions must keep their indices."""
        slots = copy.copy(self)
        slots.alternatives = dict(alternatives)
        slots.space = self.space.with_choices([len(instructions) for instructions in alternatives.values()])
        return slots

    def showing(self, share: float) -> Candidate:
        """Return an arrangement that shows the first demos of each pool, up to this share of the maximum."""
        numbers = [max(minimum, math.ceil(share * maximum)) for minimum, maximum in self.space.limits]
        arrangement = self.space.first_items(list(map(range, self.space.sizes)), numbers)
        return self.space.shortened(arrangement) or self.space.identity

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        of_instructions = (tuple(0 for _ in instructions) for instructions in self.alternatives.values())
        return (*super().classes, *of_instructions)

    def instructions(self, candidate: Candidate) -> dict[str, int]:
        if isinstance(candidate, WholeProgram) or candidate == WITHOUT_DEMOS:
            return dict.fromkeys(self.alternatives, 0)
        return {
            name: item for name, (item,) in zip(self.alternatives, candidate[len(self.slots) :], strict=True)
        }

    def build(self, candidate: Candidate, *, guarded: bool = False) -> dspy.Module:
        program = super().build(candidate, guarded=guarded)
        texts = self._other_texts(candidate)
        for name, predictor in program.named_predictors():
            if name in texts:
                predictor.signature = predictor.signature.with_instructions(texts[name])
        return program

    def fingerprint(self, candidate: Candidate, inputs: Mapping[str, Any] | None = None) -> str:
        if candidate in self.rivals:
            return self.rivals[candidate].digest
        return self._digest(self.demos(candidate), self._other_texts(candidate))

    def _other_texts(self, candidate: Candidate) -> dict[str, str]:
        """Return the instructions that differ from the program's own, keyed by predictor name."""
        chosen = self.instructions(candidate)
        return {name: self.alternatives[name][number].text for name, number in chosen.items() if number}

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
            *(len(demos), ", ".join(filled_predictors)),
        )
    return filled_predictors


def messages_of(
    predictor: dspy.Predict, demos: Sequence[Any], inputs: Mapping[str, Any] | None = None
) -> Messages:
    """Return the messages of a call. If `inputs` is None, return only the messages that show the demos."""
    adapter = dspy.settings.adapter or dspy.ChatAdapter()
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
    """Return messages as one string, which differs for different prompts."""
    return json.dumps(messages, default=repr, sort_keys=True)
