"""The function `estimate`: it estimates the cost of calling `headroom` or `choose_program`."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from plr_dspy.errors import UserTypeError
from plr_dspy.optimizer.choosing import ProgramRace, choose_program
from plr_dspy.optimizer.estimate import Estimate
from plr_dspy.optimizer.headroom import LeverSample, headroom
from plr_dspy.programs.rivals import named_programs

_Arguments = ParamSpec("_Arguments")


def estimate(
    function: Callable[_Arguments, Any], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> Estimate:
    """Estimate the cost of calling a function with these arguments, without making program calls.

    For example, ``print(estimate(headroom, program, metric, trainset))`` shows what
    ``headroom(program, metric, trainset)`` would cost. The result is an upper estimate under the
    assumptions that `Estimate` describes.

    Args:
        function: `headroom` or `choose_program`. For an optimizer, call the optimizer's
            `estimate` method instead.
        args, kwargs: The function's arguments.

    Raises:
        TypeError, ValueError: If `function` is neither `headroom` nor `choose_program`, or if
            one of its arguments is invalid.
    """
    if function not in (headroom, choose_program):
        name = getattr(function, "__name__", type(function).__name__)
        raise UserTypeError(
            f"the argument function must be headroom or choose_program; got {name}: pass one of these functions or, "
            "to estimate the cost of an optimizer, call its estimate method"
        )
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    if function is choose_program:
        programs = named_programs(arguments.pop("programs"), min_number=2)
        rows = [arguments.pop(name) for name in ("trainset", "valset", "inputs")]
        return ProgramRace(**arguments).estimate_choice(programs, *rows)
    rows = [arguments.pop(name) for name in ("program", "trainset", "inputs")]
    return LeverSample(**arguments).estimate_measure(*rows)
