"""
Tests for the thread that hosts a subnet.
"""

from __future__ import annotations

import os
import socket
import subprocess
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import PATH, interpreter
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.hca.host import libc
from twisted_ib.settings import DEFAULT_SUBNET
from twisted_ib.subnet.hosting.descriptors import Descriptor
from twisted_ib.subnet.hosting.hostthread import Loop
from twisted_ib.subnet.hosting.place import Place, hostOf, runDirectories

MISSING = libc.available()
#: Hosts, and is killed when a child of it runs, which ends with its standard input.
FORKING = f"""{PATH}
import os, signal
from twisted_ib.hca.device.device import Device
device = Device("ib0")
if os.fork():
    signal.pause()
print(os.getpid(), flush=True)
sys.stdin.read()
"""
#: Forks while a call of its host, or of its server, is slow; the child ends with its standard input.
AMIDST = f"""{PATH}
import os, threading
from twisted_ib.hca.device.device import Device
from twisted_ib.subnet.hosting.hostthread import HostThread
from twisted_ib.subnet.hosting.server import SubnetServer
name = sys.argv[1]
owner = dict(__init__=HostThread, close=SubnetServer)[name]
call = getattr(owner, name)
amidst, forked = threading.Event(), threading.Event()
def slowly(*arguments):
    amidst.set()
    forked.wait(0.1)  # Longer than a fork takes that does not wait for this.
    call(*arguments)
setattr(owner, name, slowly)
opening = threading.Thread(target=lambda: Device("ib0").close())
opening.start()
amidst.wait()
if not os.fork():
    sys.stdin.read()
    os._exit(0)
forked.set()
opening.join()
print("forked", flush=True)
sys.stdin.read()
"""


class LoopTests(SynchronousTestCase):
    """
    The reactor of a thread.
    """

    def test_removed(self) -> None:
        """
        What one descriptor has removed is not called in the same turn; what is closed and watched again is.
        """
        loop = Loop()
        self.addCleanup(loop.close)
        called: list[str] = []
        ends = [socket.socketpair() for _ in range(2)]
        for near, far in ends:
            self.addCleanup(near.close)
            self.addCleanup(far.close)
            far.send(b"x")

        def serve(own: int) -> None:
            called.append(f"read {own}")
            loop.removeReader(descriptors[1 - own])

        descriptors = [
            Descriptor(ends[n][0].fileno(), lambda n=n: serve(n), lambda n=n: called.append(f"write {n}"))  # type: ignore[misc]
            for n in range(2)
        ]
        for descriptor in descriptors:
            loop.addReader(descriptor)
            loop.addReader(descriptor)
        loop.turn()
        self.assertEqual(len(called), 1)
        (own,) = loop._watched
        left = next(each for each in descriptors if each.fileno() == own)
        loop.addWriter(left)
        loop.removeReader(left)
        loop.turn()
        self.assertEqual(called[1:], [f"write {descriptors.index(left)}"])
        loop.removeWriter(left)
        loop.removeWriter(left)
        self.assertEqual(loop._watched, {})
        self.assertEqual(left.logPrefix(), "subnet")


@skipIf(bool(MISSING), f"missing: {MISSING}")
class ForkTests(SynchronousTestCase):
    """
    A process that hosts, and its child.
    """

    def forking(self, said: str, program: str, *arguments: str) -> subprocess.Popen[str]:
        """
        @param said: a pattern of its first line.

        @return: the parent; it has forked by now, and its child ends with the test.
        """
        read, write = os.pipe()
        self.addCleanup(os.close, write)
        with open(read) as standardInput:
            parent = interpreter(self, "-c", program, *arguments, stdin=standardInput)
        assert parent.stdout is not None
        self.assertRegex(parent.stdout.readline(), said)
        return parent

    def assertLeaves(self, parent: subprocess.Popen[str]) -> None:
        """
        Kill the parent, and assert that its child does not keep its place.
        """
        parent.kill()
        parent.wait()
        with runDirectories(os.environ) as (directory,):
            place = Place.take(directory, DEFAULT_SUBNET)
            assert place is not None, parent.args[3:]
            place.close()

    def test_lock(self) -> None:
        """
        The child does not keep the place of its parent, which is killed.
        """
        ownRunDirectory(self)
        host = self.forking(r"^\d+\n$", FORKING)
        with runDirectories(os.environ) as (directory,):
            self.assertEqual(hostOf(directory, DEFAULT_SUBNET), host.pid)
        self.assertLeaves(host)

    def test_amidst(self) -> None:
        """
        A child that is forked while a host begins or ends does not keep its place.
        """
        ownRunDirectory(self)
        for name in ("__init__", "close"):
            self.assertLeaves(self.forking("^forked\n$", AMIDST, name))
