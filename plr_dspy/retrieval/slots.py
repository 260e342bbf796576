"""What is searched where demos are found for each input: rules beside arrangements, or their order by nearness."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import dspy
import numpy as np

from plr_dspy.plackett_luce.distribution import fit_coefficients
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.slots import PooledDemo, PoolSlots, ProgramSlots, Slot
from plr_dspy.programs.splits import source_of
from plr_dspy.retrieval.predict import (
    FEATURES,
    NEAREST,
    CalledBlindly,
    Pool,
    Retrieval,
    RetrievingPredict,
    Rule,
    retrieve_in,
)
from plr_dspy.search.space import Ordering, OrderingSpace, Scores
from plr_dspy.statistics.calibration import Array

LABEL_SHARE, UNLIKENESS = 0.5, -0.5  # coefficients of labels that many neighbours have, and of likeness to demos shown
MIN_ELITES, PENALTY = 8, 1.0  # fewest choices that coefficients are learnt from, and what holds these down
LARGE_POOL = 320  # demos from which on labels count if nothing is searched: with 1,000, but not with 100, they did good


def default_rule(max_demos: int, max_tokens: int | None, *, labels_count: bool = False) -> Rule:
    """The rule that needs no search: the nearest demos; where labels count, rather those with a frequent one."""
    terms = {**NEAREST, "label_share": LABEL_SHARE} if labels_count else NEAREST
    return Rule(max_demos, terms, num_candidates=max(32, 2 * max_demos), max_tokens=max_tokens)


def variations(rule: Rule, min_demos: int) -> list[Rule]:
    """Rules that differ from one in one respect: fewer demos, frequent labels, unlike demos, the other order."""
    return [
        replace(rule, num_demos=max(1, min_demos, rule.num_demos // 2)),
        replace(rule, coefficients={**rule.coefficients, "label_share": LABEL_SHARE}),
        replace(rule, coefficients={**rule.coefficients, "likeness": UNLIKENESS}),
        replace(rule, nearest_last=not rule.nearest_last),
    ]


class RetrievalSlots(PoolSlots):
    """Arrangements of demos, and rules that find demos for each input, which may come after an arrangement.

    A rule is written as a negative item that ends the ordering of every slot: -1 is the first rule.
    """

    def __init__(
        self,
        program: dspy.Module,
        pools: Mapping[str, Sequence[PooledDemo]],
        *,
        retrieved: Mapping[str, Sequence[PooledDemo]],  # of each predictor, the demos that may be found for an input
        examples: Mapping[int, dspy.Example],  # what these are made of, by numbers in the trainset; of a list, of none
        rules: Sequence[Rule],  # that the search begins with; variations of the best enter its race
        embedder: dspy.Embedder | None,  # this and `known` as of `Pool`
        known: dict[str, Array] | None = None,
        min_found: int,  # demos that a rule shows at least
        **limits: Any,  # as of `PoolSlots`
    ) -> None:
        self.rules = list(rules)
        self._min_found, self.embedder = min_found, embedder
        super().__init__(program, pools, **limits)
        sources = {f"trainset[{number}]": source_of(each.inputs()) for number, each in examples.items()}
        sources |= {f"bootstrapped from {origin}": source for origin, source in sources.items()}
        self.found: dict[str, Pool] = {
            name: Pool(
                self._predictors[name],
                [each.demo for each in demos],
                [sources.get(each.origin, "") for each in demos],
                embedder=embedder,
                known=known,
                tokens=[each.tokens for each in demos],
            )
            for name, demos in retrieved.items()
            if demos
        }
        self._content = digest([[pool.demos for pool in self.found.values()], embedder])  # what decides which are found
        # Then the inputs of the predictor are those of the program.
        forwards = (dspy.Predict.forward, dspy.ChainOfThought.forward)
        own = vars(program).get("forward")  # as of dspy.syncify
        self._passes_inputs_on = own is None and getattr(type(program), "forward", None) in forwards
        self._nothing: Ordering = tuple(() for _ in self.slots)
        beside = [self._with_rule(self._nothing, rule) for rule in rules if self.found]
        self.space = replace(self.space, beside=tuple(beside))
        self.most_further = 2 + len(variations(rules[0], 0)) if self.found else 0  # learnt, mixed, and these

    def rule_of(self, ordering: Ordering) -> Rule | None:
        """The rule that finds demos beside those of an ordering; None where it only shows these."""
        last = next((items[-1] for items in ordering if items), 0)
        return self.rules[-1 - last] if last < 0 else None

    def showing(self, share: float) -> Ordering:
        return super().showing(share) if any(most for _, most in self.space.limits) else self.space.beside[0]

    def permutations(self, ordering: Ordering) -> dict[str, list[int]]:
        """Numbers of the demos that come first for every input, by position, for each slot."""
        return super().permutations(_fixed(ordering))

    def tokens(self, ordering: Ordering) -> int:
        """Tokens of the demos that an arrangement shows, and about those of demos that are found."""
        return super().tokens(_fixed(ordering)) + self.found_tokens(ordering)

    def found_tokens(self, ordering: Ordering) -> int:
        """Those of demos that are found."""
        if (rule := self.rule_of(ordering)) is None:
            return 0
        most = math.inf if rule.max_tokens is None else rule.max_tokens
        means = [float(np.mean(pool.tokens)) * min(rule.num_demos, len(pool.demos)) for pool in self.found.values()]
        return sum(round(min(mean, most)) for mean in means)

    def num_demos(self, ordering: Ordering) -> int:
        rule = self.rule_of(ordering)
        found = [min(rule.num_demos, len(pool.demos)) for pool in self.found.values()] if rule else []
        return super().num_demos(ordering) + sum(found)

    def finds(self, ordering: Ordering) -> bool:
        return self.rule_of(ordering) is not None

    def check_calls(self) -> None:
        _check_calls(self.found.values())

    def build(self, ordering: Ordering, *, guarded: bool = False) -> dspy.Module:
        rule = self.rule_of(ordering)
        found = {} if rule is None else {name: Retrieval(pool, rule, guarded) for name, pool in self.found.items()}
        return retrieve_in(super().build(ordering), found)

    def fingerprint(self, ordering: Ordering, inputs: Mapping[str, Any] | None = None) -> str:
        """Digest of the prompts, or of the rule and the pools that decide them where inputs do not tell."""
        rule, demos = self.rule_of(ordering), self.demos(ordering)
        if rule is None:
            return self._digest(demos)
        if inputs is not None and self._passes_inputs_on:
            with suppress(Exception):  # of the embedder: if it fails again, the call does
                for name, pool in self.found.items():
                    demos[name] = pool.beside(demos.get(name, []), inputs, rule, without=inputs)
                return self._digest(demos)
        return digest([self._digest(self.demos(ordering)), asdict(rule), self._content])

    def further(self, best: Sequence[Ordering], scores: Scores, inputs: Sequence[Mapping[str, Any]]) -> list[Ordering]:
        """Make variations of the best rule, where one is among the best; one learns its coefficients from the scores.

        A mixture has half as many demos as may be shown from that rule, after the last ones of the best arrangement.
        """
        rule = next((found for ordering in best if (found := self.rule_of(ordering))), None)
        fixed = next((o for o in best if any(o) and self.space.holds(o) and self.space.allows(o)), None)
        if rule is None:
            return []
        learnt = self._learnt(rule, scores, inputs)
        made = [self._with_rule(self._nothing, each) for each in (*learnt, *variations(rule, self._min_found))]
        half = self.rules[0].num_demos // 2
        if fixed is None or not half:
            return made
        shown = tuple(items[-half:] for items in fixed)
        left, shortest = rule.max_tokens, min(min(pool.tokens) for pool in self.found.values())
        if left is not None:  # of each predictor, as much as of the others
            left -= math.ceil(self.tokens(shown) / len(self.found))
        if left is None or left >= shortest:
            made.insert(0, self._with_rule(shown, replace(rule, num_demos=half, max_tokens=left)))
        return made

    def _learnt(self, rule: Rule, scores: Scores, inputs: Sequence[Mapping[str, Any]]) -> list[Rule]:
        """The rule with the coefficients likeliest to choose what scored best on each example: PLR's update, whose
        elites are the choices above their example's mean, weighted by how far."""
        rows = [(self.rule_of(ordering), row) for ordering, row in scores.items() if not any(_fixed(ordering))]
        alike = [(found, row) for found, row in rows if found and found.nearest_last == rule.nearest_last]
        (pool, *others) = self.found.values()
        features, rankings, weights = [], [], []
        for example, asked in enumerate(() if others else inputs):
            seen = [(found, row[example]) for found, row in alike if example in row]
            mean = sum(score for _, score in seen) / max(1, len(seen))
            elites = [(found, score - mean) for found, score in seen if score > mean]
            if not elites or not set(pool.names) <= asked.keys():
                continue
            candidates, of_them = pool.features(asked, rule.num_candidates, without=asked)
            for found, weight in elites:
                features.append(of_them)
                rankings.append(found.chosen(of_them, min(found.num_demos, len(candidates))))
                weights.append(weight)
        if len(rankings) < MIN_ELITES:
            return []
        fitted = fit_coefficients(features, rankings, weights, l2=PENALTY)
        scale = max(np.abs(fitted).max(), 1e-9)
        return [replace(rule, coefficients=dict(zip(FEATURES, np.round(fitted / scale, 3).tolist(), strict=True)))]

    def _with_rule(self, fixed: Ordering, rule: Rule) -> Ordering:
        """An arrangement and a rule, which gets a number."""
        if rule not in self.rules:
            self.rules.append(rule)
        return tuple((*items, -1 - self.rules.index(rule)) for items in fixed)


