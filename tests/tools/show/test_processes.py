"""
Tests for L{twisted_ib.tools.show.processes}.
"""

from __future__ import annotations

import os
import socket
import subprocess
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import readUntil
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.tools.show import processes
from twisted_ib.tools.show.processes import ANYWHERE, UNKNOWN, programOf, tcpRows

NONE: dict[str, Any] = {**dict.fromkeys(COLUMNS), "provider": "tcp"}


class TCPTests(SynchronousTestCase):
    """
    TCP sockets as the kernel shows them: those of this process.
    """

    def pair(self, host: str, family: int) -> tuple[socket.socket, socket.socket, socket.socket]:
        """
        @return: a listening socket, and the two ends of a connection to it.
        """
        listening = socket.create_server((host, 0), family=family)
        self.addCleanup(listening.close)
        near = socket.create_connection(listening.getsockname()[:2])
        self.addCleanup(near.close)
        far, _ = listening.accept()
        self.addCleanup(far.close)
        self.ends = {None, *(self.text(each.getsockname()) for each in (near, far))}
        return listening, near, far

    def text(self, name: Any) -> str:
        """
        @return: The address of a socket, as a row has it.
        """
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def rows(self, count: int, reasons: Any, *ports: int) -> list[dict[str, Any]]:
        """
        @return: the rows of sockets with one of these local ports, of a reading that has so many: while other
            sockets come and go, /proc/net/tcp may leave one out.  A connection to elsewhere may have the same
            local port.
        """

        def read() -> list[dict[str, Any]]:
            found = [dict(zip(COLUMNS, row, strict=True)) for row in tcpRows(os.getpid(), reasons) or ()]
            return [
                row
                for row in found
                if row["remote"] in self.ends and int(str(row["local"]).rpartition(":")[2]) in ports
            ]

        return readUntil(read, lambda rows: len(rows) >= count)

    def test_sockets(self) -> None:
        """
        A listener and both ends of a connection, of IPv4 and of IPv6, with what waits in them.
        """
        for host, family, text in (
            ("127.0.0.1", socket.AF_INET, "127.0.0.1"),
            ("::1", socket.AF_INET6, "[::1]"),
        ):
            listening, near, _far = self.pair(host, family)
            here, there = listening.getsockname()[1], near.getsockname()[1]
            rows = self.rows(3, [], here, there)
            found = {(row["kind"], row["local"], row["remote"], row["state"]) for row in rows}
            self.assertEqual(
                found,
                {
                    ("listener", f"{text}:{here}", None, "LISTEN"),
                    ("connection", f"{text}:{here}", f"{text}:{there}", "ESTABLISHED"),
                    ("connection", f"{text}:{there}", f"{text}:{here}", "ESTABLISHED"),
                },
            )
            self.assertEqual({row["rule"] for row in self.rows(2, [], here)}, {UNKNOWN})

    def test_reasons(self) -> None:
        """
        Each has the reason of its own row; an accepted connection that of its port, without the port's times;
        others that of the row about the rest.
        """
        listening, near, _far = self.pair("127.0.0.1", socket.AF_INET)
        here, there = listening.getsockname()[1], near.getsockname()[1]
        port, client = f"127.0.0.1:{here}", f"127.0.0.1:{there}"
        reasons = [
            {**NONE, "kind": "listener", "local": port, "rule": "/a:1", "fallback": "f", "asked": 1.0},
            {**NONE, "kind": "connection", "local": "*:0", "remote": "*:0", "rule": "/a:3"},
        ]
        rule = {
            (row["kind"], row["local"]): (row["rule"], row["asked"])
            for row in self.rows(3, reasons, here, there)
        }
        self.assertEqual(
            rule,
            {
                ("listener", port): ("/a:1", 1.0),
                ("connection", port): ("/a:1", None),
                ("connection", client): ("/a:3", None),
            },
        )
        reasons.append(
            {**NONE, "kind": "connection", "local": client, "remote": port, "rule": "/a:2", "asked": 2.0}
        )
        self.assertEqual(
            [(row["rule"], row["asked"]) for row in self.rows(1, reasons, there)], [("/a:2", 2.0)]
        )

    def test_peers(self) -> None:
        """
        A row may be about all connections to a peer; that of the connection itself goes before it, as does
        the port's that has accepted one.
        """
        listening, near, _far = self.pair("127.0.0.1", socket.AF_INET)
        here, there = listening.getsockname()[1], near.getsockname()[1]
        port, client = f"127.0.0.1:{here}", f"127.0.0.1:{there}"
        row = {**NONE, "kind": "connection", "provider": "tcp"}
        reasons = [{**row, "local": ANYWHERE, "remote": port, "rule": "/a:1"}]
        self.assertEqual([row["rule"] for row in self.rows(1, reasons, there)], ["/a:1"])
        self.assertEqual({row["rule"] for row in self.rows(2, reasons, here)}, {UNKNOWN})
        own = {**row, "local": client, "remote": port, "rule": "/a:2"}
        self.assertEqual([row["rule"] for row in self.rows(1, [*reasons, own], there)], ["/a:2"])
        accepting = [
            {**row, "local": ANYWHERE, "remote": client, "rule": "/a:3"},
            {**row, "kind": "listener", "local": port, "rule": "/a:4"},
        ]
        self.assertEqual({row["rule"] for row in self.rows(2, accepting, here)}, {"/a:4"})

    def test_halfOfSDP(self) -> None:
        """
        A port that answers TCP and SDP has one rule for both; the half of SDP may be all that the page has.
        """
        listening, near, _far = self.pair("127.0.0.1", socket.AF_INET)
        here, there = listening.getsockname()[1], near.getsockname()[1]
        port = f"127.0.0.1:{here}"
        half = {**NONE, "kind": "listener", "provider": "sdp", "local": port, "rule": "/a:1", "asked": 1.0}
        for reasons, rule in (
            ([half], "/a:1"),
            ([{**half, "provider": "tcp", "rule": "/a:2", "asked": None}, half], "/a:2"),
        ):
            found = {
                (row["kind"], row["local"], row["provider"], row["rule"], row["asked"])
                for row in self.rows(2, reasons, here)
            }
            self.assertEqual(
                found,
                {
                    ("listener", port, "tcp", rule, None),
                    ("connection", port, "tcp", rule, None),
                },
            )
        self.assertEqual({row["rule"] for row in self.rows(1, [half], there)}, {UNKNOWN})

    def test_gone(self) -> None:
        """
        A process that is not there has none, and no name.
        """
        self.assertIsNone(tcpRows(1 << 30, []))
        self.assertEqual(programOf(1 << 30), "")

    def test_commandLine(self) -> None:
        """
        No more is read of a command line than is needed for a name: the process chooses its length.
        """
        child = subprocess.Popen(["cat", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(child.communicate)
        assert child.stdin is not None and child.stdout is not None
        # It has its own name when it answers, and not yet when Popen returns.
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        self.assertEqual(programOf(child.pid), "cat")
        self.patch(processes, "COMMAND_LINE", 2)
        self.assertEqual(programOf(child.pid), "ca")
