"""One progress bar for a compile, in program calls."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm


class ProgressBar:
    """A tqdm bar that counts program calls and shows the best score so far.

    Args:
        total: Program calls at most.
        display: False draws nothing.
    """

    def __init__(self, total: int, *, display: bool) -> None:
        self._redirect = ExitStack()
        self._bar = tqdm(total=total, desc="PLReorder", unit="call", dynamic_ncols=True, disable=not display)

    def __enter__(self) -> ProgressBar:
        if not self._bar.disable:
            # Log lines go above the bar instead of into it.
            self._redirect.enter_context(logging_redirect_tqdm())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._bar.total = self._bar.n  # cells known already cost nothing
            self._bar.refresh()
        self._bar.close()
        self._redirect.close()

    def advance(self, count: int = 1) -> None:
        """Count program calls."""
        self._bar.update(count)

    def show(self, text: str) -> None:
        """Show a text behind the bar."""
        self._bar.set_postfix_str(text)
