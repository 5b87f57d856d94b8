"""
Tests for the language of rules.
"""

from __future__ import annotations

from unittest import mock

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support.generated import given, settings
from twisted_ib import limits
from twisted_ib import settings as table
from twisted_ib.configuration import parser
from twisted_ib.configuration.syntax import (
    AddressRange,
    Contents,
    DeviceStatement,
    Log,
    Route,
    Timeouts,
    parseAddress,
)
from twisted_ib.errors import RulesError
from twisted_ib.hca.device.registry import parseRules as parse

# In the shape of the file that comes with libsdp.
LIBSDP = """\
# libsdp.conf - configuration
#
log min-level 9 destination file libsdp.log
\t # indented
use both server * *:*
use both client * *:*

use sdp    connect *         192.168.1.0/24:*   # a subnet
use sdp    connect *         1234:5678::0/64:*
use sdp\tlisten\tttcp      *:5001
use tcp    server  ttcp*     *:22-25
log destination stderr
log destination syslog min-level 7
log
"""

# A file of one line, the column of the error and what it says.
WRONG = (
    ("foo", 1, "use, log, device, route or timeout, not 'foo'"),
    ("  Use tcp listen * *:*", 3, "use, log, device, route or timeout, not 'Use'"),
    ("use", 4, "sdp, tcp or both"),
    ("use spd listen * *:80", 5, "sdp, tcp or both, not 'spd'"),
    ("use sdp", 8, "listen, server, connect or client"),
    ("use sdp bind * *:80", 9, "listen, server, connect or client, not 'bind'"),
    ("use sdp listen", 15, "a program's name or pattern"),
    ("use sdp listen # *:*", 15, "a program's name or pattern"),
    ("use sdp listen *:80", 20, "an address and ports, as *:80"),
    ("use sdp listen * 8080", 18, "an address and ports, as *:80, not '8080'"),
    ("use sdp listen * 1.2.3.256:1", 18, "an IPv4 or IPv6 address or *, not '1.2.3.256:1'"),
    ("use sdp listen * 1.2.3:1", 18, "an IPv4 or IPv6 address or *, not '1.2.3:1'"),
    ("use sdp listen * 01.2.3.4:1", 18, "an IPv4 or IPv6 address or *, not '01.2.3.4:1'"),
    ("use sdp listen * 1.2.3.4.:1", 18, "an IPv4 or IPv6 address or *, not '1.2.3.4.:1'"),
    ("use sdp listen * host:1", 18, "an IPv4 or IPv6 address or *, not 'host:1'"),
    ("use sdp listen * fe80::1%eth0:1", 18, "an IPv4 or IPv6 address or *, not 'fe80::1%eth0:1'"),
    ("use sdp listen * [::1:1", 18, "an IPv4 or IPv6 address or *, not '[::1:1'"),
    ("use sdp listen * 1.2.3.4/33:1", 18, "a prefix length from 0 to 32 after the /, not '1.2.3.4/33:1'"),
    ("use sdp listen * ::1/129:1", 18, "a prefix length from 0 to 128 after the /, not '::1/129:1'"),
    ("use sdp listen * 1.2.3.4/:1", 18, "a prefix length from 0 to 32 after the /, not '1.2.3.4/:1'"),
    ("use sdp listen * */8:1", 18, "an IPv4 or IPv6 address or *, not '*/8:1'"),
    *(
        (
            f"use sdp listen * *:{ports}",
            18,
            f"a port from 0 to 65535, a range of ports or * after the last :, not {f'*:{ports}'!a}",
        )
        for ports in ("", "http", "65536", "-1", "1-", "1-2-3", "080", "+1", "1-*", "\u0663", "9" * 30)
    ),
    ("use sdp listen * *:80 x", 23, "the end of the line, not 'x'"),
    ("use sdp listen * *:80 use", 23, "the end of the line, not 'use'"),
    ("use sdp listen * *:80\r\r", 18, None),
    ("log level 9", 5, "destination or min-level, not 'level'"),
    ("log destination", 16, "stderr, syslog or file"),
    ("log destination stdout", 17, "stderr, syslog or file, not 'stdout'"),
    ("log destination file", 21, "a file's name"),
    ("log min-level", 14, "a level, 1 to 9"),
    ("log min-level high", 15, "a level, 1 to 9, not 'high'"),
    ("device", 7, "a device's name"),
    ("device a/b shm", 8, "a device's name, of letters, digits, _, . and -, not 'a/b'"),
    ("device x", 9, "hardware, ib, iwarp, loopback, roce or shm"),
    ("device x token", 10, "hardware, ib, iwarp, loopback, roce or shm, not 'token'"),
    ("device x roce", 14, "an IPv4 or IPv6 address of this host"),
    ("device x roce # host", 14, "an IPv4 or IPv6 address of this host"),
    ("device x shm host", 14, "an IPv4 or IPv6 address, not 'host'"),
    ("device x shm 1.2.3.4 y", 22, "the end of the line, not 'y'"),
    ("device x iwarp crc=yes", 16, "an IPv4 or IPv6 address, not 'crc=yes'"),
    ("device x iwarp 1.2.3.4 crc", 24, "crc=yes|no, markers=yes|no, not 'crc'"),
    ("device x iwarp 1.2.3.4 crc=1", 24, "crc=yes|no, markers=yes|no, not 'crc=1'"),
    ("device x iwarp 1.2.3.4 crc=no more=no", 31, "crc=yes|no, markers=yes|no, not 'more=no'"),
    ("device shm0 loopback", 13, "shm, the fabric of shm0, not 'loopback'"),
    ("route", 6, "a network"),
    ("route 10.0.0.0/8", 17, "a device's name"),
    ("route 10.0.0.1/8 shm0", 7, "a network such as 10.0.0.0/8, not '10.0.0.1/8'"),
    ("route ten shm0", 7, "an IPv4 or IPv6 address or *, not 'ten'"),
    ("route * shm0 shm7", 14, "the name of a device, one of lo0, shm0, not 'shm7'"),
    ("timeout", 8, "sdp, retry or short"),
    ("timeout tcp 1", 9, "sdp, retry or short, not 'tcp'"),
    ("timeout sdp", 12, "a number of seconds, from more than 0 to 86400"),
    ("timeout sdp 0", 13, "a number of seconds, from more than 0 to 86400, not '0'"),
    ("timeout sdp 2s", 13, "a number of seconds, from more than 0 to 86400, not '2s'"),
    ("timeout retry nan", 15, "a number of seconds, from 0 to 86400, not 'nan'"),
    ("timeout retry 86401", 15, "a number of seconds, from 0 to 86400, not '86401'"),
    ("timeout retry 1 2", 17, "the end of the line, not '2'"),
    ("x" * 100, 1, f"use, log, device, route or timeout, not '{'x' * 40}...'"),
    ("\udcff", 1, r"use, log, device, route or timeout, not '\udcff'"),
)


