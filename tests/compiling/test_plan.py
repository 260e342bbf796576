"""Plans of compile runs, and the smallest budget for each plan."""

import math
import re
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy.compiling.paper import paper_plan
from plr_dspy.compiling.plan import BUDGETS, ProblemSize, make_plan

MANY = math.factorial(8)


@settings(max_examples=150)
@given(
    auto=st.sampled_from(sorted(BUDGETS)),
    max_metric_calls=st.one_of(st.none(), st.integers(1, 20_000)),
    num_train=st.integers(1, 2000),
    num_selection=st.integers(1, 500),
    num_items=st.integers(2, 12),
    num_samples=st.one_of(st.none(), st.integers(1, 20)),
    num_final_draws=st.one_of(st.none(), st.integers(0, 12)),
)
def test_a_plan_keeps_its_budget(auto, num_items, **options):
    num_train = options.pop("num_train")
    num_selection = options.pop("num_selection")
    num_samples = options["num_samples"]
    num_final_draws = options["num_final_draws"]
    num_distinct = math.factorial(num_items)
    try:
        plan = make_plan(auto, ProblemSize(num_train, num_selection, num_distinct), **options)
    except ValueError as error:
        assert "max_metric_calls must be at least" in str(error)
        return
    budget = options["max_metric_calls"] or BUDGETS[auto]
    assert plan.program_calls <= plan.search_calls + plan.race_calls + plan.comparison_calls <= budget
    assert 1 <= plan.num_train_examples <= num_train
    assert 1 <= plan.num_selection_examples <= num_selection
    assert plan.num_initial * plan.num_first_examples <= plan.search_calls
    assert plan.num_initial <= num_distinct
    assert plan.num_finalists <= num_distinct
    if num_samples is None:
        assert plan.num_initial <= max(4, plan.search_calls // (2 * plan.num_first_examples))
    else:
        assert plan.num_samples == num_samples
    if num_final_draws is not None:
        assert plan.num_final_draws == num_final_draws


def test_the_paper_plan_has_the_papers_settings():
    plan = paper_plan(ProblemSize(num_train=800, num_selection=200, num_distinct=24))
    shape = (plan.num_iterations, plan.num_samples, plan.elite_fraction, plan.num_final_draws)
    assert shape == (15, 15, 0.2, 10)
    assert plan.num_train_examples == 800
    assert plan.num_selection_examples == 200
    assert (plan.racing, plan.max_metric_calls) == (False, None)
    values = {"num_iterations": 2, "num_samples": 7, "elite_fraction": 0.5, "num_final_draws": 1}
    options = {"num_train": 10, "num_selection": 5, "num_distinct": MANY}
    plan = paper_plan(ProblemSize(**options), **values)
    assert {name: getattr(plan, name) for name in values} == values


@pytest.mark.parametrize(("num_train", "num_selection", "most"), [(1, 1, 20), (8, 2, 250), (16, 4, 1_000)])
def test_few_examples_limit_the_budget(num_train, num_selection, most):
    size = ProblemSize(num_train, num_selection, MANY)
    plans = [make_plan("light", size, max_metric_calls=budget) for budget in (1_000, 10_000)]
    assert plans[0] == plans[1]
    assert plans[0].program_calls <= most
    # A requested num_samples is kept.
    assert make_plan("light", size, max_metric_calls=1_000, num_samples=40).num_samples == 40


@pytest.mark.parametrize("make", [partial(make_plan, "light"), paper_plan], ids=["light", "paper"])
def test_the_error_names_the_smallest_sufficient_budget(make):
    size = ProblemSize(num_train=80, num_selection=20, num_distinct=MANY)
    with pytest.raises(ValueError, match="increase max_metric_calls") as caught:
        make(size, max_metric_calls=1)
    needed = int(re.search(r"max_metric_calls must be at least (\d+)", str(caught.value))[1])
    with pytest.raises(ValueError, match=f"at least {needed} "):
        make(size, max_metric_calls=needed - 1)
    plan = make(size, max_metric_calls=needed)
    first = plan.num_first_examples * plan.num_initial or plan.num_samples * plan.num_train_examples
    assert plan.program_calls <= needed
    assert needed - plan.comparison_calls - plan.race_calls >= first > 0
