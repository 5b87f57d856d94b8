"""
Errors of a device in Twisted's terms.
"""

from __future__ import annotations

import errno
from unittest import mock

from twisted.internet import error
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.host.test_rendezvous import SERVICE, RendezvousTestCase
from twisted_ib.errors import (
    HandshakeError,
    HCAError,
    NoListenerError,
    RunDirectoryError,
    UnsupportedOperationError,
)
from twisted_ib.hca.host import rundirectory, search
from twisted_ib.internet import failures

WHERE = "SDP 127.0.0.1:80"


def caused(kind: type[HCAError], number: int) -> HCAError:
    """
    @return: An error behind which is one of the operating system.
    """
    try:
        raise kind("it did not work") from OSError(number, "no")
    except HCAError as e:
        return e


class ExhaustedTests(SynchronousTestCase):
    """
    No descriptor is free (issue 16, point 19).
    """

    def test_connect(self) -> None:
        """
        EMFILE and ENFILE are called by their names, whatever they led to; a text tells where.
        """
        for number, text in (
            (errno.EMFILE, "Too many open files"),
            (errno.ENFILE, "Too many open files in system"),
        ):
            for reason in (
                OSError(number, "no"),
                caused(NoListenerError, number),
                caused(HandshakeError, number),
            ):
                found = failures.connectError(reason, WHERE)
                self.assertIsInstance(found, error.ConnectBindError)
                self.assertEqual((found.osError, found.args), (number, (f"{WHERE}: {text}",)))
        refused = failures.connectError(caused(NoListenerError, errno.ENOENT), WHERE)
        self.assertIsInstance(refused, error.ConnectionRefusedError)

    def test_listen(self) -> None:
        """
        The same for a listener.
        """
        for reason in OSError(errno.EMFILE, "no"), caused(RunDirectoryError, errno.EMFILE):
            found = failures.listenError("", 80, None, reason).socketError
            self.assertEqual((found.errno, found.strerror), (errno.EMFILE, "Too many open files"))
        found = failures.listenError("", 80, None, caused(RunDirectoryError, errno.EACCES)).socketError
        self.assertEqual((found.errno, found.strerror), (errno.EACCES, "it did not work"))

    def test_unsupported(self) -> None:
        """
        A listen that a device has not is EOPNOTSUPP.
        """
        found = failures.listenError(
            "", 80, None, UnsupportedOperationError("no such port space")
        ).socketError
        self.assertEqual((found.errno, found.strerror), (errno.EOPNOTSUPP, "no such port space"))


class SearchTests(RendezvousTestCase):
    """
    The same in a search.
    """

    def test_notNobody(self) -> None:
        """
        A search without a free descriptor does not say that nobody listens.
        """
        self.hca(1).publish(SERVICE, "127.0.0.1")
        client = self.hca(2)
        (entry,) = client.lookup(SERVICE, "127.0.0.1")
        reason = OSError(errno.EMFILE, "Too many open files")
        with mock.patch.object(search, "connect", side_effect=reason):
            failure = self.assertRaises(HandshakeError, client.connect, entry)
        self.assertIn("Too many open files", str(failure))
        self.assertIsInstance(failures.connectError(failure, WHERE), error.ConnectBindError)

    def test_noDirectory(self) -> None:
        """
        Where no run directory can be opened for want of a descriptor, that is the reason.
        """
        reason = OSError(errno.EMFILE, "Too many open files")
        with mock.patch.object(rundirectory.os, "open", side_effect=reason):
            failure = self.assertRaises(RunDirectoryError, self.hca, 1)
        self.assertIsInstance(failures.connectError(failure, WHERE), error.ConnectBindError)
        self.assertEqual(failures.listenError("", 80, None, failure).socketError.errno, errno.EMFILE)