class ParseTests(SynchronousTestCase):
    """
    The contents of files.
    """

    def one(self, text: str) -> Contents:
        """
        @param text: a file without warnings.

        @return: what it says.
        """
        contents = parse(text, "f")
        self.assertEqual(contents.warnings, ())
        return contents

    def networks(self, *texts: str) -> list[AddressRange | None]:
        """
        @param texts: addresses and lengths.

        @return: them, as rules have them.
        """
        return [parse(f"use tcp listen * {text}:1", "f").rules[0].network for text in texts]

    def test_libsdp(self) -> None:
        """
        A file of libsdp's is one of ours.
        """
        contents = self.one(LIBSDP)
        self.assertEqual(
            [(r.verdict, r.role, r.program.text, r.firstPort, r.lastPort, r.where) for r in contents.rules],
            [
                ("both", "listen", "*", 0, 65535, "f:5"),
                ("both", "connect", "*", 0, 65535, "f:6"),
                ("sdp", "connect", "*", 0, 65535, "f:8"),
                ("sdp", "connect", "*", 0, 65535, "f:9"),
                ("sdp", "listen", "ttcp", 5001, 5001, "f:10"),
                ("tcp", "listen", "ttcp*", 22, 25, "f:11"),
            ],
        )
        self.assertEqual(
            [rule.network for rule in contents.rules],
            [None, None, AddressRange(4, 0xC0A80100, 24), AddressRange(6, 0x12345678 << 96, 64), None, None],
        )
        self.assertEqual(
            contents.logs,
            (
                Log("file", "libsdp.log", 9, "f:3"),
                Log("stderr", None, None, "f:12"),
                Log("syslog", None, 7, "f:13"),
                Log(None, None, None, "f:14"),
            ),
        )

    def test_lineEnds(self) -> None:
        """
        A file may have CR LF, and no end of its last line, and a byte order mark.
        """
        text = "use tcp listen a *:1\nuse sdp connect b *:2\n"
        expected = self.one(text)
        crlf = text.replace("\n", "\r\n")
        for other in (text[:-1], crlf, crlf[:-2], crlf[:-1], "\ufeff" + text):
            self.assertEqual(self.one(other), expected)
        self.assertEqual(self.one("").rules, ())
        self.assertEqual(self.one("\n\n# x").rules, ())

    def test_addresses(self) -> None:
        """
        An address of either family, with and without a length and brackets.
        """
        loopback = AddressRange(6, 1, 128)
        self.assertEqual(self.networks("::1", "[::1]", "[::1]/128", "[::1/128]", "::1/128"), [loopback] * 5)
        self.assertEqual(
            self.networks("*", "127.0.0.1", "10.0.0.0/8", "::ffff:1.2.3.4", "0.0.0.0/0"),
            [
                None,
                AddressRange(4, 0x7F000001, 32),
                AddressRange(4, 0x0A000000, 8),
                AddressRange(6, 0xFFFF01020304, 128),
                AddressRange(4, 0, 0),
            ],
        )

    def test_blanks(self) -> None:
        """
        As in libsdp, blanks may stand around the punctuation of addresses and ports.
        """
        expected = self.one("use tcp listen * 10.0.0.0/8:22-25").rules
        self.assertEqual(self.one("use tcp listen * 10.0.0.0 / 8 : 22 - 25 # x").rules, expected)
        self.assertEqual(self.one("\tuse\ttcp listen *\t10.0.0.0/8:\t22-25#x").rules, expected)

    def test_programs(self) -> None:
        """
        A program goes to the next blank, and may have anything in it that does not begin a comment.
        """
        for name in ("a#b", "use", "*:80", "[a-z]*", "1", "\udcff", "\u00e4"):
            self.assertEqual(self.one(f"use tcp listen {name} *:1").rules[0].program.text, name)
        self.assertEqual(self.one("log destination file a#b#").logs[0].file, "a#b#")

    def test_ownStatements(self) -> None:
        """
        Devices, routes and times; a route may come before its device, the last time counts.
        """
        contents = self.one(
            "route 10.0.0.0/8 net1 shm0 net1\n"
            "route * shm0\n"
            "device net1 shm 10.0.0.1\n"
            "device n-2.x_ loopback\n"
            "device w iwarp ::1 crc=no markers=yes crc=yes # the last counts\n"
            "timeout sdp 9\ntimeout sdp 0.25\ntimeout retry 0\ntimeout short 3\n"
        )
        self.assertEqual(
            contents.routes,
            (Route(AddressRange(4, 10 << 24, 8), ("net1", "shm0"), "f:1"), Route(None, ("shm0",), "f:2")),
        )
        self.assertEqual(
            contents.devices,
            (
                DeviceStatement("net1", "shm", "10.0.0.1", "f:3"),
                DeviceStatement("n-2.x_", "loopback", None, "f:4"),
                DeviceStatement("w", "iwarp", "::1", "f:5", (("crc", True), ("markers", True))),
            ),
        )
        self.assertEqual(contents.timeouts, Timeouts(0.25, 0.0, 3.0))
        self.assertEqual(Timeouts(), Timeouts(2.0, 60.0, 10.0))

    def test_warnings(self) -> None:
        """
        A rule that means another thing to libsdp than it looks is warned of, and stays a rule.
        """
        contents = parse(
            "use sdp listen * 10.0.0.5/24:*\n"
            "use sdp listen * *:25-22\n"
            "use sdp listen * 10.0.0.5/0:*\n"
            "use sdp listen * 0.0.0.0/8:*\n"
            "use sdp listen * 1::1/16:*\n",
            "a b",
        )
        self.assertEqual(
            contents.warnings,
            (
                "a b:1: 10.0.0.5/24 never matches, as bits after the first 24 are set; "
                "the network is 10.0.0.0/24",
                "a b:2: ports 25-22 never match: the first is greater than the last",
                "a b:3: a prefix length of 0 counts as none: 10.0.0.5/32 matches one address alone",
            ),
        )
        self.assertEqual(len(contents.rules), 5)

    def test_errors(self) -> None:
        """
        Each wrong word is named by its place, with what should be there.
        """
        for text, column, expected in WRONG:
            with self.assertRaises(RulesError) as caught:
                parse("# first\n" + text + "\nuse tcp listen * *:*\n", "/etc/x")
            if expected is not None:
                self.assertEqual(caught.exception.errors, (f"/etc/x:2:{column}: expected {expected}",))
            self.assertEqual(str(caught.exception), caught.exception.errors[0])

    def test_manyErrors(self) -> None:
        """
        All wrong lines are reported, in order, up to a bound.
        """
        with self.assertRaises(RulesError) as caught:
            parse("route * x\nuse\nroute * y\n", "f")
        self.assertEqual([e.split(" ")[0] for e in caught.exception.errors], ["f:1:9:", "f:2:4:", "f:3:9:"])
        with self.assertRaises(RulesError) as caught:
            parse("use\n" * 100, "f")
        self.assertEqual(len(caught.exception.errors), limits.POLICY_ERRORS)
        with self.assertRaises(RulesError) as caught:
            parse("route * x\n" * 100, "f")
        self.assertEqual(len(caught.exception.errors), limits.POLICY_ERRORS)

    def test_sameName(self) -> None:
        """
        Two devices have two names.
        """
        with self.assertRaises(RulesError) as caught:
            parse("device x shm\ndevice x shm\n", "f")
        self.assertEqual(str(caught.exception), "f:2:8: expected another name than that of f:1, not 'x'")
        self.assertEqual(len(self.one("device shm0 shm\n").devices), 1)

    def test_otherFabrics(self) -> None:
        """
        Which devices and fabrics there are is for the caller to say.
        """
        contents = parser.parse("device r roce 10.0.0.1\nroute * r e0", "f", {"e0": "roce"}, {"roce": True})
        self.assertEqual(contents.routes[0].devices, ("r", "e0"))

    def test_bounds(self) -> None:
        """
        A file has so many statements and devices and no more.
        """
        for statement in ("use tcp listen * *:*", "log", "route * shm0"):
            text = (statement + "\n") * parser.POLICY_STATEMENTS
            self.one(text)
            with self.assertRaises(RulesError) as caught:
                parse(text + statement, "f")
            self.assertEqual(
                str(caught.exception),
                f"f:{parser.POLICY_STATEMENTS + 1}:1: "
                f"expected at most {parser.POLICY_STATEMENTS} statements, not {statement.split()[0]!r}",
            )
        text = "".join(f"device d{n} shm\n" for n in range(parser.POLICY_DEVICES))
        self.assertEqual(len(self.one(text).devices), parser.POLICY_DEVICES)
        with self.assertRaises(RulesError) as caught:
            parse(text + "device more shm", "f")
        self.assertIn(f"expected at most {parser.POLICY_DEVICES} devices", str(caught.exception))
        with self.assertRaises(RulesError) as caught:
            parse("route *" + " shm0" * (parser.POLICY_DEVICES + 1), "f")
        self.assertIn(f"expected at most {parser.POLICY_DEVICES} devices", str(caught.exception))

    def test_times(self) -> None:
        """
        The longest time is a bound.
        """
        with mock.patch.object(table, "TIMEOUT_MOST_SECONDS", 5.0):
            self.one("timeout sdp 5\ntimeout retry 5.0\ntimeout short 5")
            for kind in ("sdp", "retry", "short"):
                with self.assertRaises(RulesError):
                    parse(f"timeout {kind} 5.1", "f")

    def test_parseAddress(self) -> None:
        """
        Only addresses are addresses.
        """
        self.assertEqual(parseAddress("255.255.255.255"), (4, 0xFFFFFFFF))
        self.assertEqual(parseAddress("::"), (6, 0))
        for text in ("01.2.3.4", "1.2.3.256", "1.2.3", "1.2.3.4/8", "1.2.3.4%lo"):
            self.assertIsNone(parseAddress(text), text)
        for text in ("", ":", "1.2.3.4\n", "1.2.3.4.5", "\u0661.2.3.4", "::1%1", "1::2::3", "::1\n", "1"):
            self.assertIsNone(parseAddress(text), text)


