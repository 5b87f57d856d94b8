"""
A device of the kind C{hardware} in the guest, on the kernel's rxe, against a software HCA here, in both
roles.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from attrs import evolve

from tests.internet.remote import agent
from tests.interop import talker
from tests.interop.adapters import lasting, nobody, ready, side
from tests.interop.case import GuestTestCase
from tests.interop.lab.anew import limit
from tests.interop.lab.lab import Lab, theLab
from tests.interop.lab.machine import Ended, Machine
from tests.interop.lab.network import IPV4
from tests.interop.lab.shipped import SITE, ship
from tests.support.commands import programOf
from tests.support.waiting import HANG_SECONDS, PATIENCE

#: Examples.
PINGPONGS = ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong")
#: The programs of both sides, and what they import.
SIDE, LASTING, TALKER, READY, NOBODY = (
    Path(str(each.__file__)) for each in (side, lasting, talker, ready, nobody)
)
ROOT = SIDE.parents[3]
EXAMPLES = tuple(ROOT / f"examples/{name}.py" for name in (*PINGPONGS, "pingpong", "rendezvous"))
#: Tests for trial there.
MESSAGES = SIDE.with_name("messages.py")
#: Has the servers of another guest's tests.
AGENT = Path(str(agent.__file__))
PROGRAMS = (SIDE, LASTING, TALKER, READY, NOBODY, MESSAGES, AGENT, *EXAMPLES)
#: How long a side in the guest may take, which imports for most of it, in seconds.
SECONDS = 6 * HANG_SECONDS
#: And all tests there; and what trial says of them.
STREAMS_SECONDS = 4 * SECONDS
SUMMARY = r"PASSED \(skips=\d+, successes=\d{3,}\)"
#: What a person with a card runs (docs/hardware.md), in one round; and the guest has one processor.
COMPARED = "tcp-nodelay", "sdp", "ib"
COMPARE = f"compare --device {{device}} --subjects {','.join(COMPARED)} --json --rounds 1"
ONE_PROCESSOR = {"split": "there is one CPU"}
PORT = "7177"
#: The device in the guest.
GUESTS = "hw0"
#: A network namespace of the guest's second card: in the first one rxe has the port of RoCE v2.
NAMESPACE = "other"
_APART = f"""
    [ -e /run/netns/{NAMESPACE} ] || {{{{
        ip netns add {NAMESPACE}
        ip link set eth1 netns {NAMESPACE}
        ip -n {NAMESPACE} addr add {{address}}/24 dev eth1
        ip -n {NAMESPACE} link set lo up
    }}}}
    ip -n {NAMESPACE} link set eth1 mtu {{mtu}} up
