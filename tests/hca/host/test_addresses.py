"""
Tests for L{twisted_ib.hca.host.addresses}.
"""

from __future__ import annotations

import os
import socket
import struct
from unittest.mock import MagicMock

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.host.test_rundirectory import RunDirectoryTestCase
from tests.support.descriptors import descriptors
from twisted_ib import limits
from twisted_ib.errors import NoRouteError, ServiceInUseError
from twisted_ib.hca.host import addresses

#: What the kernel sends (netlink(7), rtnetlink(7)), all little endian: a message that says nothing.
NOOP = "10000000 0100 0000 01000000 00000000"
DONE = "10000000 0300 0000 01000000 00000000"
ERROR = "10000000 0200 0000 01000000 00000000"
#: Of interface 5, a point-to-point link: its name, the other end's address, its own.
POINT = """34000000 1400 0200 01000000 00000000  02 20 80 00 05000000
           0900 0300 7070703000000000  0800 0100 0a000002  0800 0200 0a000001"""
#: fe80::1 of interface 3, of the scope of a link, and 2001:db8::1, of that of the world.
LINK = """2c000000 1400 0200 01000000 00000000  0a 40 80 fd 03000000
          1400 0100 fe800000000000000000000000000001"""
WORLD = """2c000000 1400 0200 01000000 00000000  0a 40 80 00 03000000
           1400 0100 20010db8000000000000000000000001"""


#: A route to 10.0.0.0/8 (table, gateway, an MTU of 1500 and a lock of it, interface), and a plain one.
ROUTE = """48000000 1800 0000 01000000 00000000  02 08 00 00 fe 03 00 01 00000000
           0800 0f00 fe000000  0800 0500 0a000001
           1400 0800 0800 0200 dc050000 0800 0100 04000000  0800 0400 02000000"""
PLAIN = """24000000 1800 0000 01000000 00000000  02 08 00 00 fe 03 00 01 00000000  0800 0400 02000000"""


class Taken:
    """
    Ports that are taken, but for some; it counts how often one is asked for.
    """

    def __init__(self, *free: int) -> None:
        self.free = free
        self.asked = 0

    def __contains__(self, port: object) -> bool:
        self.asked += 1
        return port not in self.free


