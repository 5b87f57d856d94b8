"""
Connections of a device of the kind C{hardware} in the guest that end: a side is killed, the adapter goes.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.interop.adapters import lasting
from tests.interop.adapters.rxe import GUESTS, LASTING, PORT, ROOT, SECONDS, HardwareTestCase
from tests.interop.lab.anew import limit
from tests.interop.rping import TOLD_SECONDS
from twisted_ib.hca.fabric.hardware.slots import CHUNK

#: How often an adapter disappears, and how long all of that may take in a guest that is emulated, in seconds.
VANISHES = 20
VANISH_SECONDS = 2 * lasting.PATIENCE
#: The guest's rules.
CONFIGURATION = "/tmp/ib.conf"
_ROUND = (
    "round adapter {adapter} is gone | this host has no adapter {adapter}: load its driver, or add one of"
    " software, as by rdma link add {adapter} type {kind} netdev eth0 | sdp on iwarp0"
)
_RULES = """
use sdp connect * *:*
device iwarp0 iwarp {address}
device {device} hardware {adapter}
route {peer}/32 {device} iwarp0
"""


class LastingTestCase(HardwareTestCase):
    """
    Sides of C{lasting}.
    """

    #: Where the guest's side writes.
    written = "/tmp/side.output"
    #: Before the kinds of sides of streams.
    streams = ""

    def lastingHere(self, kind: str, port: str = PORT, **environment: str) -> Any:
        """
        @return: a side here.
        """
        device = f"{self.kind}0"
        command = [sys.executable, str(LASTING), kind, device, self.host, self.there, port]
        return self.program(command, PYTHONPATH=str(ROOT), **environment)

    def begin(self, kind: str) -> int:
        """
        @return: the number of a side in the guest.
        """
        command = self.python(LASTING, kind, GUESTS, self.there, self.host, PORT)
        self.guest.must(f"rm -f {self.written}")
        return self.start(f"{command} > {self.written} 2>&1")

    def untilThere(self, text: str) -> None:
        """
        Wait until the side in the guest has written something.
        """
        self.guest.must(f"until grep -qs '{text}' {self.written}; do sleep 0.1; done", SECONDS)

    def pair(self, isServerHere: bool) -> tuple[Any, int]:
        """
        @return: the sides here and in the guest, whose connection goes on.
        """
        if isServerHere:
            here = self.lastingHere(f"{self.streams}echo")
            self.until(here, "listens")
            there = self.begin(f"{self.streams}rounds")
        else:
            there = self.begin(f"{self.streams}echo")
            self.untilThere("listens")
            here = self.lastingHere(f"{self.streams}rounds")
        self.untilThere("goes on")
        self.until(here, "goes on")
        return here, there

    def killThere(self, isServerHere: bool) -> None:
        """
        The guest's side dies; its kernel tells.
        """
        here, there = self.pair(isServerHere)
        self.guest.kill(there)
        # It says so within that; its process may end later, where a processor is emulated.
        ended = here.finish(TOLD_SECONDS)
        self.assertIn("\nlost ", ended.output, ended.text)


class KillTests(LastingTestCase):
    """
    C{kill -9} of one side while messages go to and fro: the other side is told within L{TOLD_SECONDS}.
    """

    def killHere(self, isServerHere: bool) -> None:
        """
        The side here dies: another process with its address tells, as a kernel would.
        """
        neighbour = self.lastingHere("echo", "7175")
        self.until(neighbour, "listens")
        here, there = self.pair(isServerHere)
        here.kill()
        ended = self.guest.finish(there, TOLD_SECONDS)
        self.assertIn("\nlost ", self.guest.must(f"cat {self.written}"), ended.text)
        self.assertIsNone(neighbour.process.poll())

    def test_clientThere(self) -> None:
        """
        The guest's client.
        """
        self.killThere(True)

    def test_serverThere(self) -> None:
        """
        The guest's server.
        """
        self.killThere(False)

    def test_clientHere(self) -> None:
        """
        The client here.
        """
        self.killHere(False)

    def test_serverHere(self) -> None:
        """
        The server here.
        """
        self.killHere(True)


class StreamKillTests(KillTests):
    """
    The same over C{sdp:}.
    """

    streams = "sdp-"


class SlotsTests(LastingTestCase):
    """
    The slots that the streams of an adapter share.
    """

    def test_amid(self) -> None:
        """
        Each peer that is killed amid a message of several packets leaves a slot with a part of it, which the
        adapter gives back when its queue pair is in error: none is lost.
        """
        limit(self, VANISH_SECONDS)
        # Who shares the address tells of those that are killed.
        neighbour = self.lastingHere("echo", "7175")
        self.until(neighbour, "listens")
        there = self.begin("slots")
        self.untilThere("listens")
        killed = self.succeeded(self.lastingHere("amid").finish(VANISH_SECONDS))
        self.assertEqual(killed.output, f"killed {lasting.KILLS}\n")
        ended = self.guest.finish(there, SECONDS)
        said = self.guest.must(f"cat {self.written}")
        expected = f"listens\nslots {CHUNK} free {CHUNK} unfilled {lasting.KILLS}\n"
        self.assertEqual(said, expected, ended.text)


class VanishTests(LastingTestCase):
    """
    C{rdma link delete}.
    """

    def test_vanishes(self) -> None:
        """
        The connections of an adapter that is deleted fail by name, a connect says that there is none, the
        switch goes on to the next route, and the adapter is used again when it is back: as often as wanted.
        """
        limit(self, VANISH_SECONDS)
        name = self.peer.value[0]
        rules = _RULES.format(device=GUESTS, adapter=name, address=self.there, peer=self.host)
        self.guest.must(f"cat > {CONFIGURATION} <<'END'{rules}END")
        outside = self.directory / "ib.conf"
        outside.write_text(f"use sdp listen * *:*\ndevice iwarp0 iwarp {self.host}\n")
        server = self.lastingHere("serve", TWISTED_IB_CONFIG=str(outside))
        self.until(server, "listens")
        words = (name, self.host, PORT, VANISHES)
        configured = f"TWISTED_IB_CONFIG={CONFIGURATION}"
        command = self.python(LASTING, "vanish", GUESTS, *words, environment=configured)
        done = self.succeeded(self.guest.run(command, VANISH_SECONDS))
        said = [each for each in done.output.splitlines() if each != "goes on"]
        line = _ROUND.format(adapter=name, kind=self.peer.value[1])
        self.assertEqual((set(said), len(said)), ({line}, VANISHES), done.text)
