"""
Imports of a program that is linked with librdmacm, before its C{main()} (C{building/early.c}): those of that
library, and of the device that the program is to use.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

from twisted_ib.errors import HCAError
from twisted_ib.hca.device.registry import kindOf
from twisted_ib.verbs.c.chosen import chosenDevice


def prepare() -> None:
    """
    Import them.  Nothing is opened.
    """
    # Its first call starts the library.
    ctypes.CDLL("librdmacm.so.1").rdma_event_str(0)
    name = chosenDevice()
    if name is None:
        return
    # The program hears of one that is not there from the call that wants it.
    with suppress(HCAError):
        kindOf(name).prepare()
