"""
Streams, messages and verbs between two processes whose devices have an address each.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from tests.processes import test_rdma
from tests.processes.processes import ROOT, Child, ChildError, ProcessTestCase
from tests.support.commands import running
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS, readUntil
from twisted_ib.hca.host.addresses import isLocalAddress

BYTES = 2_000_000


class AddressedTestCase(ProcessTestCase):
    """
    A server and a client with C{roce0} each.
    """

    def setUp(self) -> None:
        """
        Find addresses.
        """
        super().setUp()
        self.here, self.there = ownAddress(1), ownAddress(2)
        if not isLocalAddress(self.here):
            self.skipTest(f"{self.here} is not an address of this host")

    def server(self, scheme: str, port: int = 0) -> str:
        """
        @return: what a server listens on, at the address that it binds.
        """
        return f"{scheme}:{port}:interface={self.here}:device=roce0"

    def client(self, scheme: str, port: int, more: str = ":timeout=20") -> str:
        """
        @return: what a client connects to, from the address that it binds.
        """
        return f"{scheme}:{self.here}:{port}:bindAddress={self.there}:device=roce0{more}"


class StreamTests(AddressedTestCase):
    """
    Streams over C{roce0}.

    @cvar reactors: of server and client.
    """

    program = "tests.processes.programs.bulk.Haulage"
    reactors = ("ib", "ib")

    def haul(self, server: Child, client: Child, listen: str, connect: str) -> None:
        """
        Send much both ways on two connections.
        """
        terms = {"send": BYTES, "take": BYTES, "pauses": False}
        port = server.ask("listen", endpoint=listen, seed=0, **terms)
        connect = connect.replace("PORT", str(port))
        client.ask("connect", endpoint=connect, count=2, seed=2, **terms)
        here, there = (child.ask("hauled") for child in (client, server))
        self.assertEqual(sorted(sent for sent, _ in here), sorted(taken for _, taken in there))
        self.assertEqual(sorted(taken for _, taken in here), sorted(sent for sent, _ in there))
        self.assertEqual({length for ways in here for length, _ in ways}, {BYTES})

    def test_bound(self) -> None:
        """
        Each has the address that it binds.
        """
        server, client = (self.spawn(reactor) for reactor in self.reactors)
        self.haul(server, client, self.server("sdp"), self.client("sdp", 0).replace(":0:", ":PORT:"))

    def test_named(self) -> None:
        """
        Each has the address that its environment or its configuration says.
        """
        path = os.path.join(self.runDirectory, "ib.conf")
        with open(path, "w") as file:
            file.write(f"device roce0 roce {self.there}\n")
        first, second = self.reactors
        server = self.spawn(first, environment={"TWISTED_IB_DEVICES": f"roce0=roce:{self.here}"})
        client = self.spawn(second, environment={"TWISTED_IB_CONFIG": path})
        self.haul(server, client, "sdp:0:device=roce0", f"sdp:{self.here}:PORT:device=roce0")

    def test_refused(self) -> None:
        """
        Nobody listens there, or a process that does not share the address has it.
        """
        server, client = (self.spawn(reactor) for reactor in self.reactors)
        terms = {"seed": 0, "send": 0, "take": 0, "pauses": False}
        port = server.ask("listen", endpoint=self.server("sdp"), **terms)
        connect = self.client("sdp", port % 65535 + 1)
        error = self.assertRaises(ChildError, client.ask, "connect", endpoint=connect, count=1, **terms)
        self.assertEqual(error.kind, "ConnectionRefusedError")
        taken = ownAddress(3)
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(holder.close)
        holder.bind((taken, 4791))
        again = f"sdp:0:interface={taken}:device=roce0"
        error = self.assertRaises(ChildError, client.ask, "listen", endpoint=again, **terms)
        self.assertEqual(error.kind, "CannotListenError")
        self.assertIn(f"UDP port 4791 of {taken} is taken", str(error))
        connect = self.client("sdp", port).replace(self.there, taken)
        error = self.assertRaises(ChildError, client.ask, "connect", endpoint=connect, count=1, **terms)
        self.assertEqual(error.kind, "ConnectError")
        self.assertIn(f"UDP port 4791 of {taken} is taken", str(error))
        nowhere = f"sdp:{port}:device=roce7"
        error = self.assertRaises(ChildError, client.ask, "listen", endpoint=nowhere, **terms)
        self.assertIn("device roce7 has no address: bind one", str(error))

    def test_shown(self) -> None:
        """
        C{ib-devinfo} and C{ib-ss} show the devices and connections of both, once.
        """
        server, client = (self.spawn(reactor) for reactor in self.reactors)
        # Twice: the acknowledgements of a turn leave together, so once may take less than 100 packets.
        for _ in range(2):
            self.haul(server, client, self.server("sdp"), self.client("sdp", 0).replace(":0:", ":PORT:"))
        # On a busy machine one may not answer in C{QUERY_SECONDS}.
        found = readUntil(
            lambda: self.tool("show.devinfo", "-d", "roce0"),
            lambda found: all(each["in_use"] for each in found),
        )
        self.assertEqual(sorted(each["pid"] for each in found), sorted((server.pid, client.pid)))
        gids = sorted(str(each["ports"][0]["GID"][0]) for each in found)
        for gid, address in zip(gids, (self.here, self.there), strict=True):
            self.assertIn(address, gid)
        for each in found:
            counters = each["counters"]
            self.assertTrue(counters["sent_pkts"] > 100 and counters["rcvd_pkts"] > 100, counters)
            self.assertLess(counters["out_of_seq_request"], counters["rcvd_pkts"])
        rows = [row for row in self.tool("show.ss") if row["device"] == "roce0"]
        self.assertEqual(sorted(row["kind"] for row in rows), ["connection"] * 8 + ["listener"] * 2)

    def tool(self, name: str, *options: str) -> list[Any]:
        """
        @return: what a tool says.
        """
        found: list[Any] = json.loads(
            subprocess.run(
                [sys.executable, "-m", f"twisted_ib.tools.{name}", *options, "--json"],
                env=dict(os.environ, PYTHONPATH=str(ROOT), TWISTED_IB_RUN_DIR=self.runDirectory),
                check=True,
                capture_output=True,
                timeout=HANG_SECONDS,
            ).stdout
        )
        return found


class EpollStreamTests(StreamTests):
    """
    The same on other reactors.
    """

    reactors = ("epoll", "select")


class MessageTests(AddressedTestCase):
    """
    Messages and RDMA over C{roce0}.
    """

    program = "tests.processes.programs.messenger.Messenger"
    reactors = ("ib", "epoll")

    def pair(self) -> tuple[Child, Child]:
        """
        @return: a server and a client that are connected.
        """
        server, client = (self.spawn(reactor) for reactor in self.reactors)
        port = server.ask("listen", endpoint=self.server("ib"))
        client.ask("connect", endpoint=self.client("ib", port))
        return server, client

    test_messages = test_rdma.RDMATests.test_messages
    test_memory = test_rdma.RDMATests.test_memory
    test_atomics = test_rdma.RDMATests.test_atomics
    test_paused = test_rdma.RDMATests.test_paused
    test_revoked = test_rdma.RDMATests.test_revoked
    test_abort = test_rdma.RDMATests.test_abort


#: A server, or with a port a client, that knows only TCP.
UNCHANGED = """
import sys
from twisted_ib.reactor import ibreactor
ibreactor.install()
from twisted.internet import protocol, reactor
from twisted_ib.reactor import explain

