"""
The base class of tests of memory windows.
"""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import MemoryAccessError
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, Access
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.memory import Memory, MemoryRegion
from twisted_ib.hca.memory.windows import MemoryWindow, WindowType

REMOTE = (REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC)
ALL_REMOTE = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
MW_BIND = int(Access.MW_BIND)
ZERO_BASED = int(Access.ZERO_BASED)
BASE = 0x10000
SIZE = 16


class WindowTestCase(SynchronousTestCase):
    """
    A table with a region of 16 bytes, one window of each type, and two queue pairs.
    """

    def setUp(self) -> None:
        """
        Make them, with a known seed.  Only the identity of a queue pair counts.
        """
        self.memory = Memory(random.Random(1).getrandbits)
        self.pd = self.memory.allocateDomain()
        self.region = self.memory.register(bytearray(range(SIZE)), LOCAL_WRITE | MW_BIND, self.pd, BASE)
        self.one = self.memory.allocateWindow(self.pd, WindowType.TYPE_1)
        self.two = self.memory.allocateWindow(self.pd, WindowType.TYPE_2)
        self.queuePair, self.other = object(), object()

    def bind(
        self,
        window: MemoryWindow,
        address: int = BASE,
        length: int = SIZE,
        access: int = ALL_REMOTE,
        region: MemoryRegion | None = None,
        low: int = 7,
        **more: Any,
    ) -> int:
        """
        Bind a window as its type demands.

        @param low: the lower 8 bits of the new key of a window of type 2.
        @return: its key.
        """
        if window.type == WindowType.TYPE_2:
            more.setdefault("key", window.key & ~0xFF | low)
            more.setdefault("queuePair", self.queuePair)
        self.memory.windows.bind(window, region or self.region, address, length, access, **more)
        return window.key

    def opens(
        self,
        key: int,
        address: int = BASE,
        length: int = 1,
        kind: int = REMOTE_READ,
        pd: ProtectionDomain | None = None,
        queuePair: object = ...,
    ) -> tuple[memoryview, int] | None:
        """
        The bytes that a key opens, or L{None}.
        """
        if queuePair is ...:
            queuePair = self.queuePair
        try:
            return self.memory.check(key, address, length, kind, pd or self.pd, queuePair)
        except MemoryAccessError:
            return None

    def state(self) -> list[object]:
        """
        All that can change by a bind.
        """
        windows = [
            [getattr(window, name) for name in MemoryWindow.__slots__ if name != "reservedKeys"]
            + [set(window.reservedKeys)]
            for window in (self.one, self.two)
        ]
        return [windows, dict(self.memory.windows.byKey), dict(self.region.users), dict(self.pd.users)]
