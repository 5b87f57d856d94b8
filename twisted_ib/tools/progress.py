"""
A progress bar on a terminal, for commands that measure.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

#: A character of this turns at each update; and how many characters a bar has.
_TURNING = "|/-\\"
_WIDE = 24


class _Line:
    # rich's Progress, as far as it is used here, for where that is not installed.

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._what = ""
        self._done = self._total = self._updates = self._drawn = 0

    def add_task(self, what: str, total: int) -> None:
        self._total = total

    def start(self) -> None:
        pass

    def update(self, _: None, completed: float, description: str | None = None) -> None:
        self._what = self._what if description is None else description
        self._done = int(completed * _WIDE) // self._total

    def refresh(self) -> None:
        turning = _TURNING[self._updates % len(_TURNING)]
        self._updates += 1
        text = f"{turning} {self._what} [{'#' * self._done:.<{_WIDE}}]"
        # A line that wraps cannot be taken back.
        self._draw(text[: shutil.get_terminal_size().columns - 1])

    def _draw(self, text: str) -> None:
        # Without escape codes, which not every terminal knows.
        self._stream.write(f"\r{text:<{self._drawn}}")
        self._stream.flush()
        self._drawn = len(text)

    def stop(self) -> None:
        if self._drawn:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()


class Progress:
    """
    A progress bar over all measurements, with something that turns; nothing if the stream is not a terminal.

    @ivar interval: Seconds between two updates.
    """

    def __init__(self, stream: Any, measurements: int) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._done = -1
        # Also without a bar: the timer of C{ib-perf} folds latency samples into their histogram.
        self.interval = 1.0
        if stream.isatty():
            self._progress = _rich(stream) if find_spec("rich") else _Line(stream)
            self._task = self._progress.add_task("", total=measurements)
            self._progress.start()
            self.interval = 0.1

    def next(self, what: str) -> None:
        """
        Begin a measurement.
        """
        self._done += 1
        if self._progress is not None:
            self._progress.update(self._task, description=what, completed=self._done)
            self._progress.refresh()

    def show(self, fraction: Callable[[], float]) -> None:
        """
        Update the bar.

        @param fraction: Returns the finished part of the measurement, 0 to 1.
        """
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done + min(fraction(), 1.0))
            self._progress.refresh()

    def close(self) -> None:
        """
        Remove the bar; harmless when repeated.
        """
        if self._progress is not None:
            self._progress.stop()


def _rich(stream: Any) -> Any:
    # Imported only for a terminal: rich is slow to import, and need not be installed.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(file=stream, highlight=False)
    # No refresh thread: it would take the interpreter lock from what is measured.
    return Progress(*columns, console=console, auto_refresh=False, transient=True)
