"""Results of benchmark runs, for use in tests."""

from paper.results import RESULT


def record(task="mr", num_demos=8, seed=1, method="Static", scores=(1.0, 0.0), **fields):
    """Return a run as a dict, in the format of a line in a results file."""
    return {
        "schema": 1,
        "task": task,
        "num_demos": num_demos,
        "seed": seed,
        "method": method,
        "model": "smollm2-135m",
        "format": "plain",
        "settings": {"pool": 1000},
        "versions": {"dspy": "3.4.1"},
        "orderings": [[1, 0]],
        "accuracy": sum(scores) / len(scores),
        "scores": list(scores),
        "program_calls": {"total": 100},
        "tokens": {"prompt": 1000, "completion": 10},
        "seconds": 2.0,
        **fields,
    }


def result(*args, **fields):
    return RESULT.validate_python(record(*args, **fields))


def runs(method, counts, task="mr", num_demos=8, **fields):
    """Return a run for each seed. `counts` holds each run's number of correct answers to 20 examples."""
    results = []
    for seed, count in enumerate(counts, start=1):
        if count is not None:
            scores = [float(number < count) for number in range(20)]
            results.append(result(task, num_demos, seed, method, scores, **fields))
    return results