def _fixed(ordering: Ordering) -> Ordering:
    """An ordering without its rule."""
    return tuple(tuple(item for item in items if item >= 0) for items in ordering)


class FoundSlots(ProgramSlots):
    """The orders of the demos that a program finds for each input, and of those that it shows before them.

    Found demos are the last block of their predictor's slot, which holds stand-ins that say how near each of them is.
    """

    def __init__(self, program: dspy.Module) -> None:
        predictors = program.named_predictors()
        self._found = {name: each.retrieval for name, each in predictors if isinstance(each, RetrievingPredict)}
        self._content = digest([each.facts for each in self._found.values()])
        self.embedder = next((e.pool.embedder for e in self._found.values() if e.pool.embedder is not None), None)
        super().__init__(program)

    @property
    def reverse(self) -> Ordering:
        """The program's own order, but for found demos, which are the other way round."""
        blocks = [(slot, block) for slot in self.slots for block in slot.blocks]
        return tuple(
            items[::-1] if block[0] >= len(self._predictors[slot.predictor].demos) else items
            for (slot, block), items in zip(blocks, self.space.identity, strict=True)
        )

    def shown(self, ordering: Ordering) -> dict[str, list[int]]:
        return self.permutations(ordering)

    def demos(self, ordering: Ordering) -> dict[str, list[Any]]:
        """By predictor, the demos that all inputs have."""
        shown, own = self.permutations(ordering), {name: each.demos for name, each in self._predictors.items()}
        return {name: [own[name][i] for i in items if i < len(own[name])] for name, items in shown.items()}

    def finds(self, ordering: Ordering) -> bool:
        return True

    def check_calls(self) -> None:
        _check_calls(each.pool for each in self._found.values())

    def build(self, ordering: Ordering, *, guarded: bool = False) -> dspy.Module:
        found = {name: replace(each, guarded=guarded) for name, each in self._in_order(ordering).items()}
        return retrieve_in(super().build(ordering), found)

    def fingerprint(self, ordering: Ordering, inputs: Any = None) -> str:
        """Digest of the demos that all inputs have, and of rules and pools that decide the others."""
        rules = {name: asdict(each.rule) for name, each in self._in_order(ordering).items()}
        return digest([super().fingerprint(ordering), rules, self._content])

    def _in_order(self, ordering: Ordering) -> dict[str, Retrieval]:
        """By predictor, where and in what order demos are found."""
        permutations, found = self.permutations(ordering), {}
        for name, each in self._found.items():
            number, own = len(self._predictors[name].demos), _nearness(each)
            order = tuple(own[i - number] for i in permutations.get(name, ()) if i >= number)
            found[name] = each if order == own else replace(each, rule=replace(each.rule, order=order))
        return found

    def _slot(self, name: str, predictor: dspy.Predict) -> Slot:
        slot = super()._slot(name, predictor)
        if name not in self._found:
            return slot
        said, nearness = next(iter(predictor.signature.input_fields)), _nearness(self._found[name])
        stand_ins = [dspy.Example({said: f"(number {place + 1} by nearness to the input)"}) for place in nearness]
        slot = replace(slot, demos=(*slot.demos, *stand_ins))
        if len(nearness) < 2:
            return slot
        items, classes = tuple(range(len(nearness))), (0,) * len(nearness)
        block = tuple(len(predictor.demos) + item for item in items)
        space = OrderingSpace((*slot.space.kinds, items))
        return replace(slot, blocks=(*slot.blocks, block), space=space, classes=(*slot.classes, classes))


def _check_calls(pools: Iterable[Pool]) -> None:
    """Raise if a call of a predictor with one of these pools might have been shown its answer."""
    for pool in pools:
        if pool.called_blindly:
            pool.called_blindly = False  # Another compile may have mended the program.
            raise CalledBlindly


def _nearness(retrieval: Retrieval) -> tuple[int, ...]:
    """How near the demo at each place is, the nearest 0, as they are shown now: of as many as there may be."""
    rule, pool = retrieval.rule, retrieval.pool
    number = min(rule.num_demos, len(pool.demos))
    if rule.max_tokens is not None:  # The shortest ones, which need not be found.
        number = min(number, int((np.cumsum(sorted(pool.tokens)) <= rule.max_tokens).sum()))
    return rule.arranged(range(number))
