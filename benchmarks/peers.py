"""DSPy's own optimizers for `live.py`, with settings for about a given number of program calls.

`BootstrapFewShot` uses all labeled examples. The other optimizers use half of them for demos or reflection, and those
that need a valset use the other half as the valset.
"""

import random
import sys
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import dspy

# DSPy's random search always scores three programs: without demos, with labeled demos, and with
# demos bootstrapped from the unshuffled examples.
NUM_BASE_PROGRAMS = 3
MINIBATCH = 25  # examples in a trial of MIPROv2
FULL_EVALUATION_STEPS = 5  # trials of MIPROv2 between two evaluations on the whole valset
BATCH = 12  # examples in a step of SIMBA
CANDIDATES = 3  # candidates in a step of SIMBA, and in SIMBA's last evaluation on all examples
METRICS = {  # servers' counters of prompt tokens, and the sign with which each is added
    "llamacpp:prompt_tokens_total": 1,  # excludes tokens in the prefix cache
    "vllm:prompt_tokens_total": 1,
    "vllm:prefix_cache_hits_total": -1,
}
PROPOSAL_TOKENS = 1_024  # maximum tokens in a reply that writes instructions


@dataclass(frozen=True)
class Peer:
    """The arguments for one of DSPy's optimizers.

    Attributes:
        student: The program without demos.
        labeled: Examples for demos, and for the valset if the optimizer needs one.
        metric: DSPy metric that returns a bool.
        output_field: Name of the field that the metric compares.
        make_lm: Function that builds an LM, given the maximum number of tokens in a reply.
        demos: Maximum number of demos per prompt.
        calls: Target number of program calls.
    """

    student: dspy.Module
    labeled: Sequence[dspy.Example]
    metric: Callable[..., bool]
    output_field: str
    make_lm: Callable[[int], dspy.LM]
    demos: int
    calls: int
    threads: int
    seed: int

    @property
    def trainset(self) -> list[dspy.Example]:
        return list(self.labeled[: len(self.labeled) // 2])

    @property
    def valset(self) -> list[dspy.Example]:
        return list(self.labeled[len(self.labeled) // 2 :])

    @property
    def max_errors(self) -> int:
        """A limit on errors that is never reached, so that unparsable answers only score 0."""
        return 10 * len(self.labeled)

    @property
    def bootstrap(self) -> dict[str, Any]:
        """The shared arguments of optimizers that bootstrap demos."""
        return {
            "metric": self.metric,
            "max_bootstrapped_demos": self.demos // 2,
            "max_labeled_demos": self.demos,
            "max_errors": self.max_errors,
        }

    def prompt_model(self) -> dspy.LM:
        """Return the model for writing instructions. Its settings allow long and varied replies."""
        return self.make_lm(PROPOSAL_TOKENS).copy(temperature=1.0)


def bootstrap(peer: Peer) -> dspy.Module:
    return dspy.BootstrapFewShot(**peer.bootstrap).compile(peer.student, trainset=list(peer.labeled))


def random_search(peer: Peer) -> dspy.Module:
    """Return the program with the best random set of demos, among as many sets as the calls allow."""
    num_candidates = max(1, peer.calls // len(peer.valset) - NUM_BASE_PROGRAMS)
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        num_candidate_programs=num_candidates, num_threads=peer.threads, **peer.bootstrap
    )
    return optimizer.compile(peer.student, trainset=peer.trainset, valset=peer.valset)


def mipro(peer: Peer) -> dspy.Module:
    """Return MIPROv2's program after as many trials as the calls allow."""
    per_trial = MINIBATCH + len(peer.valset) / FULL_EVALUATION_STEPS
    num_trials = max(1, int((peer.calls - len(peer.valset)) / per_trial))
    optimizer = dspy.MIPROv2(
        prompt_model=peer.prompt_model(),
        auto=None,
        num_candidates=max(3, num_trials // 2),
        num_threads=peer.threads,
        seed=peer.seed,
        **peer.bootstrap,
    )
    return optimizer.compile(
        peer.student,
        trainset=peer.trainset,
        valset=peer.valset,
        num_trials=num_trials,
        minibatch_size=min(MINIBATCH, len(peer.valset)),
        minibatch_full_eval_steps=FULL_EVALUATION_STEPS,
    )


def simba(peer: Peer) -> dspy.Module:
    """Return SIMBA's program after as many steps as the calls allow.

    Each step samples answers to a batch, and scores new candidates on the same batch. SIMBA gets only
    half of the labeled examples, because it finally scores its best programs on all examples it gets.
    """
    per_step = 2 * BATCH * CANDIDATES
    num_steps = (peer.calls - CANDIDATES * len(peer.trainset)) // per_step
    optimizer = dspy.SIMBA(
        metric=peer.metric,
        bsize=min(BATCH, len(peer.labeled)),
        num_candidates=CANDIDATES,
        max_steps=max(1, num_steps),
        max_demos=peer.demos,
        prompt_model=peer.prompt_model(),
        num_threads=peer.threads,
    )
    return optimizer.compile(peer.student, trainset=peer.trainset, seed=peer.seed)


def gepa(peer: Peer) -> dspy.Module:
    """Return GEPA's program. The correct answers serve as feedback."""

    def with_feedback(
        gold: dspy.Example,
        pred: dspy.Prediction,
        trace: Any = None,
        pred_name: Any = None,
        pred_trace: Any = None,
    ) -> dspy.Prediction:
        is_right = peer.metric(gold, pred)
        feedback = "Right."
        if not is_right:
            feedback = f"Wrong: the right {peer.output_field} is {gold[peer.output_field]!r}."
        return dspy.Prediction(score=float(is_right), feedback=feedback)

    optimizer = dspy.GEPA(
        metric=with_feedback,
        max_metric_calls=peer.calls,
        reflection_lm=peer.prompt_model(),
        num_threads=peer.threads,
        seed=peer.seed,
    )
    return optimizer.compile(peer.student, trainset=peer.trainset, valset=peer.valset)


PEERS: dict[str, Callable[[Peer], dspy.Module]] = {
    "BootstrapFewShot": bootstrap,
    "random search": random_search,
    "MIPROv2": mipro,
    "SIMBA": simba,
    "GEPA": gepa,
}


def compile_with(name: str, peer: Peer) -> dspy.Module:
    """Return the program of the named optimizer. Print the optimizer's progress to stderr."""
    # Some of DSPy's optimizers draw from the global random generator.
    random.seed(peer.seed)
    with redirect_stdout(sys.stderr):
        return PEERS[name](peer)


def tokens_read(api_base: str) -> float | None:
    """Return the number of uncached prompt tokens that a server has read, or None if it is unknown.

    Args:
        api_base: Address of the server, ending in /v1.
    """
    if not api_base:
        return None
    try:
        with urllib.request.urlopen(f"{api_base.removesuffix('/v1')}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
    except OSError:
        return None
    values = dict.fromkeys(METRICS, 0.0)
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        if name in values:
            values[name] += float(line.rpartition(" ")[2])
    return sum(sign * values[name] for name, sign in METRICS.items())