_WORDS = st.sampled_from(
    "use sdp tcp both listen connect * *:* : 1.2.3.4/8:1-2 [::1]:80 # log destination file stderr min-level "
    "9 device shm0 d shm route / timeout retry 0.5 99999999999 - . % [ ] \n \r\n \0 \x0b \u2028".split(" ")
)
_TEXTS = st.one_of(
    st.text(),
    st.lists(_WORDS, max_size=40).map(" ".join),
    st.lists(_WORDS, max_size=10).map("".join),
    st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.text("0123456789.:/-*[]abcdef%", max_size=30).map("use tcp listen * {}".format),
)


class AnyTextTests(SynchronousTestCase):
    """
    Whatever is in a file.

    @cvar examples: how many.  L{tests.soak.test_configuration} has more.
    """

    examples = 80

    def test_onlyRulesError(self) -> None:
        """
        A file is read, or RulesError says where it is wrong.
        """

        @settings(max_examples=self.examples, deadline=None)
        @given(_TEXTS)
        def harmless(text: str) -> None:
            try:
                contents = parse(text, "f")
            except RulesError as error:
                for line in error.errors:
                    self.assertRegex(line, r"\Af:[0-9]+:[0-9]+: expected [\x20-\x7e]+\Z")
                    row, column = (int(part) for part in line.split(":")[1:3])
                    there = text.removeprefix("\ufeff").split("\n")[row - 1]
                    self.assertTrue(1 <= column <= len(there) + 1)
            else:
                for rule in contents.rules:
                    self.assertTrue(0 <= rule.firstPort <= 65535 and 0 <= rule.lastPort <= 65535)

        harmless()
