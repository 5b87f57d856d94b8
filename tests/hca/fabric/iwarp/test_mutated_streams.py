"""
Streams of octets that no peer should send, to a device.
"""

from __future__ import annotations

import contextlib
import gc
import random
import socket
import struct
from typing import Any, ClassVar

from tests.hca.fabric.iwarp.attacker import (
    GRANTED,
    RECEIVE,
    AttackTestCase,
    invalidate,
    read,
    send,
    terminateMessage,
    write,
)
from twisted_ib.hca.fabric.iwarp.protocol import terminate
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, StartupFrame, crc32c, hasCRC32C

_WORDS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1")
_LENGTHS = (0, 1, 2, 3, 13, 14, 17, 18, 19, 45, 46, 47, 1000)


class MutatedStreamTests(AttackTestCase):
    """
    A device, with memory that is granted between canaries.
    """

    count: ClassVar = 300
    #: Connections before objects are counted, and how many more objects there may be at the end.
    warm, growth = 50, 2000
    #: Sends and READs that were taken.
    messages = 0

    def request(self, chance: random.Random, crc: bool) -> bytes:
        """
        @return: a Request, mostly a right one.
        """
        revision = chance.choice((1, 2, 2, 2))
        depths = None
        if revision == 2 and chance.random() < 0.9:
            isPeer = chance.random() < 0.2
            depths = Depths(chance.choice((0, 4, 0x3FFF)), 4, isPeer, zeroWrite=isPeer)
        private = bytes(chance.choice((*[0] * 12, 5, 56, 57, 300)))
        frame = bytearray(StartupFrame(False, private, revision, crc=crc, depths=depths).pack())
        if chance.random() < 0.1:
            self.mutate(frame, chance)
        return bytes(frame)

    def fpdus(self, chance: random.Random) -> list[bytearray]:
        """
        @return: FPDUs, in the order of a right stream.
        """
        granted = self.victim.granted
        key, first = granted.key, granted.address
        sends = reads = 1
        found = []
        for _ in range(chance.randint(1, 12)):
            length = chance.choice((0, 1, 3, 64, 1000))
            at = first + chance.randrange(GRANTED - length)
            kind = chance.randrange(6)
            if kind == 0:
                found.append(write(key, at, bytes(length), chance.random() < 0.8))
            elif kind == 1:
                found.append(read(key, at, length, reads, chance.getrandbits(32)))
                reads += 1
            elif kind == 2:
                half = RECEIVE // 2
                found += [send(bytes(half), sends, False), send(bytes(half), sends, True, half)]
                sends += 1
            elif kind == 3 and chance.random() < 0.2:
                found.append(invalidate(key, sends))
                sends += 1
            elif kind == 4 and chance.random() < 0.2:
                found.append(terminateMessage(terminate.TAGGED_INVALID_STAG))
            else:
                found.append(send(bytes(min(length, RECEIVE)), sends))
                sends += 1
        return [bytearray(each) for each in found]

    def mutate(self, octets: bytearray, chance: random.Random) -> None:
        """
        Change bits, words, or the length.
        """
        kind = chance.randrange(4)
        if kind == 0 and octets:
            octets[chance.randrange(min(len(octets), chance.choice((2, 20, 64))))] ^= 1 << chance.randrange(8)
        elif kind == 1 and len(octets) > 6:
            at = chance.randrange(min(len(octets) - 4, 48))
            octets[at : at + 4] = chance.choice(_WORDS)
        elif kind == 2:
            del octets[chance.choice(_LENGTHS) :]
        else:
            octets += chance.randbytes(chance.choice(_LENGTHS))

    def stream(self, chance: random.Random, crc: bool) -> bytes:
        """
        @return: FPDUs, some of them changed.
        """
        found = self.fpdus(chance)
        for _ in range(chance.randint(0, 4)):
            self.mutate(chance.choice(found), chance)
        if chance.random() < 0.3:
            at, other = chance.randrange(len(found)), chance.randrange(len(found))
            found[at], found[other] = found[other], found[at]
        if crc:
            # Mostly right ones, so that what is wrong gets through to the layers above.
            for each in found:
                if chance.random() < 0.95:
                    each[-4:] = struct.pack("<I", crc32c(bytes(each[:-4])))
        return b"".join(found)

    def attack(self, seed: int) -> None:
        """
        One connection.
        """
        chance = random.Random(seed)
        victim = self.victim
        victim.receives = chance.choice((0, 1, 8, 8, 8))
        victim.isServing = chance.random() < 0.95
        crc = hasCRC32C() and chance.random() < 0.2
        made = self.peer(self.request(chance, crc))
        self.turns(5)
        made.setblocking(False)
        octets = self.stream(chance, crc)
        start = 0
        while start < len(octets):
            stop = start + chance.choice((1, 7, 100, 1 << 20))
            try:
                made.send(octets[start:stop])
            except OSError:
                break
            start = stop
            self.device.progress()
        self.finish(made, chance)

    def turns(self, count: int) -> None:
        """
        Serve the device.
        """
        for _ in range(count):
            self.device.progress()

    def finish(self, made: socket.socket, chance: random.Random) -> None:
        """
        End the connection, and see that nothing is left of it.
        """
        victim = self.victim
        self.turns(5)
        if chance.random() < 0.8:
            # A socket that is closed with octets unread sends RST.
            with contextlib.suppress(OSError):
                made.recv(1 << 20)
        if chance.random() < 0.3:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.close()

        def isOver() -> Any:
            self.clock.advance(0.05)
            self.device.tick(self.clock.seconds())
            return not self.fabric.streams and not self.device.fabric.pending()

        self.until(isOver)
        self.assertTrue(victim.isIntact())
        for connection, _ in victim.requests:
            connection.abandon(self.clock.seconds())
        victim.requests.clear()
        self.messages += victim.work.messagesReceived
        victim.renew()

    def test_mutated(self) -> None:
        """
        Nothing is raised, nothing is written outside of what is granted, and nothing grows.
        """
        before = 0
        for seed in range(self.count):
            if seed == self.warm:
                gc.collect()
                before = len(gc.get_objects())
            try:
                self.attack(seed)
            except BaseException:
                print("seed", seed)
                raise
        gc.collect()
        self.assertLess(len(gc.get_objects()) - before, self.growth)
        self.assertNothingLeft()
        self.assertEqual(len(self.device.fabric.service.connections), 0)
        counters = self.device.counters
        # The streams get somewhere, and are found out.
        least = {"iwarp_startup_failed": 50, "iwarp_terminated": 10, "iwarp_terminates_sent": 6}
        for name, divisor in least.items():
            self.assertGreater(counters[name], self.count / divisor, name)
        self.assertGreater(self.messages, self.count / 4)
