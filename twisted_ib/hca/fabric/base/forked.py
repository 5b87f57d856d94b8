"""
A forked child's use of its parent's device.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.errors import DeviceClosedError


class Forked:
    """
    Stands in a forked child for a resource of its parent: a mapping, a socket, the other end of a path.
    """

    def _fail(self, *arguments: Any) -> Any:
        raise DeviceClosedError("this device belongs to the process that this one was forked from")

    __call__ = __getattr__ = __getitem__ = __len__ = __setitem__ = _fail
