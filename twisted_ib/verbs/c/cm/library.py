"""
The start of librdmacm in its process.
"""

from __future__ import annotations

import ctypes

from _twisted_ib_cm import ffi, lib

# The functions of libibverbs have their handlers before those of librdmacm use them: both are of one
# interpreter, which begins a library with its first call.
ctypes.CDLL("libibverbs.so.1").ibv_is_fork_initialized()

from twisted_ib.verbs.c.cm import channels, connections, identifiers, polling, queues, resolution, rsockets  # noqa: E402
from twisted_ib.verbs.c.cm.declarations import TABLE  # noqa: E402
from twisted_ib.verbs.c.library import connect  # noqa: E402
from twisted_ib.verbs.c.waiting import destroying  # noqa: E402

#: The modules with handlers.
MODULES = (channels, connections, identifiers, polling, queues, resolution, rsockets)

connect(ffi, "cm", TABLE, destroying)
lib.twisted_ib_own_calls()
