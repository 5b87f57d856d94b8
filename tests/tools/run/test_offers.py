"""
Tests for L{twisted_ib.tools.run.offers}: connections that TCP carries for certain.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.tools.run.case import RunTestCase
from twisted_ib.hca.host.entries import serviceName
from twisted_ib.settings import ALLOW_UIDS, ALWAYS_USE_SDP, DEVICES, RUN_DIR
from twisted_ib.switch.candidates import Candidates
from twisted_ib.switch.reason import ONE_CPU, Fallback
from twisted_ib.tools.run import offers

_PORT = 4711
_SDP = 0x10000

#: A server that says its port, and accepts one connection.
_SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
kept = listener.accept()
kept[0].recv(1)
"""
#: A client of the kernel's own, and then of that server: it says what it has imported for the first.
_CLIENT = """
import _socket, json, socket, sys
own = _socket.socket()
own.bind(("127.0.0.1", 0))
own.listen()
first = socket.create_connection(own.getsockname())
early = [name for name in sys.modules if name.startswith(("twisted_ib.blocking.s", "twisted."))]
early.remove("twisted_ib.blocking.select")
second = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(json.dumps([early, second.sdp is not None]))
"""


class DecisionTests(SynchronousTestCase):
    """
    Tests for L{offers.whyTCP}.
    """

    def setUp(self) -> None:
        """
        A run directory and a folder of rules of the test's own.
        """
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir(mode=0o700)
        environment = {RUN_DIR: str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "rules")}
        self.patch(os, "environ", environment)
        self.patch(os, "sched_getaffinity", lambda process: {0, 1})
        # This process has imported them.
        self.patch(offers, "_ASKED", ())

    def why(self, host: str = "127.0.0.1", port: object = _PORT, family: int = socket.AF_INET) -> object:
        """
        @return: the fallback of a connection, L{None} if the switch is to decide.
        """
        with socket.socket(family) as skt:
            found = offers.whyTCP(skt, (host, port))
        return found and found.fallback

    def test_asTheSwitch(self) -> None:
        """
        It says what the switch says.
        """
        for host, family in (
            ("127.0.0.1", socket.AF_INET),
            ("127.1.2.3", socket.AF_INET),
            ("::1", socket.AF_INET6),
            ("192.0.2.1", socket.AF_INET),
        ):
            found = self.why(host, _PORT, family)
            self.assertIsInstance(found, Fallback, host)
            self.assertEqual(found, Candidates().here(("shm0",), host, _PORT, 0.0, 1.0), host)

    def test_oneCPU(self) -> None:
        """
        On one CPU all blocking sockets stay with TCP.
        """
        self.patch(os, "sched_getaffinity", lambda process: {0})
        self.assertIs(self.why(), ONE_CPU)

    def test_offered(self) -> None:
        """
        What may be offered is the switch's, whatever its address and namespace; other ports are not.
        """
        (self.folder / serviceName(_SDP | _PORT, 1, "::")).symlink_to("hca-1")
        self.assertIsNone(self.why())
        self.assertIsNotNone(self.why(port=_PORT + 1))

    def test_bound(self) -> None:
        """
        A directory with more entries than are looked through is the switch's.
        """
        for number in range(offers.ENTRIES_SEEN):
            (self.folder / f"hca-{number}").touch()
        self.assertIsNotNone(self.why())
        (self.folder / "hca").touch()
        self.assertIsNone(self.why())

    def test_refused(self) -> None:
        """
        So is a directory that is not acceptable, which the switch complains of.
        """
        self.folder.chmod(0o755)
        self.assertIsNone(self.why())
        os.environ[RUN_DIR] = "relative"
        self.assertIsNone(self.why())

    def test_configured(self) -> None:
        """
        With rules, devices or users that somebody has named the switch decides.
        """
        self.assertIsNotNone(self.why())
        for name in (ALLOW_UIDS, DEVICES, ALWAYS_USE_SDP):
            os.environ[name] = "1"
            self.assertIsNone(self.why(), name)
            del os.environ[name]
        rules = self.folder / "rules" / "twisted_ib" / "ib.conf"
        rules.parent.mkdir(parents=True)
        rules.touch()
        self.assertIsNone(self.why())

    def test_addresses(self) -> None:
        """
        Names, zones, IPv4 in IPv6 and what is no address are for the switch or the kernel.
        """
        for host, port in (("somewhere", _PORT), ("", _PORT), ("127.0.0.1", 0), ("127.0.0.1", "x"), (1, 2)):
            self.assertIsNone(self.why(host, port))  # type: ignore[arg-type]
        self.assertIsNone(self.why("::ffff:127.0.0.1", _PORT, socket.AF_INET6))
        with socket.socket(socket.AF_INET6) as skt:
            self.assertIsNone(offers.whyTCP(skt, ("fe80::1", _PORT, 0, 1)))
            self.assertIsNone(offers.whyTCP(skt, "::1"))

    def test_known(self) -> None:
        """
        A program that has devices, or a log, has the switch decide.
        """
        self.patch(offers, "_ASKED", ("twisted_ib.tools.run.offers",))
        self.assertIsNone(self.why())


class ProgramTests(RunTestCase):
    """
    A program with both kinds of peers.
    """

    def test_both(self) -> None:
        """
        A connection to a server that offers no SDP imports nothing of it; the next one goes over SDP.
        """
        server = self.running("-q", "-c", _SERVER)
        assert server.stdout is not None
        client = self.running("-q", "--summary", "--json", "-c", _CLIENT, server.stdout.readline().strip())
        said, summary = client.communicate(timeout=HANG_SECONDS)
        self.assertEqual(json.loads(said), [[], True])
        counts = json.loads(summary.splitlines()[-1])
        self.assertEqual((counts["connections"], counts["sdp"]), (2, 1), counts)


__all__ = ["DecisionTests", "ProgramTests"]
