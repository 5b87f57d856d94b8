"""
Who else needs the CPU or the interpreter, while a reactor could look again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

#: Lets another process have the CPU.
giveWay: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))


def threadsWait(reactor: Any) -> bool:
    """
    Whether a call in a thread of the reactor's pool needs the interpreter, which
    looking keeps, or has a result for the reactor.

    @param reactor: any reactor.
    """
    pool = getattr(reactor, "threadpool", None)
    return pool is not None and bool(pool.working or reactor.threadCallQueue)