class Echo(protocol.Protocol):
    def dataReceived(self, data):
        self.transport.write(data)

class Asking(protocol.ClientFactory, protocol.Protocol):
    noisy, heard = False, b""
    def buildProtocol(self, address):
        return self
    def connectionMade(self):
        self.transport.write(bytes(100000))
    def dataReceived(self, data):
        self.heard += data
        if len(self.heard) == 100000:
            why = explain(self.transport)
            print(why.provider, why.device, flush=True)
            reactor.stop()

here, port = sys.argv[1], int(sys.argv[2])
if port:
    reactor.connectTCP(here, port, Asking())
else:
    listening = reactor.listenTCP(0, protocol.Factory.forProtocol(Echo), interface=here)
    print(listening.getHost().port, flush=True)
reactor.run()
"""


class RulesTests(AddressedTestCase):
    """
    Programs that know only TCP, and rules.
    """

    def start(self, port: str, **variables: str) -> subprocess.Popen[str]:
        """
        Start one.
        """
        environment = dict(
            os.environ, PYTHONPATH=str(ROOT), TWISTED_IB_RUN_DIR=self.runDirectory, **variables
        )
        return running(self, "-c", UNCHANGED, self.here, port, env=environment)

    def test_route(self) -> None:
        """
        A route leads a program's TCP connections over a device with an address, to a server that listens
        on the devices of its environment.
        """
        path = os.path.join(self.runDirectory, "ib.conf")
        with open(path, "w") as file:
            file.write(f"use sdp connect * {self.here}:*\n")
            file.write(f"device net0 roce {self.there}\nroute {self.here}/32 net0\n")
        server = self.start("0", TWISTED_IB_DEVICES=f"net0=roce:{self.here}")
        assert server.stdout is not None
        client = self.start(server.stdout.readline().strip(), TWISTED_IB_CONFIG=path)
        output, _ = client.communicate(timeout=HANG_SECONDS)
        self.assertEqual(output, "sdp net0\n")


class VerbsTests(AddressedTestCase):
    """
    C{examples/rping.py} over C{roce0}, both sides.
    """

    def rping(self, address: str, *options: str) -> subprocess.Popen[str]:
        """
        Start one side, whose device has an address.
        """
        environment = dict(
            os.environ,
            PYTHONPATH=str(ROOT),
            TWISTED_IB_RUN_DIR=self.runDirectory,
            TWISTED_IB_DEVICES=f"roce0=roce:{address}",
            PYTHONUNBUFFERED="1",
        )
        program = str(ROOT / "examples" / "rping.py")
        return running(self, program, *options, env=environment, stderr=subprocess.STDOUT)

    def test_rping(self) -> None:
        """
        All rounds are done and validated, and both end by themselves.
        """
        server = self.rping(self.here, "-s", "-a", self.here, "-S", "5000", "-d")
        assert server.stdout is not None
        self.assertTrue(server.stdout.readline())
        options = "-I", self.there, "-C", "20", "-V", "-v", "-S", "5000"
        client = self.rping(self.there, "-c", "-a", self.here, *options)
        output, _ = client.communicate(timeout=HANG_SECONDS)
        self.assertEqual((client.returncode, output.count("ping data: rdma-ping-")), (0, 20), output)
        server.communicate(timeout=HANG_SECONDS)
        self.assertEqual(server.returncode, 0)
