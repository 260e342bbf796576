"""Choose the few-shot demos of a DSPy program, and their order, within a budget of program calls.

    program = PLFewShot(metric=metric).compile(program, trainset=trainset)  # which demos, how many, in what order
    program = PLReorder(metric=metric).compile(program, trainset=trainset)  # the order of the program's demos

Method: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.
"""

import lazy_loader

from plr_dspy.runtime import show_log_lines

# The public names are those that __init__.pyi imports. Each one is loaded on first access,
# because torch, scipy and DSPy take seconds to import.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

show_log_lines()
