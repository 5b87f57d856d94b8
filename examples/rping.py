"""
Ping-pong by RDMA READ and WRITE, as rdma-core's C{rping}.

    python rping.py -s -a 127.0.0.1                 the server, in one terminal
    python rping.py -c -a 127.0.0.1 -C 10 -v -V     the client, in another

The client tells where it has data, and the server READs them there; then where they shall go to, and the
server WRITEs them there.  The client's program does nothing meanwhile: its device serves whoever has the key
of the memory.  How the two are connected is in C{cmconnection.py}.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import closing, suppress
from struct import Struct
from threading import Thread

from cmconnection import Connection, Disconnected, calls, route

from twisted_ib.verbs.pyverbs import CMID, MR, PyverbsError, enums

NOTE = Struct("!QII")  # Sent to the peer: an address, the key of the memory there, its length.


class Pinger(Connection):
    """One end, with memory for notes and for data."""

    def __init__(self, cmid: CMID, options: Namespace) -> None:
        """Register the memory, and post the first receive."""
        super().__init__(cmid, "client" if options.c else "server", options.q, options.d)
        self.options = options
        self.inbox, self.outbox = cmid.reg_msgs(NOTE.size), cmid.reg_msgs(NOTE.size)
        self.start, self.data = cmid.reg_read(options.S), cmid.reg_write(options.S)
        self.done = (wc for wc in self.completions() if wc.opcode != enums.IBV_WC_SEND)
        self.receive(self.inbox)

    def tell(self, mr: MR) -> None:
        """Tell the peer of a region.  From the server this only says that it is done."""
        self.outbox.write(NOTE.pack(mr.buf, mr.rkey, mr.length), NOTE.size)
        self.post(self.outbox, enums.IBV_WR_SEND, NOTE.size)

    def hear(self) -> tuple[int, int, int]:
        """Wait for a note."""
        wc = next(self.done)
        if wc.byte_len != NOTE.size:
            raise ConnectionError(f"Received bogus data, size {wc.byte_len}")
        address, key, length = NOTE.unpack(self.inbox.read(NOTE.size, 0))
        self.receive(self.inbox)
        return address, key, length

    def serve(self) -> None:
        """Be a server, until the client disconnects."""
        with suppress(Disconnected), closing(self):
            self.accept()
            while True:
                address, key, length = self.hear()
                self.post(self.data, enums.IBV_WR_RDMA_READ, length, key, address)
                next(self.done)
                data = self.data.read(self.options.S, 0).partition(b"\0")[0]
                if self.options.v:
                    print("server ping data:", data.decode("latin-1"), flush=True)
                self.tell(self.data)
                address, key, _ = self.hear()
                self.post(self.data, enums.IBV_WR_RDMA_WRITE, len(data) + 1, key, address)
                next(self.done)
                self.tell(self.data)


def serve(options: Namespace) -> None:
    """Serve one client, or with -P all that come, each in a thread."""
    for cmid in calls(options.a, options.p, options.d):
        pinger = Pinger(cmid, options)
        if not options.P:
            return pinger.serve()
        Thread(target=pinger.serve, daemon=True).start()


def ping(options: Namespace) -> None:
    """Be a client."""
    with closing(Pinger(route(options.I, options.a or "127.0.0.1", options.p), options)) as pinger:
        pinger.connect()
        for n in range(options.C or sys.maxsize):
            letters = bytes(65 + (n + i) % 58 for i in range(options.S))
            data = (b"rdma-ping-%d: " % n + letters)[: options.S - 1] + b"\0"
            pinger.start.write(data, len(data))
            for mr in (pinger.start, pinger.data):
                pinger.tell(mr)
                pinger.hear()
            echo = pinger.data.read(len(data), 0)
            if options.V and echo != data:
                raise ConnectionError("data mismatch!")
            if options.v:
                print("ping data:", echo[:-1].decode())


if __name__ == "__main__":
    parser = ArgumentParser(description="Ping-pong by RDMA READ and WRITE.")
    add, role = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    role.add_argument("-s", action="store_true", help="be the server")
    role.add_argument("-c", action="store_true", help="be the client")
    add("-a", metavar="ADDR", help="the server's address (default: server any, client 127.0.0.1)")
    add("-p", metavar="PORT", type=int, default=7174, help="the server's port (default 7174)")
    add("-I", metavar="ADDR", help="the client's address")
    add("-S", metavar="SIZE", type=int, default=64, help="octets of data, 26 to 65535 (default 64)")
    add("-C", metavar="COUNT", type=int, default=0, help="pings (default: without end)")
    add("-v", action="store_true", help="print the data")
    add("-V", action="store_true", help="have the client validate them")
    add("-d", action="store_true", help="print what goes on")
    add("-P", action="store_true", help="have the server go on with the next client, and several at a time")
    add("-q", action="store_true", help="with a queue pair that is not the CM's")
    options = parser.parse_args()
    if not 26 <= options.S <= 65535 or options.C < 0:
        parser.error(f"Invalid size {options.S} (valid range is 26 to 65535) or count {options.C}")
    try:
        (serve if options.s else ping)(options)
    except (PyverbsError, OSError, KeyboardInterrupt) as error:
        sys.exit(f"{parser.prog}: {str(error) or 'interrupted'}")
