"""
Tests of L{twisted_ib.internet.serverclient}: the number of a connection among those of its port.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.sdp.port import SDPServer


class SessionNumberTests(SynchronousTestCase):
    """
    L{twisted_ib.internet.serverclient.ServerTransport.sessionno}.
    """

    def test_assigned(self) -> None:
        """
        It can be assigned, as that of Twisted's own, and the peer's port number stays.
        """
        server = SDPServer.__new__(SDPServer)
        server._session = 3 << 16
        server._peerPort = 4000
        self.assertEqual((server.sessionno, server._peerPort), (3, 4000))
        server.sessionno = 5
        self.assertEqual((server.sessionno, server._peerPort), (5, 4000))
