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

OWN = "student"  # the origin of demos that the student came with


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
    demos: tuple[Any, ...]  # in their original order; of a pool, the student's own come first
    # Demo indices that can trade places: most adapters show incomplete demos before complete ones, so that only orders
    # within either group are seen. Demos that the adapter drops are in no block.
    blocks: tuple[tuple[int, ...], ...]
    space: OrderingSpace  # the orders, or arrangements, of this slot alone; demos of one kind render alike
    classes: tuple[tuple[int, ...], ...]  # of the demos of each block; demos of one class give the same answer
    pool: tuple[PooledDemo, ...] = ()


class PromptSlots(ABC):
    """The demos that orderings show in the prompts of a program; frozen (compiled) sub-modules are left alone.

    Beside the orderings compete programs that are taken as they are, given by their names.
    """

    noun = "order"  # what texts call an ordering
    embedder: Any = None  # that finds demos
    slots: tuple[Slot, ...]
    space: OrderingSpace

    def __init__(self, program: dspy.Module, programs: Sequence[tuple[str, dspy.Module]] = ()) -> None:
        self.program = program
        self.programs = [whole for _, whole in programs]
        self.whole_programs = tuple(WholeProgram(number, name) for number, (name, _) in enumerate(programs))
        self._predictors = dict(program.named_predictors())
        self._factory = ProgramFactory(program)
        self._factories = [ProgramFactory(whole) for whole in self.programs]
        self._digests: dict[int, str] = {}  # of programs, by their numbers

    def permutations(self, candidate: Candidate) -> dict[str, list[int]]:
        """Return demo indices by position, for each slot; those of a whole program have none."""
        if isinstance(candidate, WholeProgram):
            return {slot.predictor: [] for slot in self.slots}
        return self._permutations(candidate)

    @abstractmethod
    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        """Return demo indices by position, for each slot."""

    def showing(self, share: float) -> Candidate:
        """An ordering that shows about this share of the demos that may be shown."""
        return self.space.identity

    def demos(self, ordering: Candidate) -> dict[str, list[Any]]:
        """The demos of each slot in a new order, in new lists."""
        permutations = self.permutations(ordering)
        return {slot.predictor: [slot.demos[i] for i in permutations[slot.predictor]] for slot in self.slots}

    def shown(self, ordering: Candidate) -> dict[str, list[int]]:
        """Demo indices as prompts show them, for each slot: most adapters show incomplete demos first, and leave some
        out."""
        demos, found = {slot.predictor: slot.demos for slot in self.slots}, {}
        for name, items in self.permutations(ordering).items():
            predictor, of_name = self._predictors[name], demos[name]
            alone = {item: messages_of(predictor, [of_name[item]]) for item in items}
            nothing, left = messages_of(predictor, []), messages_of(predictor, [of_name[item] for item in items])
            waiting, placed = [item for item in items if alone[item] != nothing], list[int]()
            while (item := next((i for i in waiting if left[: len(alone[i])] == alone[i]), None)) is not None:
                left = left[len(alone[item]) :]
                waiting.remove(item)
                placed.append(item)
            found[name] = placed + waiting  # in their own order where messages are not those of single demos
        return found

    def num_demos(self, candidate: Candidate) -> int:
        """Return the number of demos that all predictors together show."""
        if isinstance(candidate, WholeProgram):
            return sum(len(predictor.demos) for predictor in self.programs[candidate.number].predictors())
        return sum(map(len, self.permutations(candidate).values()))

    def build(self, candidate: Candidate, *, guarded: bool = False) -> dspy.Module:
        """Return a copy of a whole program, or of the program in an order.

        A guarded one shows no demo before it is known which example is scored.
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
        """Return a digest (128 bits, hexadecimal) of the prompts that a candidate renders to.

        That of a whole program is of the program, or of its prompts for these inputs, if they are known.
        """
        if isinstance(candidate, WholeProgram):
            if candidate.number not in self._digests:
                self._digests[candidate.number] = digest(self.programs[candidate.number])
            return self._digests[candidate.number]
        return self._digest(self.demos(candidate))

    def _digest(self, shown: Mapping[str, Sequence[Any]]) -> str:
        """Return the digest of the prompts with the demos of each slot, the same in every process."""
        text = ""
        for name, demos in shown.items():
            ordered_demos = [in_fixed_order(dict(demo.items())) for demo in demos]
            prompt = as_text(messages_of(self._predictors[name], ordered_demos))
            text += f"{name}\0{prompt}\0"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class ProgramSlots(PromptSlots):
    """The demos that a program has, and the space of their orders."""

    def __init__(self, program: dspy.Module) -> None:
        super().__init__(program)
        slots = [self._slot(name, predictor) for name, predictor in self._predictors.items()]
        self.slots = tuple(slot for slot in slots if slot.demos)
        self.space = OrderingSpace(tuple(kinds for slot in self.slots for kinds in slot.space.kinds))

    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        """Demo indices by position: a block's demos take the places that it had before; `WITHOUT_DEMOS` has none."""
        blocks, result = iter(ordering), {}
        if ordering == WITHOUT_DEMOS:
            return {slot.predictor: [] for slot in self.slots}
        for slot in self.slots:
            permutation = list(range(len(slot.demos)))
            for block in slot.blocks:
                for place, item in zip(block, next(blocks), strict=True):
                    permutation[place] = block[item]
            result[slot.predictor] = permutation
        return result

    def num_demos(self, candidate: Candidate) -> int:
        return sum(map(len, self.shown(candidate).values()))

    def _slot(self, name: str, predictor: dspy.Predict) -> Slot:
        """Find a predictor's blocks by rendering its demos alone and in pairs, so that no adapter's rule is assumed."""
        demos, nothing = tuple(predictor.demos), as_text(messages_of(predictor, []))
        alone = [as_text(messages_of(predictor, [demo])) for demo in demos]
        kind = {i: alone.index(text) for i, text in enumerate(alone) if text != nothing}
        if kind and (hidden := [i for i in range(len(demos)) if i not in kind]):
            logger.warning(
                "demos %s of predictor %r are in no prompt: the adapter leaves them out, such as for a missing field",
                hidden,
                name,
            )
        block_of = {i: i for i in kind}  # each demo's block, named by its first member
        for a, b in combinations(kind, 2):
            if block_of[a] == block_of[b] or kind[a] == kind[b]:
                continue
            pair = [demos[a], demos[b]]
            if messages_of(predictor, pair) != messages_of(predictor, pair[::-1]):
                first, second = sorted((block_of[a], block_of[b]))
                block_of = {i: first if block == second else block for i, block in block_of.items()}
        found = [tuple(i for i in kind if block_of[i] == block) for block in sorted(set(block_of.values()))]
        blocks = tuple(block for block in found if len({kind[i] for i in block}) > 1)
        kinds, classes = (
            tuple(tuple(numbers[i] for i in block) for block in blocks)
            for numbers in (kind, answer_classes(demos, list(predictor.signature.output_fields)))
        )
        return Slot(name, demos, blocks, OrderingSpace(kinds), classes)


