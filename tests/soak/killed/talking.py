"""
Processes that are told something by lines, and say what comes of it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[3]


def begin(stack: ExitStack, words: Sequence[str], folder: str) -> subprocess.Popen[str]:
    """
    @param stack: ends the process.
    @param folder: its run directory.

    @return: a new process.
    """
    popen = subprocess.Popen(
        words,
        env={**os.environ, "TWISTED_IB_RUN_DIR": folder, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    stack.callback(popen.wait)
    stack.callback(popen.kill)
    return popen


def follow(popen: subprocess.Popen[str], take: Callable[[str], object]) -> None:
    """
    Call with each line that a process says, in a thread.
    """

    def read(lines: Iterator[str]) -> None:
        for line in lines:
            take(line)

    assert popen.stdout is not None
    Thread(target=read, args=(popen.stdout,), daemon=True).start()


def tell(popen: subprocess.Popen[str], *words: object) -> None:
    """
    Tell a process a line.
    """
    assert popen.stdin is not None
    popen.stdin.write(" ".join(map(str, words)) + "\n")
    popen.stdin.flush()