"""

_shipped: list[Any] = []


def equip(lab: Lab, guest: Machine, directory: Path) -> None:
    """
    Bring this package into a guest, and have a Python there that has imported it.
    """
    ship(lab.network, guest, directory, *PROGRAMS)
    guest.start(f"exec env PYTHONPATH={SITE} python3 {SITE}/{READY.name} serve")
    guest.must(f"until [ -S {ready.SOCKET} ]; do sleep 0.2; done", SECONDS)


class HardwareTestCase(GuestTestCase):
    """
    The guest has this package.
    """

    maxDiff = None

    def setUp(self) -> None:
        """
        Bring it there, once for each guest.
        """
        super().setUp()
        if theLab().guest not in _shipped:
            self.release()
            equip(self.lab, self.guest, self.directory)
            _shipped.append(self.lab.guest)

    def python(self, program: Path, *words: object, environment: str = "") -> str:
        """
        @return: the command line of a program that was brought into a guest, and has its device.
        """
        devices = environment or f"TWISTED_IB_DEVICES={GUESTS}=hardware:{self.peer.value[0]}"
        python = f"python3 -S {SITE}/{READY.name}"
        command = f"env {devices} PYTHONPATH={SITE} PYTHONUNBUFFERED=1 {python} {SITE}/{program.name}"
        return " ".join(("exec", command, *map(str, words)))

    def inGuest(self, kind: str, role: str) -> str:
        """
        @return: the command line of a side in the guest.
        """
        return self.python(SIDE, kind, role, GUESTS, self.there, self.host, PORT)

    def here(self, kind: str, role: str) -> Any:
        """
        @return: a side here.
        """
        command = [sys.executable, str(SIDE), kind, role, f"{self.kind}0", self.host, self.there, PORT]
        return self.program(command, PYTHONPATH=str(ROOT))

    def guests(self) -> list[Machine]:
        """
        @return: those that run.
        """
        return [self.guest]

    def untilListens(self) -> None:
        """
        Wait until a program of the guest listens.
        """
        found = "rdma resource show cm_id | grep -q 'state LISTEN ps TCP'"
        self.guest.must(f"until {found}; do sleep 0.1; done", SECONDS)

    def guestAsks(self, kind: str) -> tuple[str, str]:
        """
        @return: what the guest, the active side, and this side have printed.
        """
        server = self.here(kind, "passive")
        self.until(server, "listens")
        client = self.succeeded(self.guest.run(self.inGuest(kind, "active"), SECONDS))
        return client.output, self.succeeded(server.finish(SECONDS)).output

    def guestServes(self, kind: str) -> tuple[str, str]:
        """
        @return: what this side, the active one, and the guest have printed.
        """
        number = self.start(self.inGuest(kind, "passive"))
        self.untilListens()
        client = self.succeeded(self.here(kind, "active").finish(SECONDS))
        server: Ended = self.succeeded(self.guest.finish(number, SECONDS))
        return client.output, server.output


class VerbsTests(HardwareTestCase):
    """
    SEND with and without immediate data, WRITE, READ and atomics by verbs.

    @cvar sides: what both sides run, and what each of them prints.
    """

    sides = "verbs"
    client = "read True\natomics 37 42\nb'goodbye'\n"
    server = "listens\nimmediate [16909060]\nb'hello1' b'hello2' b'written' 99\n"

    def test_guestAsks(self) -> None:
        """
        The guest is the active side.
        """
        self.assertEqual(self.guestAsks(self.sides), (self.client, self.server))

    def test_guestServes(self) -> None:
        """
        The guest is the passive side.
        """
        self.assertEqual(self.guestServes(self.sides), (self.client, self.server))


class MessagesTests(VerbsTests):
    """
    A file and its echo in messages of C{ib:}; then WRITE, READ and atomics.
    """

    sides = "messages"
    client = "echoed True\nread True\natomics 5\nregistered True []\nlost ConnectionDone\n"
    server = "listens\nlost ConnectionDone\n"


class FileTests(VerbsTests):
    """
    A file and its echo over C{sdp:}, then both of registered memory, of which the adapter copies nothing.
    """

    sides = "stream"
    client = "echoed True\nregistered []\nechoed True\nlost ConnectionDone\n"
    server = "listens\nregistered []\nlost ConnectionDone\n"


class CompareTests(HardwareTestCase):
    """
    C{ib-perf compare} on the guest's adapter, whose processes are both there.
    """

    def test_rows(self) -> None:
        """
        Each row has a figure of each subject, none has failed, and the adapter is named.
        """
        limit(self, STREAMS_SECONDS)
        self.release()
        program = shlex.quote(programOf("perf.perf"))
        devices = f"TWISTED_IB_DEVICES={GUESTS}=hardware:{self.peer.value[0]} PYTHONPATH={SITE}"
        words = COMPARE.format(device=GUESTS)
        done = self.succeeded(
            self.guest.run(f"exec env {devices} python3 -c {program} {words}", STREAMS_SECONDS)
        )
        found = json.loads(done.output)
        titles = {"tcp-nodelay": "TCP, NODELAY", "sdp": f"sdp:, {GUESTS}", "ib": f"ib:, {GUESTS}"}
        self.assertEqual((found["subjects"], found["absent"]), (titles, ONE_PROCESSOR), done.text)
        self.assertRegex(found["machine"]["adapter"], rf"{self.peer.value[0]}, .*ACTIVE")
        rows = {(each["measure"], each["bytes"], *each["subjects"]) for each in found["results"]}
        expected = {(each, size, *COMPARED) for each in ("latency", "throughput") for size in (64, 65536)}
        self.assertEqual(rows, expected)


class NobodyTests(HardwareTestCase):
    """
    Datagrams to addresses that nobody has.
    """

    def test_nobody(self) -> None:
        """
        They are lost, and keep no others waiting.
        """
        done = self.succeeded(self.guest.run(self.python(NOBODY, GUESTS, self.there), SECONDS))
        self.assertEqual(done.output, f"came True\nlost {nobody.ADDRESSES}\n", done.text)


class StreamsTests(HardwareTestCase):
    """
    The contracts of messages and of streams, and Twisted's own tests of streams on C{ib:} and C{sdp:}, in the
    guest.

    @cvar other: the address of software there.
    @cvar isApart: whether that has the other network namespace.
    """

    other = f"{IPV4}103"
    isApart = False

    def test_contract(self) -> None:
        """
        All pass, and none is left out that is not elsewhere.
        """
        self.contract(GUESTS, self.there)

    def contract(self, device: str, host: str, client: str = "", other: str = "") -> None:
        """
        Check that all pass.

        @param device: the server's device.
        @param host: its address.
        @param client: the client's device, where that is another.
        @param other: what the one of them that is not the guest's adapter stands for.
        """
        limit(self, STREAMS_SECONDS)
        self.release()
        adapter, kind = self.peer.value
        devices = f"{GUESTS}=hardware:{adapter}"
        if other:
            devices += f",{client if device == GUESTS else device}={other}"
        variables = (
            f"DEVICE_OF_MESSAGES='{device} {host} {kind} {client}' TWISTED_IB_TEST_PATIENCE={PATIENCE:g}"
            f" TWISTED_IB_DEVICES={devices} PYTHONPATH={SITE}"
            f" NAMESPACE_OF_SOFTWARE={NAMESPACE if self.isApart else ''}"
        )
        self.tried(self.guest, variables, SUMMARY)

    def tried(self, guest: Machine, variables: str, summary: str) -> None:
        """
        Run trial in a guest, and check what it says.
        """
        trial = f"python3 -u -m twisted.trial --temp-directory /tmp/trial {MESSAGES.stem}"
        done = guest.run(f"exec env {variables} {trial}", STREAMS_SECONDS)
        (self.directory / "trial.log").write_text(done.output)
        if done.status:
            # As why siw has ended a connection.
            said = (f"{each.ipv4}: {each.run('dmesg | tail -n 20').output}" for each in self.guests())
            done = evolve(done, errors="\n".join((done.errors, *said)))
        self.assertRegex(self.succeeded(done).output, summary)


class SoftwareStreamsTests(StreamsTests):
    """
    The same between the adapter and a software HCA of the guest's other address.
    """

    isApart = True

    def setUp(self) -> None:
        """
        The guest has that.
        """
        super().setUp()
        place = _APART if self.isApart else "ip addr replace {address}/24 dev eth0"
        self.guest.must(place.format(address=self.other, mtu=self.mtu))

    def test_contract(self) -> None:
        """
        The software asks.
        """
        self.contract(GUESTS, self.there, f"{self.kind}0", f"{self.kind}:{self.other}")

    def test_adapterAsks(self) -> None:
        """
        The adapter asks.
        """
        self.contract(f"{self.kind}0", self.other, GUESTS, f"{self.kind}:{self.other}")