class PoolSlots(PromptSlots):
    """The pools of a program's predictors, by their names, and the space of arrangements that keep to the limits.

    A predictor whose pool has fewer demos than `min_demos` shows them all; tokens are those of all demos together.

    Raises:
        ValueError: when no arrangement keeps to the limits.
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
        programs: Sequence[tuple[str, dspy.Module]] = (),  # by their names, the student's own is called `OWN`
    ) -> None:
        super().__init__(program, programs)
        most_tokens = math.inf if max_tokens is None else max_tokens
        least = min((pooled.tokens for pool in pools.values() for pooled in pool), default=0)
        if least > most_tokens:
            raise UserError(
                f"max_demo_tokens must be at least {least}, the tokens of the shortest demo; got {max_tokens}"
            )
        slots, limits = list[Slot](), list[tuple[int, int]]()
        for name, given in pools.items():
            pool = tuple(each for each in given if each.origin == OWN or each.tokens <= most_tokens)
            if not pool:
                continue
            items, demos = tuple(range(len(pool))), tuple(each.demo for each in pool)
            limits.append((min(min_demos, len(pool)), min(max_demos, len(pool))))
            space = OrderingSpace((items,), (limits[-1],))
            classes = tuple(answer_classes(demos, list(self._predictors[name].signature.output_fields)))
            slots.append(Slot(name, demos, (items,), space, (classes,), pool))
        self.slots = tuple(slots)
        first: Ordering = tuple(  # the shortest demos
            tuple(sorted(range(len(slot.pool)), key=lambda item: slot.pool[item].tokens)[:least])
            for slot, (least, _) in zip(slots, limits, strict=True)
        )
        if self.tokens(first) > most_tokens:
            raise UserError(
                f"max_demo_tokens must be at least {self.tokens(first)}, the tokens of the shortest demos with "
                f"{min_demos=}; got {max_tokens}: raise it, or lower min_demos"
            )
        kinds = tuple(slot.blocks[0] for slot in slots)
        allowed = lambda shown: self.tokens(shown) <= most_tokens  # noqa: E731
        self.space = OrderingSpace(kinds, tuple(limits), first, allowed, self.whole_programs)
        own = tuple(tuple(i for i, demo in enumerate(slot.pool) if demo.origin == OWN) for slot in slots)
        if self.space.holds(own) and self.space.allows(own):
            self.space = replace(self.space, identity=own)
        # What the user has: a program, or an arrangement, which need not be within the limits.
        students = [whole for whole in self.whole_programs if whole.name == OWN]
        self.original: Candidate = students[0] if students else own

    def showing(self, share: float) -> Candidate:
        """The demos come from the beginning of each pool."""
        some = tuple(tuple(range(max(least, math.ceil(share * most)))) for least, most in self.space.limits)
        return self.space.shortened(some) or self.space.identity

    def _permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        """Numbers of the demos shown by position, for each slot."""
        return {slot.predictor: list(items) for slot, items in zip(self.slots, ordering, strict=True)}

    def tokens(self, candidate: Candidate) -> int:
        """Return the tokens of the demos that a candidate shows."""
        if isinstance(candidate, WholeProgram):
            return sum(map(_tokens_of_demos, self.programs[candidate.number].predictors()))
        shown = zip(self.slots, candidate, strict=True)
        return sum(slot.pool[item].tokens for slot, items in shown for item in items)


def _tokens_of_demos(predictor: dspy.Predict) -> int:
    """Return the tokens of the demos that a predictor has."""
    if not predictor.demos:
        return 0
    count = token_counter()
    return count(messages_of(predictor, predictor.demos)) - count(messages_of(predictor, []))


def add_labelled_demos(program: dspy.Module, trainset: Examples, num_demos: int, rng: random.Random) -> list[str]:
    """Give the predictors of a program without any demos the same labelled examples, in place; some are left to score.

    A program in which some predictor has demos stays as it is: the optimizer that chose them left the others without
    on purpose. So does a predictor whose prompt would not show the examples. They are the same ones whatever the order
    of the trainset. Returns the names of the others.
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
    """The messages of a call; without inputs those that the demos become, with all that these hold beside the demos.

    DSPy raises a ValueError where there can be none. A TypeError says which fields hold values of no type that they
    have.
    """
    signature, demos, adapter = predictor.signature, list(demos), dspy.settings.adapter or dspy.ChatAdapter()
    if (decision := decision_adapter(predictor)) is not None:
        inputs = dict(inputs or {})
        request = decision_request(decision, signature, demos, inputs)
        if decision.system_one:
            return [{"role": "user", "content": json.dumps(request, default=repr)}]
        signature, demos = request["signature"], request["demos"]
    signature = rendered_signature(predictor, signature)
    try:
        return list(
            adapter.format_demos(signature, demos) if inputs is None else adapter.format(signature, demos, inputs)
        )
    except TypeError as error:
        values = [*(demo.items() for demo in demos), (inputs or {}).items()]
        fields = {name: value for items in values for name, value in items if name in signature.fields}
        kinds = {name: type(value).__name__ for name, value in fields.items() if not isinstance(value, str)}
        raise UserTypeError(
            f"{type(adapter).__name__} cannot show the fields {kinds} as {signature.signature!r} has them ({error}): "
            "give each field the type of its values, such as list[int]; DSPy takes a field without a type for text"
        ) from error


def as_text(messages: Messages) -> str:
    """Messages as one string, which tells prompts apart."""
    return json.dumps(messages, default=repr, sort_keys=True)