class AddressTests(RunDirectoryTestCase):
    """
    L{addresses}.
    """

    def test_local(self) -> None:
        """
        Loopback, wildcards and what the interfaces have.
        """
        own = addresses.localAddresses()
        self.assertIn("127.0.0.1", own)
        for text in (*own, "127.1.2.3", "::1", "0.0.0.0", "::", "", "::ffff:127.0.0.1"):
            self.assertTrue(addresses.isLocalAddress(text), text)
        self.assertEqual(descriptors(), self.before)

    def test_asked(self) -> None:
        """
        The kernel is asked by a bind and a look for a route, with the scope; for loopback addresses and
        wildcards it is not.
        """
        made = MagicMock()
        made.return_value.__exit__.return_value = None
        probe = made.return_value.__enter__.return_value
        self.patch(addresses, "KernelSocket", made)
        for text in ("127.9.9.9", "0.0.0.0", "::", "::1"):
            self.assertTrue(addresses.isLocalAddress(text))
        made.assert_not_called()
        for text, bound, connected in (
            ("fe80::1%7", ("fe80::1", 0, 0, 7), ("fe80::1", 9, 0, 7)),
            ("2001:db8::1", ("2001:db8::1", 0, 0, 0), ("2001:db8::1", 9, 0, 0)),
            ("10.0.0.1", ("10.0.0.1", 0), ("10.0.0.1", 9)),
        ):
            self.assertTrue(addresses.isLocalAddress(text))
            self.assertEqual(
                (probe.bind.call_args.args, probe.connect.call_args.args), ((bound,), (connected,))
            )

    def test_dumped(self) -> None:
        """
        What the kernel has is asked of a socket whose timeout is the kernel's, too: one of the interpreter's
        takes a poll(2) for each call.
        """
        made = MagicMock()
        made.return_value.__exit__.return_value = None
        asking = made.return_value.__enter__.return_value
        asking.recv.return_value = struct.pack("=IHHII", 16, 3, 0, 1, 0)
        self.patch(addresses, "KernelSocket", made)
        self.assertEqual(list(addresses.dumped(0, 18, b"")), [])
        ((level, option, value),) = [each.args for each in asking.setsockopt.call_args_list]
        self.assertEqual((level, option), (socket.SOL_SOCKET, socket.SO_RCVTIMEO))
        self.assertEqual(struct.unpack("@ll", value), (1, 0))
        asking.settimeout.assert_not_called()

    def test_notLocal(self) -> None:
        """
        Documentation networks, multicast, broadcast, a bare link-local.
        """
        for text in (
            "192.0.2.250",
            "8.8.8.8",
            "224.0.0.1",
            "255.255.255.255",
            "2001:db8::1",
            "ff02::1",
            "fe80::1",
            "::ffff:8.8.8.8",
        ):
            self.assertFalse(addresses.isLocalAddress(text), text)
        self.assertEqual(descriptors(), self.before)

    def test_notAnAddress(self) -> None:
        """
        Names are not resolved here.
        """
        for text in ("localhost", "1.2.3", "x::"):
            self.assertRaises(ValueError, addresses.isLocalAddress, text)

    def test_normalise(self) -> None:
        """
        One spelling each.
        """
        for text, one in {
            "": "0.0.0.0",
            "1.2.3.4": "1.2.3.4",
            "::FFFF:1.2.3.4": "1.2.3.4",
            "0:0::1": "::1",
            "FE80::0001%7": "fe80::1%7",
        }.items():
            self.assertEqual(addresses.normalise(text), one)

    def test_sourceWithScope(self) -> None:
        """
        A source address of one link has the number of its interface, and others have none.
        """
        made = MagicMock()
        made.__exit__.return_value = None
        probe = made.__enter__.return_value
        self.patch(addresses, "KernelSocket", lambda *_: made)
        for name, source in (
            (("fe80::1%eth7", 5, 0, 1), "fe80::1%1"),
            (("2001:db8::1", 5, 0, 0), "2001:db8::1"),
        ):
            probe.getsockname.return_value = name
            self.assertEqual(addresses.sourceFor("fe80::2%1"), source)
            self.assertEqual(probe.connect.call_args.args[0][0::3], ("fe80::2", 1))

    def test_listIsBounded(self) -> None:
        """
        A host with very many addresses.
        """
        self.patch(limits, "LOCAL_ADDRESSES", 1)
        self.assertEqual(len(addresses.localAddresses()), 1)

    def test_noNamespaces(self) -> None:
        """
        Where there are none there is one, number 0.
        """

        def deny(path: object, **options: object) -> os.stat_result:
            """
            As without /proc.
            """
            raise FileNotFoundError(2, "No such file or directory")

        self.assertEqual(addresses.namespaceInode(), os.stat("/proc/self/ns/net").st_ino)
        self.patch(os, "stat", deny)
        self.assertEqual(addresses.namespaceInode(), 0)

    def test_interface(self) -> None:
        """
        An address leads to its interface; one of 127/8 that no interface has leads to none.
        """
        self.assertEqual(addresses.interfaceOf("127.0.0.1"), socket.if_nametoindex("lo"))
        self.assertEqual(addresses.interfaceOf("127.0.0.2"), 0)

    def test_served(self) -> None:
        """
        A listener on the address itself comes first, then those on wildcards; 0.0.0.0 and :: are the loopback
        address, as for TCP.
        """
        for address, served in {
            "10.0.0.1": ["10.0.0.1", "0.0.0.0", "::"],
            "0.0.0.0": ["127.0.0.1", "0.0.0.0", "::"],
            "2001:db8::1": ["2001:db8::1", "::"],
            "::": ["::1", "::"],
        }.items():
            self.assertEqual(addresses.servedBy(address), served)

    def test_conflicts(self) -> None:
        """
        Listeners exclude each other by one address, or by the wildcard of their family.
        """
        for one, other, excludes in (
            ("10.0.0.1", "10.0.0.1", True),
            ("10.0.0.1", "10.0.0.2", False),
            ("10.0.0.1", "0.0.0.0", True),
            ("10.0.0.1", "::", False),
            ("::1", "::", True),
            ("0.0.0.0", "::", False),
        ):
            self.assertEqual(addresses.conflict(one, other), excludes, (one, other))
            self.assertEqual(addresses.conflict(other, one), excludes, (other, one))

    def test_check(self) -> None:
        """
        An address of this host passes, and so does a wildcard; for another the reason says so.
        """
        for text in ("", "0.0.0.0", "::", "127.0.0.1"):
            addresses.checkLocal(text)
        error = self.assertRaises(NoRouteError, addresses.checkLocal, "192.0.2.250")
        self.assertIn("192.0.2.250", str(error))

    def test_peers(self) -> None:
        """
        A peer may claim an address of this host, no wildcard, and a link-local one of any interface.
        """
        self.patch(addresses, "localAddresses", lambda: ["127.0.0.1", "fe80::5%3"])
        self.addCleanup(addresses.isPeersAddress.cache_clear)
        addresses.isPeersAddress.cache_clear()
        for text, may in {
            "127.0.0.1": True,
            "192.0.2.250": False,
            "0.0.0.0": False,
            "::": False,
            "fe80::5": True,
            "fe80::6": False,
        }.items():
            self.assertEqual(addresses.isPeersAddress(text, 0), may, text)

    def test_source(self) -> None:
        """
        The kernel says from which address it would connect; where it has no route this is said.
        """
        for text in ("127.0.0.1", "::1"):
            self.assertEqual(addresses.sourceFor(text), text)
        self.assertEqual(descriptors(), self.before)
        made = MagicMock(side_effect=OSError(101, "Network is unreachable"))
        self.patch(addresses, "KernelSocket", made)
        error = self.assertRaises(NoRouteError, addresses.sourceFor, "10.0.0.1")
        self.assertIn("to 10.0.0.1: Network is unreachable", str(error))

    def test_sourceHere(self) -> None:
        """
        To an address of this host the kernel chooses the source, asked once a second; another one stands for
        itself.
        """
        for text in ("127.0.0.1", "127.0.0.2", "127.255.255.254"):
            self.assertEqual(addresses.sourceHere(text, 7), "127.0.0.1")
        for text in ("::1", "192.0.2.1", "2001:db8::1", "0.0.0.0", "fe80::1", "fe80::1%1"):
            self.assertEqual(addresses.sourceHere(text, 7), text)
        self.patch(addresses, "KernelSocket", None)
        self.assertEqual(addresses.sourceHere("127.0.0.2", 7), "127.0.0.1")

    def test_sourceUnreachable(self) -> None:
        """
        An address of this host to which the kernel has no way, as where C{lo} is down, stands for itself.
        """
        self.assertRaises(NoRouteError, addresses.sourceFor, "127.255.255.255")
        self.assertEqual(addresses.sourceHere("127.255.255.255", 9), "127.255.255.255")

    def test_freePort(self) -> None:
        """
        The one port that is free is found: drawn, or else by a look at each of 49152 to 65535.
        """
        for port in (49152, 65535):
            taken = Taken(port)
            self.assertEqual(addresses.freePort(taken), port)
            self.assertLessEqual(taken.asked, 16 + 16384)
        taken = Taken()
        self.assertRaises(ServiceInUseError, addresses.freePort, taken)
        self.assertEqual(taken.asked, 16 + 16384)


