"""
Datagrams that no client would send, while OpenSM is master.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.lab import Lab, lab
from tests.opensm.topologies import TOPOLOGIES
from twisted_ib.subnet.network.umad import CLIENT, CONNECT, CONTROL, MAGIC, MESSAGE

#: Mutated MADs, and how much memory may grow by them, in KiB.
COUNT = 30_000
GROWTH = 16 * 1024
#: Class, version and whether it is on queue pair 0; methods; attributes.
CLASSES = (
    (0x01, 1, True),
    (0x81, 1, True),
    (0x03, 2, False),
    (0x04, 1, False),
    (0x06, 1, False),
    (0x07, 2, False),
    (0x21, 2, False),
    (0x32, 1, False),
)
SET = 0x02
METHODS = (0x01, SET, 0x03, 0x05, 0x06, 0x07, 0x12, 0x13, 0x14, 0x15, 0x81, 0x86, 0x92)
ATTRIBUTES = (*range(0x01, 0x04), *range(0x10, 0x21), *range(0x30, 0x3C), 0xF3, 0xFF90)


class Client:
    """
    A client with sockets of its own, in the turns of the lab.
    """

    def __init__(self, made: Lab, node: str) -> None:
        self._made = made
        self._control, self._data = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
        identity = self._control.fileno()
        for sock, kind in ((self._control, "ctl"), (self._data, "in")):
            sock.setblocking(False)
            sock.bind(f"\0{made.name}:{kind}{identity}\0".encode())
        self._control.connect(f"\0{made.name}:ctl\0".encode())
        request = CLIENT.pack(identity, 0, 0, node.encode())
        self._control.send(CONTROL.pack(MAGIC, 0, CONNECT, len(request), request))
        before = made.sockets.server.clients
        made.until(lambda: made.sockets.server.clients != before)
        self._data.connect(f"\0{made.name}:out{made.sockets.server.clients[-1]}\0".encode())

    def send(self, message: bytes) -> None:
        """
        Send a message, and read what has come.
        """
        self._data.send(message)
        self._made.turn()
        while True:
            try:
                self._data.recv(MESSAGE.size)
            except BlockingIOError:
                return

    def close(self) -> None:
        """
        End.
        """
        self._control.close()
        self._data.close()


class AttackTests(SynchronousTestCase):
    """
    A client that sends anything.
    """

    def mutated(self, chance: random.Random, lids: list[int], destroys: bool) -> bytes:
        """
        @param destroys: whether it may set a port's LID, state or M_Key, and so end its way to others.
        @return: a message whose MAD is nearly one of some class.
        """
        class_, version, onSMI = chance.choice(CLASSES)
        mad = bytearray(256)
        method = chance.choice(METHODS)
        if onSMI and method == SET and not destroys:
            method = 0x01
        mad[:4] = 1, class_, version, method
        mad[8:16] = chance.randbytes(8)
        mad[16:18] = chance.choice(ATTRIBUTES).to_bytes(2, "big")
        mad[20:24] = chance.choice((0, 1, 2, 0x10001, chance.getrandbits(32))).to_bytes(4, "big")
        if class_ == 0x81:
            mad[7] = chance.choice((0, 1, 2, 3, 63, 64))
            mad[32:36] = b"\xff" * 4
            mad[128:256] = bytes(chance.randrange(9) for _ in range(128))
        else:
            mad[48:56] = chance.choice((bytes(8), chance.randbytes(8)))
            mad[56:] = bytes(chance.choice((0, 0, 0, 1, 255)) for _ in range(200))
        for _ in range(chance.choice((0, 1, 2, 8))):
            mad[chance.randrange(4 if destroys else 16, 256)] = chance.randrange(256)
        dlid = 0xFFFF if class_ == 0x81 else chance.choice(lids)
        return MESSAGE.pack(dlid, 0, 0 if onSMI else 1, 1, 0, 256, bytes(mad))

    def test_mutated(self) -> None:
        """
        30,000 mutated MADs of all classes: no exception, no memory kept, and OpenSM is still there.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            opensm = made.opensm()
            made.until((made.directory / "opensm-subnet.lst").exists)
            client = Client(made, "Hca2")
            self.addCleanup(client.close)
            chance = random.Random(19)
            manager = made.subnet.find("Hca1").lid
            lids = [*range(8), *(manager,) * 8, 0xBFFF, 0xC000, 0xFFFF]
            used = 0
            for number in range(COUNT):
                client.send(self.mutated(chance, lids, number > COUNT // 2))
                if number == COUNT // 10:
                    used = getrusage(RUSAGE_SELF).ru_maxrss
            self.assertLess(getrusage(RUSAGE_SELF).ru_maxrss - used, GROWTH)
            self.assertIsNone(opensm.poll())
            status, output = made.run("Hca1", "sminfo", "-D", "0")
            self.assertEqual(status, 0)
            self.assertIn("SMINFO_MASTER", output)

    def test_outOfRange(self) -> None:
        """
        Queries by ports that no switch has, which OpenSM 3.3.23 does not survive, do not reach it.
        """
        with lab(TOPOLOGIES["trunks"], Path(self.mktemp()).resolve()) as made:
            opensm = made.opensm()
            made.until((made.directory / "opensm-subnet.lst").exists)
            client = Client(made, "Hca2")
            self.addCleanup(client.close)
            manager = made.subnet.find("Hca1").lid
            mad = bytearray(256)
            # Subnet administration, GetTable of SLtoVLMappingTableRecords.
            mad[:4], mad[16:18] = bytes((1, 3, 2, 0x12)), b"\0\x13"
            for components, number in ((2, 255), (4, 9), (6, 9), (4, 255)):
                mad[55], mad[58], mad[59] = components, number, number
                for _ in range(5):
                    client.send(MESSAGE.pack(manager, 0, 1, 1, 0, 256, bytes(mad)))
            self.assertEqual(made.lost["umad_withheld"], 20)
            status, output = made.run("Hca3", "saquery", "-c")
            self.assertEqual((status, opensm.poll()), (0, None), output)
