"""
Tests of the next hop to an address: rtnetlink's messages as octets, and the kernel's own tables.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.commands import PATH
from twisted_ib.hca.host import addresses, neighbours
from twisted_ib.hca.host.neighbours import NextHop

#: C{struct rtmsg} of a route to another host, its interface 4 and a gateway; and of one to this host.
_ROUTED = bytes.fromhex("0220000000000001 00000000 0800040004000000 08000500c0000201")
_DIRECT = bytes.fromhex("0220000000000001 00000000 0800040004000000")
_LOCAL = bytes.fromhex("0220000000000002 00000000 0800040001000000")
#: C{struct ndmsg} of interface 4: incomplete, reachable, failed.
_INCOMPLETE, _REACHABLE, _FAILED = (
    bytes.fromhex(f"02000000 04000000 {state}00 00 01") for state in ("01", "02", "20")
)
_NO_ENTRY = struct.pack("=i", -errno.ENOENT)

#: Two interfaces that are one wire, on which nobody has another address.
_WIRE = (
    "ip link add v0 type veth peer name v1 && ip addr add 10.9.0.1/24 dev v0 && "
    'ip link set v0 up && ip link set v1 up && exec "$@"'
)
_LOOKED = """
from twisted_ib.hca.host.neighbours import NextHop
found = []
for address in "10.9.0.77", "10.9.0.1", "10.8.0.1":
    try:
        found.append(NextHop(address, "10.9.0.1").isKnown())
    except OSError as error:
        found.append(error.errno)
print(found)
"""


class NextHopTests(SynchronousTestCase):
    """
    L{NextHop}.
    """

    def asked(self, *answers: tuple[int, bytes]) -> list[tuple[int, bytes]]:
        """
        The kernel's answers to come.

        @return: the questions, as they come.
        """
        questions: list[tuple[int, bytes]] = []
        left = iter(answers)

        def dumped(protocol: int, kind: int, request: bytes, flags: int) -> Iterator[tuple[int, bytes]]:
            """
            Answer.
            """
            self.assertEqual((protocol, flags), (0, 1))
            questions.append((kind, request))
            yield next(left)

        self.patch(addresses, "dumped", dumped)
        return questions

    def test_known(self) -> None:
        """
        What is known is neither asked for nor sent to; the questions are these.
        """
        questions = self.asked((24, _ROUTED), (28, _REACHABLE))
        self.patch(neighbours, "KernelSocket", None)
        self.assertTrue(NextHop("10.1.2.3", "192.0.2.2").isKnown())
        route = "0220200000000000 00000000 080001000a010203 08000200c0000202"
        neighbour = "02000000 04000000 0000 00 00 08000100c0000201"
        self.assertEqual(questions, [(26, bytes.fromhex(route)), (30, bytes.fromhex(neighbour))])

    def test_asked(self) -> None:
        """
        What is not known is asked for, unless that is under way; no entry then is an interface without such
        addresses, and one as before is a datagram that the kernel has sent nowhere.
        """
        none, failed, incomplete = (2, _NO_ENTRY), (28, _FAILED), (28, _INCOMPLETE)
        for first in (none, failed):
            for last, isKnown in ((incomplete, False), ((28, _REACHABLE), True), (first, True)):
                questions = self.asked((24, _DIRECT), first, last)
                self.assertEqual(NextHop("127.0.0.1", "127.0.0.1").isKnown(), isKnown)
                self.assertEqual([kind for kind, _ in questions], [26, 30, 30])
        questions = self.asked((24, _DIRECT), incomplete)
        self.assertFalse(NextHop("127.0.0.1", "127.0.0.1").isKnown())
        self.assertEqual([kind for kind, _ in questions], [26, 30])

    def test_unsent(self) -> None:
        """
        A datagram that may not be sent says nothing of who is there.
        """
        self.asked((24, _DIRECT), (28, _FAILED))
        # Not an address of this host.
        self.assertTrue(NextHop("127.0.0.1", "192.0.2.1").isKnown())

    def test_local(self) -> None:
        """
        To an address of this host there is none.
        """
        self.asked((24, _LOCAL))
        self.assertTrue(NextHop("127.0.0.9", "127.0.0.1").isKnown())

    def test_refused(self) -> None:
        """
        No route is its errno; what else the kernel refuses is no answer, and so are short ones and none.
        """
        for number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
            self.asked((2, struct.pack("=i", -number)))
            error = self.assertRaises(OSError, NextHop, "10.1.2.3", "127.0.0.1")
            self.assertEqual(error.errno, number)
        self.asked((2, struct.pack("=i", -errno.EOPNOTSUPP)))
        self.assertTrue(NextHop("10.1.2.3", "127.0.0.1").isKnown())
        self.asked((24, _ROUTED[:12]))
        self.assertTrue(NextHop("10.1.2.3", "127.0.0.1").isKnown())

        def silent(*arguments: object) -> Iterator[tuple[int, bytes]]:
            """
            There is no rtnetlink.
            """
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            yield

        self.patch(addresses, "dumped", silent)
        self.assertTrue(NextHop("10.1.2.3", "127.0.0.1").isKnown())

    def test_kernel(self) -> None:
        """
        The kernel's own answers, on a wire where nobody answers ARP.
        """
        words = ("unshare", "-rn", "sh", "-c", _WIRE, "sh", sys.executable, "-c", PATH + _LOOKED)
        if shutil.which("unshare") is None:
            raise SkipTest("unshare of util-linux is not installed")
        if shutil.which("ip") is None:
            raise SkipTest("there is no ip here")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if not done.stdout and ("unshare: " in done.stderr or "RTNETLINK" in done.stderr):
            raise SkipTest("may not make a network namespace")
        self.assertEqual((done.stdout, done.stderr), (f"[False, True, {errno.ENETUNREACH}]\n", ""))
