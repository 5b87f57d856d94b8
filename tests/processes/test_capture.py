"""
Captures of two processes that talk to each other: each file makes sense alone, and they tell
the same story.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.hca.capture.tcpstreams import connectionsOf
from tests.hca.capture.test_capture import PARTS
from tests.hca.fabric.iwarp.protocol.streams import directionsOf
from tests.processes.processes import ProcessTestCase
from tests.support.captures import IWARP_WRONG, TSHARK, Frame, Observer, read, recorded, tshark


def requests(frames: list[Frame], outbound: bool) -> list[bytes]:
    """
    @return: The packets of requests that one direction has, from the BTH on.
    """
    return [
        bytes(frame.datagram.body)
        for frame in frames
        if frame.outbound is outbound and frame.packet.row.isRequest and frame.packet.bth.destination != 1
    ]


class CaptureTests(ProcessTestCase):
    """
    A server that offers memory, and a client.
    """

    program = "tests.processes.programs.messenger.Messenger"

    def test_both(self) -> None:
        """
        Messages, WRITEs from memory that the other process maps, READs, atomics; then the end.
        """
        folder = Path(self.runDirectory).parent
        variables = {"TWISTED_IB_CAPTURE": str(folder / "%p.pcapng")}
        server, client = (self.spawn(environment=variables) for _ in range(2))
        port = server.ask("listen", endpoint="ib:0:interface=127.0.0.1")
        client.ask("connect", endpoint=f"ib:127.0.0.1:{port}")
        sizes = [0, 1, 4096, 65536] * 5
        client.ask("write", sizes=sizes)
        self.assertEqual(client.ask("add", count=50), 49)
        self.assertTrue(client.ask("bulk", rounds=1))
        server.ask("heard", count=len(sizes))
        client.ask("close")
        for child in (server, client):
            self.assertEqual(child.event("lost")["reason"], "ConnectionDone")
        for child in (client, server):
            child.end()
        files = {child: folder / f"{child.pid}.pcapng" for child in (server, client)}
        seen = {child: read(file) for child, file in files.items()}
        for child, frames in seen.items():
            observer = Observer().see(frames)
            # Between two such processes the REP is enough.
            self.assertEqual(observer.messages[:2], ["REQ", "REP"])
            self.assertNotIn("RTU", observer.messages)
            self.assertLessEqual(observer.unanswered, 1)
            self.assertEqual(observer.counts["RC FetchAdd"], 50)
            self.assertGreater(observer.counts["RC WRITE Middle"], 0)
            self.assertGreater(observer.counts["RC READ Response Middle"], 0)
            self.assertEqual({frame.outbound for frame in frames}, {True, False})
            if TSHARK is not None:
                self.assertEqual(tshark(files[child], f"_ws.malformed && !({PARTS})"), [])
        # The same requests, sequence numbers included.
        self.assertEqual(requests(seen[client], True), requests(seen[server], False))
        self.assertEqual(requests(seen[server], True), requests(seen[client], False))
        self.assertFalse(os.path.exists(folder / f"{os.getpid()}.pcapng"))


class StreamCaptureTests(ProcessTestCase):
    """
    The same over iWARP, whose captures have segments of TCP.
    """

    program = "tests.processes.programs.messenger.Messenger"

    def test_both(self) -> None:
        """
        Messages, WRITEs and READs, until one READ is refused.
        """
        folder = Path(self.runDirectory).parent
        variables = {"TWISTED_IB_CAPTURE": str(folder / "%p.pcapng")}
        server, client = (self.spawn(environment=variables) for _ in range(2))
        port = server.ask("listen", endpoint="ib:0:interface=127.0.0.1:device=iwarp0")
        client.ask("connect", endpoint=f"ib:127.0.0.1:{port}:device=iwarp0")
        sizes = [0, 1, 4096, 65000] * 5
        client.ask("write", sizes=sizes)
        self.assertTrue(client.ask("bulk", rounds=1, immediate=False))
        server.ask("heard", count=len(sizes))
        server.ask("revoke")
        self.assertEqual(client.ask("read"), "REM_ACCESS_ERR")
        for child in (client, server):
            child.event("lost")
            child.end()
        streams = []
        for child in (server, client):
            file = folder / f"{child.pid}.pcapng"
            (connection,) = connectionsOf(frame for *_, frame in recorded(file))
            streams.append((connection.client.octets, connection.server.octets))
            counts = [direction.counts for direction in directionsOf(connection)]
            # A READ of data, the refused one, and one of no bytes for each batch that waits for the peer.
            self.assertGreaterEqual(counts[0]["READ_REQUEST"], 3)
            self.assertEqual(counts[1]["TERMINATE"], 1)
            if TSHARK is not None:
                self.assertEqual(tshark(file, IWARP_WRONG), [])
        self.assertEqual(*streams)
