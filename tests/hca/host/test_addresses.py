"""
Tests for L{twisted_ib.hca.host.addresses}.
"""

from __future__ import annotations

import os
from unittest.mock import MagicMock

from tests.hca.host.test_rundirectory import RunDirectoryTestCase
from tests.support.descriptors import descriptors
from twisted_ib import limits
from twisted_ib.hca.host import addresses


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
