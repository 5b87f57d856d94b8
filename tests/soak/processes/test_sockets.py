"""
Blocking sockets with much traffic: a web server and client of the standard library in all combinations, each
in a process of its own, and sixteen threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Barrier
from typing import Any

from tests.blocking.case import BlockingTestCase, echo
from tests.support.descriptors import exactly
from tests.support.waiting import HANG_SECONDS

#: Requests of one combination.
REQUESTS = 1000
_ROOT = Path(__file__).resolve().parents[3]

_SERVER = """
import sys
if {patched}:
    from twisted_ib.blocking.patch import patch
    patch()
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = self.path.encode() * (1 + int(self.path[1:]) % 97 * 100)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
_CLIENT = """
import hashlib, json, sys
if {patched}:
    from twisted_ib.blocking.patch import patch
    patch()
import http.client

digest, carried = hashlib.sha256(), set()
for n in range({requests}):
    if n % 50 == 0:
        client = http.client.HTTPConnection("127.0.0.1", {port})
    client.request("GET", "/%d" % n)
    digest.update(client.getresponse().read())
    carried.add(getattr(client.sock, "sdp", None) is not None)
print(json.dumps([digest.hexdigest(), sorted(carried)]))
"""


class HTTPTests(BlockingTestCase):
    """
    C{http.server} and C{http.client}.
    """

    def start(self, program: str) -> subprocess.Popen[str]:
        """
        Start a program.
        """
        search = os.pathsep.join((str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
        environment = {**os.environ, "PYTHONPATH": search}
        command = [sys.executable, "-c", program]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def test_combinations(self) -> None:
        """
        All four give the same bytes; SDP carries them where both ends are patched.
        """
        wanted = hashlib.sha256()
        for n in range(REQUESTS):
            wanted.update(b"/%d" % n * (1 + n % 97 * 100))
        for serving in (True, False):
            server = self.start(_SERVER.format(patched=serving))
            self.addCleanup(server.wait, HANG_SECONDS)
            self.addCleanup(server.kill)
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for asking in (True, False):
                client = self.start(_CLIENT.format(patched=asking, requests=REQUESTS, port=port))
                digest, carried = json.loads(client.communicate(timeout=5 * HANG_SECONDS)[0])
                self.assertEqual(digest, wanted.hexdigest())
                self.assertEqual(carried, [serving and asking])


class ThreadTests(BlockingTestCase):
    """
    Many threads on one loop.
    """

    def test_echoes(self) -> None:
        """
        Sixteen threads send a thousand messages each to as many that send them back.
        """
        listener = self.server()
        barrier = Barrier(16)

        def ask(n: int) -> Any:
            connection = self.client(listener)
            barrier.wait(HANG_SECONDS)
            for k in range(1000):
                message = b"%d %d" % (n, k)
                connection.sendall(message)
                if exactly(connection, len(message)) != message:
                    return "another's message"
            isOffloaded = connection.sdp is not None
            connection.close()
            return isOffloaded

        served = [self.inThread(echo, listener) for _ in range(16)]
        asked = [self.inThread(ask, n) for n in range(16)]
        self.assertEqual([each.result(5 * HANG_SECONDS) for each in asked], [True] * 16)
        for each in served:
            each.result(HANG_SECONDS)
