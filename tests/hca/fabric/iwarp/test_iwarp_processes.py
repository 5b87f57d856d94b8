"""
Two processes over iWARP, one of which is killed.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import running
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
listening = serverFromString(reactor, "ib:0:interface=127.0.0.2:device=iwarp0")
listening.listen(Factory.forProtocol(Echo)).addCallback(lambda port: print(port.getHost().port, flush=True))
reactor.run()
"""
CLIENT = """
import os, signal, sys
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
        os.kill(int(sys.argv[2]), signal.SIGSTOP)
        self.transport.rdmaRead(100000, 0, 1).addErrback(lambda wrong: print(wrong.type.__name__))
        reactor.callLater(0.05, os.kill, int(sys.argv[2]), signal.SIGKILL)
    def connectionLost(self, reason):
        print(self.got, reason.type.__name__, flush=True)
        reactor.stop()
calling = clientFromString(reactor, "ib:127.0.0.2:%s:device=iwarp0" % sys.argv[1])
calling.connect(Factory.forProtocol(Asking))
reactor.run()
"""


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
        server = running(self, "-c", SERVER, cwd=root)
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = running(self, "-c", CLIENT, port, str(server.pid), cwd=root)
        said, _ = client.communicate(timeout=HANG_SECONDS)
        self.assertEqual(said.split("\n")[0:2], ["WorkCompletionError", "20 ConnectionLost"])
