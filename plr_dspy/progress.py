"""One progress bar for a compile, in program calls."""

from __future__ import annotations

from types import TracebackType

from tqdm import tqdm


class ProgressBar:
    """A tqdm bar that counts program calls and shows the best score so far.

    Args:
        total: Program calls at most.
        display: False draws nothing.
    """

    def __init__(self, total: int, *, display: bool) -> None:
        self._bar = tqdm(total=total, desc="PLReorder", unit="call", dynamic_ncols=True, disable=not display)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._bar.total = self._bar.n  # cells known already cost nothing
            self._bar.refresh()
        self._bar.close()

    def advance(self) -> None:
        """Count one program call."""
        self._bar.update(1)

    def show(self, **values: str) -> None:
        """Show some values behind the bar."""
        self._bar.set_postfix(values)
