"""What a search varies in a program: its demos or pools of demos; and the programs that compete as they are."""

import hashlib
import json
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import dspy

from plr_dspy.dspy_compat import decision_adapter, decision_request, rendered_signature
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.splits import Examples, answer_classes, by_content, in_fixed_order
from plr_dspy.programs.tokens import Messages, token_counter
from plr_dspy.search.space import WITHOUT_DEMOS, Candidate, Ordering, OrderingSpace, WholeProgram

logger = logging.getLogger(__name__)

OWN = "student"
"""The origin of demos that the student came with."""


@dataclass(frozen=True)
class PooledDemo:
    """A demo that an arrangement may show, its origin ("student", "trainset[3]"), and its tokens in a prompt."""

    demo: Any
    origin: str
    tokens: int


@dataclass(frozen=True)
class Slot:
    """One predictor's list of demos, or its pool of demos, which is one block."""

    predictor: str
    # The demos are in their original order. In a pool, the student's own come first.
    demos: tuple[Any, ...]
    # Demos of a block can trade places. Most adapters show incomplete demos before complete ones, so prompts differ
    # only by the orders within either group. Demos that the adapter drops are in no block.
    blocks: tuple[tuple[int, ...], ...]
    # These are the orders or arrangements of this slot alone; demos of one kind render alike.
    space: OrderingSpace
    # Demos of one class, by block, give the same answer.
    classes: tuple[tuple[int, ...], ...]
    pool: tuple[PooledDemo, ...] = ()


class PromptSlots(ABC):
    """The demos that orderings show in the prompts of a program; frozen (compiled) sub-modules stay as they are.

    Attributes:
        noun: What texts call an ordering.
        embedder: What finds demos for each input, if anything does.
        programs: Programs that compete with the orderings as they are.
    """

    noun = "order"
    embedder: Any = None
    slots: tuple[Slot, ...]
    space: OrderingSpace

    def __init__(self, program: dspy.Module, programs: Sequence[tuple[str, dspy.Module]] = ()) -> None:
        self.program = program
        self.programs = [whole for _, whole in programs]
        self.whole_programs = tuple(WholeProgram(number, name) for number, (name, _) in enumerate(programs))
        self._predictors = dict(program.named_predictors())
        self._factory = ProgramFactory(program)
        self._factories = [ProgramFactory(whole) for whole in self.programs]
        self._program_digests: dict[int, str] = {}

    def permutations(self, candidate: Candidate) -> dict[str, list[int]]:
        """Return demo indices by position, for each slot; a whole program has none."""
        if isinstance(candidate, WholeProgram):
            return {slot.predictor: [] for slot in self.slots}
        return self._permutations(candidate)

    @abstractmethod
    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        """Return demo indices by position, for each slot."""

    def showing(self, share: float) -> Candidate:
        """Return an ordering that shows about this share of the available demos."""
        return self.space.identity

    def demos(self, ordering: Candidate) -> dict[str, list[Any]]:
        """Return the demos of each slot in a new order, in new lists."""
        permutations = self.permutations(ordering)
        return {slot.predictor: [slot.demos[i] for i in permutations[slot.predictor]] for slot in self.slots}

    def shown(self, ordering: Candidate) -> dict[str, list[int]]:
        """Return demo indices as prompts show them, for each slot.

        Most adapters show incomplete demos first, and leave some out.
        """
        demos = {slot.predictor: slot.demos for slot in self.slots}
        permutations = self.permutations(ordering)
        return {name: self._shown_in(name, demos[name], items) for name, items in permutations.items()}

    def _shown_in(self, name: str, demos: Sequence[Any], items: Sequence[int]) -> list[int]:
        """Return demo indices in the order in which the prompt of a predictor shows their messages."""
        predictor = self._predictors[name]
        no_messages = messages_of(predictor, [])
        unplaced_messages = messages_of(predictor, [demos[item] for item in items])
        messages = {item: messages_of(predictor, [demos[item]]) for item in items}
        unplaced = [item for item in items if messages[item] != no_messages]
        placed: list[int] = []
        while True:
            following = [item for item in unplaced if unplaced_messages[: len(messages[item])] == messages[item]]
            if not following:
                break
            item = following[0]
            unplaced_messages = unplaced_messages[len(messages[item]) :]
            unplaced.remove(item)
            placed.append(item)
        # If messages are not those of single demos, the rest stays in its own order.
        return placed + unplaced

    def num_demos(self, candidate: Candidate) -> int:
        """Return the number of demos that all predictors together show."""
        if isinstance(candidate, WholeProgram):
            return sum(len(predictor.demos) for predictor in self.programs[candidate.number].predictors())
        return sum(map(len, self.permutations(candidate).values()))

    def build(self, candidate: Candidate, *, guarded: bool = False) -> dspy.Module:
        """Return a copy of a whole program, or of the program in an order.

        If `guarded`, it shows no demo until the scored example is known.
        """
        if isinstance(candidate, WholeProgram):
            return self._factories[candidate.number].build({})
        return self._factory.build(self.demos(candidate))

    def finds(self, candidate: Candidate) -> bool:
        """Return whether a candidate shows demos that are found for each input."""
        return False

    def check_calls(self) -> None:  # noqa: B027
        """Raise if a call was made that might have been shown its answer."""

    def fingerprint(self, candidate: Candidate, inputs: Mapping[str, Any] | None = None) -> str:
        """Return a digest (128 bits, hexadecimal) of a candidate's prompts.

        For a whole program, it is the digest of the program, or of its prompts for these inputs if they are known.
        """
        if isinstance(candidate, WholeProgram):
            if candidate.number not in self._program_digests:
                self._program_digests[candidate.number] = _program_digest(self.programs[candidate.number])
            return self._program_digests[candidate.number]
        return self._digest(self.demos(candidate))

    def _digest(self, shown: Mapping[str, Sequence[Any]]) -> str:
        """Return the digest of the prompts with the demos of each slot, the same in every process."""
        text = ""
        for name, demos in shown.items():
            ordered_demos = [in_fixed_order(dict(demo.items())) for demo in demos]
            prompt = as_text(messages_of(self._predictors[name], ordered_demos))
            text += f"{name}\0{prompt}\0"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _program_digest(program: dspy.Module) -> str:
    """Return a digest of a program, of its predictors in private attributes, and of how these find their demos."""
    predictors = dict(program.named_predictors())
    retrievals = {}
    for name, predictor in predictors.items():
        retrieval = getattr(predictor, "retrieval", None)
        if retrieval is not None:
            retrievals[name] = retrieval.facts
    return digest([program, predictors, retrievals])


