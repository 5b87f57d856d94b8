"""
Tests for the place of a subnet in a run directory.
"""

from __future__ import annotations

import os
import socket
import stat

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import descriptors, descriptorsBefore
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.errors import DeviceError, RunDirectoryError
from twisted_ib.hca.host.entries import connect
from twisted_ib.hca.host.rundirectory import RunDirectory
from twisted_ib.settings import DEFAULT_SUBNET, RUN_DIR, SUBNET
from twisted_ib.subnet.hosting.place import (
    Place,
    entryOf,
    hostOf,
    runDirectories,
    subnetName,
)


class NameTests(SynchronousTestCase):
    """
    The name of a subnet.
    """

    def test_names(self) -> None:
        """
        It is that of the variable, if that is set and no path.
        """
        for text, expected in (("", DEFAULT_SUBNET), ("lab-1.x", "lab-1.x"), ("a" * 32, "a" * 32)):
            self.assertEqual(subnetName({SUBNET: text}), expected)
        self.assertEqual(subnetName({}), DEFAULT_SUBNET)
        for text in ("../x", ".x", "a/b", "a b", "é", "a" * 33, "a\n"):
            error = self.assertRaises(DeviceError, subnetName, {SUBNET: text})
            self.assertIn(SUBNET, str(error))


class PlaceTests(SynchronousTestCase):
    """
    One place, in a directory of the test's own.
    """

    def setUp(self) -> None:
        """
        Open the directory.
        """
        ownRunDirectory(self)
        opened = runDirectories(os.environ)
        (self.directory,) = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)

    def take(self) -> Place | None:
        """
        Take it.
        """
        return Place.take(self.directory, "x")

    def taken(self) -> Place:
        """
        @return: it, which was free.
        """
        place = self.take()
        assert place is not None
        return place

    def test_one(self) -> None:
        """
        One process has it at a time; who hosts is known while it listens.
        """
        self.assertEqual(hostOf(self.directory, "x"), 0)
        place = self.taken()
        self.assertEqual((self.take(), hostOf(self.directory, "x")), (None, os.getpid()))
        place.close()
        self.assertEqual((os.listdir(self.directory.fd), hostOf(self.directory, "x")), (["subnet-x.lock"], 0))
        self.taken().close()

    def test_left(self) -> None:
        """
        The socket that a host has left, when it was killed, is replaced.
        """
        place = self.taken()
        place.forget()
        self.assertRaises(
            ConnectionRefusedError, connect, self.directory, entryOf("x"), socket.SOCK_SEQPACKET
        )
        again = self.taken()
        self.addCleanup(again.close)
        connect(self.directory, entryOf("x"), socket.SOCK_SEQPACKET).close()

    def test_modes(self) -> None:
        """
        The socket is the user's own, but where several users meet.
        """
        for shared, mode in ((False, 0o600), (True, 0o666)):
            with_ = RunDirectory(self.directory.path, self.directory.fd, shared)
            place = Place.take(with_, "x")
            assert place is not None
            status = self.directory.status(place.name)
            assert status is not None
            self.assertEqual(stat.S_IMODE(status.st_mode), mode)
            place.close()

    def test_notBound(self) -> None:
        """
        Where the socket cannot be made, nothing is left open and the lock is free.
        """
        before = descriptorsBefore()
        os.mkdir(entryOf("x"), dir_fd=self.directory.fd)
        self.assertRaises(OSError, self.take)
        self.assertEqual(descriptors(), before)
        os.rmdir(entryOf("x"), dir_fd=self.directory.fd)
        self.taken().close()

    def test_link(self) -> None:
        """
        A lock that is a symbolic link is not followed.
        """
        os.symlink("elsewhere", "subnet-x.lock", dir_fd=self.directory.fd)
        self.assertRaises(OSError, self.take)
        self.assertEqual(os.listdir(self.directory.fd), ["subnet-x.lock"])

    def test_noDirectory(self) -> None:
        """
        Without a run directory the error says why.
        """
        opened = runDirectories({RUN_DIR: "/dev/null/x"})
        self.assertRaises(RunDirectoryError, opened.__enter__)
