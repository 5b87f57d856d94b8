"""
Whether other threads or processes need the CPU while a reactor polls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase


#: Yields the CPU to another process (sched_yield(2)).
yieldCPU: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))


def threadsNeedInterpreter(reactor: ReactorBase) -> bool:
    """
    Return whether a call in the reactor's thread pool needs the interpreter lock, which polling keeps, or has
    a result for the reactor.
    """
    pool = getattr(reactor, "threadpool", None)
    return pool is not None and bool(reactor.threadCallQueue or pool.working)
