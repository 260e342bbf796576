"""Optimizers that choose a DSPy program's few-shot demos and their order within a budget of program calls.

    program = PLFewShot(metric=metric).compile(program, trainset=trainset)  # chooses demos, their number and order
    program = PLReorder(metric=metric).compile(program, trainset=trainset)  # chooses the order of the program's demos

Method: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.
"""

import lazy_loader

from plr_dspy.runtime import show_log_lines

# The public names are the names that __init__.pyi imports. Each is loaded on first access,
# because torch, scipy and DSPy take seconds to import.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

show_log_lines()