class KernelTests(SynchronousTestCase):
    """
    What the kernel is asked, and what its answer says.
    """

    def listed(self, *answers: str) -> list[tuple[str, int]]:
        """
        @param answers: the kernel's, one a datagram.
        @return: the addresses, with their interfaces.
        """
        ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(kernel.close)
        self.patch(addresses, "KernelSocket", lambda *_: ours)
        for each in answers:
            kernel.send(bytes.fromhex(each))
        found = addresses._interfaceAddresses()
        asked = "18000000 1600 0103 01000000 00000000  00 00 00 00 00000000"
        self.assertEqual(kernel.recv(100), bytes.fromhex(asked))
        self.assertEqual(ours.fileno(), -1)
        return found

    def test_kinds(self) -> None:
        """
        Of a link between two points it is our own end, and only what is of one link has a scope.
        """
        found = [("10.0.0.1", 5), ("fe80::1%3", 3), ("2001:db8::1", 3)]
        self.assertEqual(self.listed(POINT + LINK + WORLD + DONE), found)
        self.assertEqual(self.listed(POINT + NOOP, LINK, WORLD, DONE), found)
        self.assertEqual(addresses.localAddresses(), [])

    def test_none(self) -> None:
        """
        Where the kernel cannot be asked there are none.
        """
        for error in (OSError(97, "Address family not supported"), AttributeError("AF_NETLINK")):
            self.patch(addresses, "KernelSocket", MagicMock(side_effect=error))
            self.assertEqual(addresses.localAddresses(), [])

    def test_padded(self) -> None:
        """
        Messages begin at multiples of four octets.
        """
        padded = POINT.replace("34000000", "35000000", 1) + "00000000"
        self.assertEqual(self.listed(padded + LINK + DONE), [("10.0.0.1", 5), ("fe80::1%3", 3)])

    def test_ends(self) -> None:
        """
        The list ends where the kernel says so, has failed, or has sent less than a message.
        """
        for end in (DONE, ERROR, "0f" + NOOP[2:]):
            self.assertEqual(self.listed(LINK + end, POINT + DONE), [("fe80::1%3", 3)])
        self.assertEqual(self.listed(LINK + NOOP[:-4], POINT + DONE), [("fe80::1%3", 3), ("10.0.0.1", 5)])

    def test_nothing(self) -> None:
        """
        Of another family, without an address, or with one of no length there is: left out.
        """
        family = WORLD.replace("0a 40", "1c 40")
        empty = POINT.replace(
            "0800 0100 0a000002  0800 0200 0a000001", "0800 0900 00000000  0800 0a00 00000000"
        )
        short = POINT.replace("0800 0200 0a000001", "0700 0200 0a000000")
        broken = POINT.replace("0900 0300", "0300 0300")
        for each in (family, empty, short, broken):
            self.assertEqual(self.listed(each + LINK + DONE), [("fe80::1%3", 3)])
        # An attribute may be empty.
        small = POINT.replace("0800 0100 0a000002", "0400 0100  0400 0400")
        self.assertEqual(self.listed(small + DONE), [("10.0.0.1", 5)])


