"""
Two processes over iWARP, one of which is killed.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import running
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS

#: A server that answers a READ never: its memory's owner is stopped by what it prints, and killed.
SERVER = """
import sys
from twisted_ib.reactor import ibreactor
ibreactor.install()
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol
class Echo(Protocol):
    def dataReceived(self, data):
        self.transport.write(data)
listening = serverFromString(reactor, "%s:0:interface=%s:device=iwarp0" % tuple(sys.argv[1:]))
listening.listen(Factory.forProtocol(Echo)).addCallback(lambda port: print(port.getHost().port, flush=True))
reactor.run()
"""
CLIENT = """
import os, signal, sys
from tests.support.commands import stop
from twisted_ib.reactor import ibreactor
ibreactor.install()
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
class Asking(Protocol):
    got = 0
    def connectionMade(self):
        self.transport.write(b"x" * 1000)
    def dataReceived(self, data):
        self.got += 1
        if self.got < 20:
            self.transport.write(data)
            return
        stop(int(sys.argv[2]))
        self.transport.rdmaRead(100000, 0, 1).addErrback(lambda wrong: print(wrong.type.__name__))
        reactor.callLater(0.05, os.kill, int(sys.argv[2]), signal.SIGKILL)
    def connectionLost(self, reason):
        print(self.got, reason.type.__name__, flush=True)
        reactor.stop()
calling = clientFromString(reactor, "ib:127.0.0.2:%s:device=iwarp0" % sys.argv[1])
calling.connect(Factory.forProtocol(Asking))
reactor.run()
"""
#: Sends a megabyte, and compares what comes back.
STREAMING = """
import sys
from twisted_ib.reactor import ibreactor
ibreactor.install()
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
sent = bytes(range(256)) * 4096
class Asking(Protocol):
    got = b""
    def connectionMade(self):
        self.transport.write(sent)
    def dataReceived(self, data):
        self.got += data
        if len(self.got) == len(sent):
            self.transport.loseConnection()
    def connectionLost(self, reason):
        print(self.got == sent, reason.type.__name__, flush=True)
        reactor.stop()
calling = clientFromString(reactor, "rds:%s:%s:bindAddress=%s:device=iwarp0" % tuple(sys.argv[1:]))
calling.connect(Factory.forProtocol(Asking))
reactor.run()
"""


class StreamTests(SynchronousTestCase):
    """
    Each process has a device of its own.
    """

    def test_rds(self) -> None:
        """
        A stream over RDS has its octets echoed.
        """
        ownRunDirectory(self)
        root = Path(__file__).resolve().parents[4]
        server = running(self, "-c", SERVER, "rds", ownAddress(1), cwd=root)
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = running(self, "-c", STREAMING, ownAddress(1), port, ownAddress(2), cwd=root)
        said, _ = client.communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "True ConnectionDone\n")


class KilledTests(SynchronousTestCase):
    """
    Each has a device of its own.
    """

    def test_killed(self) -> None:
        """
        Messages go to and fro; the death of one process amidst a READ is an error to the other.
        """
        ownRunDirectory(self)
        root = Path(__file__).resolve().parents[4]
        server = running(self, "-c", SERVER, "ib", "127.0.0.2", cwd=root)
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = running(self, "-c", CLIENT, port, str(server.pid), cwd=root)
        said, _ = client.communicate(timeout=HANG_SECONDS)
        self.assertEqual(said.split("\n")[0:2], ["WorkCompletionError", "20 ConnectionLost"])