class ProgramSlots(PromptSlots):
    """The demos that a program has, and the space of their orders."""

    def __init__(self, program: dspy.Module) -> None:
        super().__init__(program)
        slots = [self._slot(name, predictor) for name, predictor in self._predictors.items()]
        self.slots = tuple(slot for slot in slots if slot.demos)
        self.space = OrderingSpace(tuple(kinds for slot in self.slots for kinds in slot.space.kinds))

    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        """Return demo indices by position: the demos of a block take the places that the block had before."""
        if ordering == WITHOUT_DEMOS:
            return {slot.predictor: [] for slot in self.slots}
        block_orders = iter(ordering)
        permutations = {}
        for slot in self.slots:
            permutation = list(range(len(slot.demos)))
            for block in slot.blocks:
                for place, item in zip(block, next(block_orders), strict=True):
                    permutation[place] = block[item]
            permutations[slot.predictor] = permutation
        return permutations

    def num_demos(self, candidate: Candidate) -> int:
        return sum(map(len, self.shown(candidate).values()))

    def _slot(self, name: str, predictor: dspy.Predict) -> Slot:
        """Find a predictor's blocks by rendering its demos alone and in pairs, so that no adapter's rule is assumed."""
        demos = tuple(predictor.demos)
        no_text = as_text(messages_of(predictor, []))
        texts = [as_text(messages_of(predictor, [demo])) for demo in demos]
        kinds = {i: texts.index(text) for i, text in enumerate(texts) if text != no_text}
        hidden = [i for i in range(len(demos)) if i not in kinds]
        if kinds and hidden:
            logger.warning(
                "demos %s of predictor %r are in no prompt: the adapter leaves them out, such as for a missing field",
                hidden,
                name,
            )
        blocks = _blocks(predictor, demos, kinds)
        classes = answer_classes(demos, list(predictor.signature.output_fields))
        block_kinds = tuple(tuple(kinds[i] for i in block) for block in blocks)
        block_classes = tuple(tuple(classes[i] for i in block) for block in blocks)
        return Slot(name, demos, blocks, OrderingSpace(block_kinds), block_classes)