class RouteTests(SynchronousTestCase):
    """
    What the kernel says of a route.
    """

    def asked(self, *answers: str, to: tuple[str, str] = ("10.0.0.9", "10.0.0.2"), interface: int = 0) -> int:
        """
        @param answers: what it says to the question that is asked.
        @return: what is found.
        """
        ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(kernel.close)
        self.patch(addresses, "KernelSocket", lambda *_: ours)
        for each in answers:
            kernel.send(bytes.fromhex(each))
        found = addresses.routeMTU(*to, interface)
        self.question = kernel.recv(100)
        self.assertEqual(ours.fileno(), -1)
        return found

    def test_mtu(self) -> None:
        """
        The MTU that a route was given, if it was given any; the answer is one message.
        """
        for answer, mtu in ((ROUTE, 1500), (PLAIN, 0), (ERROR, 0), (DONE, 0)):
            self.assertEqual(self.asked(answer, ROUTE), mtu)
        asked = """2c000000 1a00 0100 01000000 00000000  02 20 20 00 00 00 00 00 00200000
                   0800 0100 0a000009  0800 0200 0a000002"""
        self.assertEqual(self.question, bytes.fromhex(asked))

    def test_link(self) -> None:
        """
        Of an address of a link the interface is asked for.
        """
        self.assertEqual(self.asked(PLAIN, to=("fe80::1", "fe80::2"), interface=3), 0)
        asked = """4c000000 1a00 0100 01000000 00000000  0a 80 80 00 00 00 00 00 00200000
                   1400 0100 fe800000000000000000000000000001
                   1400 0200 fe800000000000000000000000000002  0800 0400 03000000"""
        self.assertEqual(self.question, bytes.fromhex(asked))

    def test_none(self) -> None:
        """
        Where the kernel cannot be asked there is none.
        """
        error = OSError(97, "Address family not supported")
        self.patch(addresses, "KernelSocket", MagicMock(side_effect=error))
        self.assertEqual(addresses.routeMTU("10.0.0.9", "10.0.0.2"), 0)

    def test_own(self) -> None:
        """
        The kernel of this host answers.
        """
        self.assertEqual(addresses.routeMTU("127.0.0.1", "127.0.0.2"), 0)
