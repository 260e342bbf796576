"""Where the runs of an experiment are made: here, in further processes, or on a Ray cluster."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias

from plr_dspy.experiments.runs.results import Result, Run
from plr_dspy.experiments.runs.runner import Experiment, Worker

Outcome: TypeAlias = tuple[Run, Result | Exception]
"""A run with its result, or with what it raised."""

Executor: TypeAlias = Callable[[Experiment, Sequence[Run]], Iterator[Outcome]]
"""Makes runs of an experiment, and yields the outcome of each as soon as it has ended."""

WATCH_SECONDS = 0.5
"""How often a worker process looks whether its parent is still there."""

GRACE_SECONDS = 10.0
"""How long the run of a worker process has to end when the parent is gone."""

_worker: Worker | None = None
"""The worker of this process, where it is one that `in_processes` has started."""

_idle = threading.Event()
"""Set in a worker process while it makes no run."""


def here(experiment: Experiment, runs: Sequence[Run]) -> Iterator[Outcome]:
    """Make runs in this process, in their order."""
    with Worker(experiment) as worker:
        for run in runs:
            try:
                yield run, worker.run(run)
            except Exception as error:
                yield run, error


def in_processes(experiment: Experiment, runs: Sequence[Run], *, num_workers: int) -> Iterator[Outcome]:
    """Make runs in further processes of this machine; their outcomes come in the order in which they end.

    Each process has a model of its own where the model is the local one. An interrupt reaches all of them, and each
    keeps what it has paid for.
    """
    context = get_context("spawn")
    numbers, stop = context.Queue(), context.Event()
    for number in range(num_workers):
        numbers.put(number)
    executor = ProcessPoolExecutor(
        num_workers,
        mp_context=context,
        initializer=_begin_worker,
        initargs=(experiment, numbers, num_workers, stop),
    )
    try:
        # The processes inherit that they ignore SIGINT: until they make a run, an interrupt is not theirs.
        with _interrupts_ignored():
            futures = {executor.submit(_run, run): run for run in runs}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield futures[future], future.result() if error is None else error
    except BaseException:
        stop.set()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def on_ray(
    experiment: Experiment, runs: Sequence[Run], *, address: str, num_workers: int | None
) -> Iterator[Outcome]:
    """Make runs on a Ray cluster; their outcomes come in the order in which they end.

    Args:
        experiment: Its folder and data must be where every machine sees them under the same path.
        runs: The runs to make.
        address: Address of the cluster, "auto" for the one that this machine is part of, or "local" to start one here.
        num_workers: Runs made at a time; None takes as many as the cluster has CPUs.

    Raises:
        ImportError: without Ray.
        ConnectionError: when there is no such cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise ImportError("--ray needs Ray: pip install 'plr-dspy[ray]'")
    import ray

    with _cluster(address):
        count = min(len(runs), num_workers or max(1, int(ray.cluster_resources().get("CPU", 1))))
        remote: Any = ray.remote(num_cpus=1, max_restarts=0)(Worker)
        idle = [remote.remote(experiment, number, count) for number in range(count)]
        waiting = list(reversed(runs))
        under_way: dict[Any, tuple[Any, Run]] = {}
        while waiting or under_way:
            while waiting and idle:
                worker, run = idle.pop(), waiting.pop()
                under_way[worker.run.remote(run)] = (worker, run)
            (done, *_), _ = ray.wait(list(under_way), num_returns=1)
            worker, run = under_way.pop(done)
            idle.append(worker)
            try:
                yield run, ray.get(done)
            except ray.exceptions.RayTaskError as error:
                yield run, error.cause if isinstance(error.cause, Exception) else error


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    """Be part of a Ray cluster; the caller's own connection stays, and so does what SIGTERM does to the caller."""
    import ray

    if ray.is_initialized():
        yield
        return
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, log_to_driver=False, include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore SIGINT while this context lasts, if it is the main thread's; processes started in it do so for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin_worker(experiment: Experiment, numbers: Queue[int], num_workers: int, stop: Event) -> None:
    """Set up a worker process: take a number, and watch the parent in a thread."""
    global _worker
    _worker = Worker(experiment, numbers.get(), num_workers)
    _idle.set()
    threading.Thread(target=_watch, args=(stop,), daemon=True).start()


def _watch(stop: Event) -> None:
    """End this process when it is told to, or its parent is gone: nobody would take what it still pays for."""
    parent = parent_process()
    assert parent is not None
    while not stop.wait(WATCH_SECONDS) and parent.is_alive():
        pass
    os.kill(os.getpid(), signal.SIGINT)  # ends a run, which keeps what it has paid for
    if not parent.is_alive():
        _idle.wait(GRACE_SECONDS)
        os._exit(1)


def _run(run: Run) -> Result:
    """Make a run in a worker process, where an interrupt ends it."""
    assert _worker is not None
    _idle.clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _worker.run(run)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _idle.set()