def _blocks(predictor: dspy.Predict, demos: Sequence[Any], kinds: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of demos whose order changes the prompt; demos of one of the `kinds` render alike."""
    # A block is named by its first demo.
    block_of = {i: i for i in kinds}
    for a, b in combinations(kinds, 2):
        if block_of[a] == block_of[b] or kinds[a] == kinds[b]:
            continue
        if messages_of(predictor, [demos[a], demos[b]]) != messages_of(predictor, [demos[b], demos[a]]):
            first, second = sorted((block_of[a], block_of[b]))
            for i in kinds:
                if block_of[i] == second:
                    block_of[i] = first
    blocks = []
    for name in sorted(set(block_of.values())):
        block = tuple(i for i in kinds if block_of[i] == name)
        if len({kinds[i] for i in block}) > 1:
            blocks.append(block)
    return tuple(blocks)


class PoolSlots(PromptSlots):
    """The pools of a program's predictors, by their names, and the space of arrangements within the limits.

    A predictor whose pool has fewer demos than `min_demos` shows them all. `max_tokens` limits all demos together. The
    program of the student is called `OWN` among the `programs`.

    Raises:
        ValueError: if no arrangement is within the limits.
    """

    noun = "arrangement"

    def __init__(
        self,
        program: dspy.Module,
        pools: Mapping[str, Sequence[PooledDemo]],
        *,
        min_demos: int,
        max_demos: int,
        max_tokens: int | None,
        programs: Sequence[tuple[str, dspy.Module]] = (),
    ) -> None:
        super().__init__(program, programs)
        most_tokens = math.inf if max_tokens is None else max_tokens
        least = min((pooled.tokens for pool in pools.values() for pooled in pool), default=0)
        if least > most_tokens:
            raise UserError(
                f"max_demo_tokens must be at least {least}, the tokens of the shortest demo; got {max_tokens}"
            )
        slots: list[Slot] = []
        limits: list[tuple[int, int]] = []
        for name, pooled_demos in pools.items():
            pool = tuple(pooled for pooled in pooled_demos if pooled.origin == OWN or pooled.tokens <= most_tokens)
            if not pool:
                continue
            items = tuple(range(len(pool)))
            demos = tuple(pooled.demo for pooled in pool)
            limits.append((min(min_demos, len(pool)), min(max_demos, len(pool))))
            space = OrderingSpace((items,), (limits[-1],))
            classes = tuple(answer_classes(demos, list(self._predictors[name].signature.output_fields)))
            slots.append(Slot(name, demos, (items,), space, (classes,), pool))
        self.slots = tuple(slots)
        shortest = []
        for slot, (fewest, _) in zip(slots, limits, strict=True):
            by_tokens = sorted(slot.blocks[0], key=lambda item: slot.pool[item].tokens)
            shortest.append(tuple(by_tokens[:fewest]))
        first: Ordering = tuple(shortest)
        if self.tokens(first) > most_tokens:
            raise UserError(
                f"max_demo_tokens must be at least {self.tokens(first)}, the tokens of the shortest demos with "
                f"{min_demos=}; got {max_tokens}: raise it, or lower min_demos"
            )
        kinds = tuple(slot.blocks[0] for slot in slots)
        allowed = lambda shown: self.tokens(shown) <= most_tokens  # noqa: E731
        self.space = OrderingSpace(kinds, tuple(limits), first, allowed, self.whole_programs)
        own = tuple(tuple(i for i, demo in enumerate(slot.pool) if demo.origin == OWN) for slot in slots)
        if self.space.contains(own) and self.space.allows(own):
            self.space = replace(self.space, identity=own)
        # The user's program may be no arrangement, and its arrangement may be beyond the limits.
        students = [whole for whole in self.whole_programs if whole.name == OWN]
        self.original: Candidate = students[0] if students else own

    def showing(self, share: float) -> Candidate:
        """Return an arrangement of demos from the beginning of each pool."""
        numbers = [max(fewest, math.ceil(share * most)) for fewest, most in self.space.limits]
        arrangement = tuple(tuple(range(number)) for number in numbers)
        return self.space.shortened(arrangement) or self.space.identity

    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        """Return the numbers of the demos by position, for each slot."""
        return {slot.predictor: list(items) for slot, items in zip(self.slots, ordering, strict=True)}

    def tokens(self, candidate: Candidate) -> int:
        """Return the tokens of the demos that a candidate shows."""
        if isinstance(candidate, WholeProgram):
            return sum(map(_tokens_of_demos, self.programs[candidate.number].predictors()))
        tokens = 0
        for slot, items in zip(self.slots, candidate, strict=True):
            tokens += sum(slot.pool[item].tokens for item in items)
        return tokens


def _tokens_of_demos(predictor: dspy.Predict) -> int:
    """Return the tokens of the demos that a predictor has."""
    if not predictor.demos:
        return 0
    count = token_counter()
    return count(messages_of(predictor, predictor.demos)) - count(messages_of(predictor, []))


def add_labelled_demos(program: dspy.Module, trainset: Examples, num_demos: int, rng: random.Random) -> list[str]:
    """Give the predictors of a program without demos the same labelled examples, and return the predictors' names.

    The program is changed. It stays as it is if any predictor has demos, because the optimizer that chose them left the
    others without on purpose. A predictor whose prompt would not show the examples gets none. The choice does not
    depend on the order of the trainset, and at least two examples are left to score.
    """
    predictors = dict(program.named_predictors())
    if any(predictor.demos for predictor in predictors.values()):
        return []
    number = max(0, min(num_demos, len(trainset) - 2))
    demos = [trainset[index] for index in rng.sample(by_content(trainset), number)]
    filled = []
    for name, predictor in predictors.items():
        if demos and messages_of(predictor, demos) != messages_of(predictor, []):
            predictor.demos = list(demos)
            filled.append(name)
    if filled:
        logger.warning(
            "student has no demos: %d labelled examples of the trainset were added to %s, and their order is searched. "
            "To choose demos as well, use PLFewShot (--select on the command line); num_demos sets how many are added "
            "(None refuses a student without demos)",
            len(demos),
            ", ".join(filled),
        )
    return filled


def messages_of(predictor: dspy.Predict, demos: Sequence[Any], inputs: Mapping[str, Any] | None = None) -> Messages:
    """Return the messages of a call; without inputs, only those that the demos add.

    Raises:
        ValueError: if DSPy cannot make messages of these demos.
        TypeError: if fields contain values of other types than theirs.
    """
    signature = predictor.signature
    demos = list(demos)
    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    decision = decision_adapter(predictor)
    if decision is not None:
        # Such an adapter puts demos in its instructions.
        inputs = dict(inputs or {})
        request = decision_request(decision, signature, demos, inputs)
        if decision.system_one:
            return [{"role": "user", "content": json.dumps(request, default=repr)}]
        signature = request["signature"]
        demos = request["demos"]
    signature = rendered_signature(predictor, signature)
    try:
        if inputs is None:
            return list(adapter.format_demos(signature, demos))
        return list(adapter.format(signature, demos, inputs))
    except TypeError as error:
        types = {}
        for values in [*demos, inputs or {}]:
            for name, value in values.items():
                if name in signature.fields and not isinstance(value, str):
                    types[name] = type(value).__name__
        raise UserTypeError(
            f"{type(adapter).__name__} cannot show the fields {types} as {signature.signature!r} has them ({error}): "
            "give each field the type of its values, such as list[int]; DSPy takes a field without a type for text"
        ) from error


def as_text(messages: Messages) -> str:
    """Return messages as one string, which differs if prompts do."""
    return json.dumps(messages, default=repr, sort_keys=True)
