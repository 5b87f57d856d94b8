"""
The start of libibumad in its process.
"""

from __future__ import annotations

from _twisted_ib_umad import ffi

from twisted_ib.verbs.c.library import connect
from twisted_ib.verbs.c.umad import buffers, devices, names, ports
from twisted_ib.verbs.c.umad.declarations import TABLE

#: The modules with handlers.
MODULES = (buffers, devices, names, ports)

connect(ffi, "umad", TABLE)
