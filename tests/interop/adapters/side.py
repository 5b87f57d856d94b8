"""
One side of a session over reliable connections, on either side of the lab.

C{side.py verbs|messages|iwarp|stream active|passive DEVICE OWN-ADDRESS PEER PORT}: the active side sends,
writes, reads and adds, and prints what it found; the passive side prints what its memory has then, and
C{listens} before.  C{iwarp}: messages without atomics, which iWARP has none of.  C{stream}: a file and its
echo over C{sdp:}, then both once more, of registered memory.
"""

from __future__ import annotations

import hashlib
import struct
import sys
import time
from typing import Any

#: What a READ and a WRITE have: more than a READ of an adapter is cut to.
LONG = 70_000
#: The bytes that go through messages.
FILE = bytes(range(256)) * 4096
#: How long the messages are.
PIECE = 60_000
#: Where the passive side's memory has what: what is written, what is read, and a number.
_WRITTEN, _READ, _NUMBER = 9000, 10_000, 150_000
#: How long any step may take, in seconds.
PATIENCE = 60


def say(*words: object) -> None:
    """
    Print a line.
    """
    print(*words, flush=True)


class Verbs:
    """
    A side that uses verbs.
    """

    def __init__(self, role: str, device: str, here: str, there: str, port: str) -> None:
        from twisted_ib.verbs import pyverbs as verbs
        from twisted_ib.verbs.pyverbs import enums

        self.verbs, self.enums = verbs, enums
        if role == "passive":
            info = verbs.AddrInfo(here, None, port, None, enums.RDMA_PS_TCP, enums.RAI_PASSIVE)
            with verbs.CMID(info, device=device) as listener:
                listener.listen(3)
                say("listens")
                self.serve(listener.get_request())
        else:
            self.ask(verbs.CMID(verbs.AddrInfo(here, there, None, port, enums.RDMA_PS_TCP), device=device))

    def prepare(self, cmid: Any) -> None:
        """
        Make a queue pair, memory and receives.
        """
        verbs, enums = self.verbs, self.enums
        self.cmid, self.cq = cmid, verbs.CQ(verbs.Context(cmid=cmid), 64)
        cmid.create_qp(verbs.QPInitAttr(enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=verbs.QPCap(16, 16)))
        # Local write, remote write, read and atomics.
        self.mr = verbs.MR(cmid.pd, 200_000, 15)
        for number in range(4):
            piece = verbs.SGE(self.mr.buf + 1000 * number, 1000, self.mr.lkey)
            cmid.qp.post_recv(verbs.RecvWR(wr_id=100 + number, num_sge=1, sg=[piece]))

    def wait(self, count: int) -> list[Any]:
        """
        @return: so many completions, all good.
        """
        found: list[Any] = []
        end = time.monotonic() + PATIENCE
        while len(found) < count:
            found += self.cq.poll(8)[1]
            if time.monotonic() > end:
                raise SystemExit(f"only {len(found)} of {count} completions")
        wrong = [(each.wr_id, each.status) for each in found if each.status]
        if wrong:
            raise SystemExit(f"work requests failed: {wrong}")
        return found

    def post(self, opcode: int, offset: int, length: int, **fields: Any) -> None:
        """
        Post a send request.
        """
        verbs = self.verbs
        keyed = {name: fields.pop(name) for name in ("rdma", "atomic") if name in fields}
        piece = verbs.SGE(self.mr.buf + offset, length, self.mr.lkey)
        wr = verbs.SendWR(opcode=opcode, num_sge=1, sg=[piece], **fields)
        for name, arguments in keyed.items():
            getattr(wr, f"set_wr_{name}")(*arguments)
        self.cmid.qp.post_send(wr)

    def send(self, data: bytes, **fields: Any) -> None:
        """
        Send a message.
        """
        self.mr.write(data, len(data), 5000)
        self.post(fields.pop("opcode", self.enums.IBV_WR_SEND), 5000, len(data), **fields)

    def serve(self, cmid: Any) -> None:
        """
        The passive side.
        """
        verbs, mr = self.verbs, None
        self.prepare(cmid)
        mr = self.mr
        mr.write(b"x" * LONG, LONG, _READ)
        mr.write(struct.pack("=Q", 37), 8, _NUMBER)
        cmid.accept(verbs.ConnParam(resources=4, depth=4))
        self.send(struct.pack("!QI", mr.buf, mr.rkey))
        received = [each for each in self.wait(3) if each.opcode & 0x80]
        say("immediate", [each.imm_data for each in received if each.wc_flags & 2])
        say(mr.read(6, 0), mr.read(6, 1000), mr.read(7, _WRITTEN), *struct.unpack("=Q", mr.read(8, _NUMBER)))
        self.send(b"goodbye")
        # Its own completion, and the word that it has arrived, which an end may not overtake.
        self.wait(2)
        cmid.disconnect()
        cmid.close()

    def ask(self, cmid: Any) -> None:
        """
        The active side.
        """
        verbs, enums = self.verbs, self.enums
        self.prepare(cmid)
        mr = self.mr
        cmid.connect(verbs.ConnParam(resources=4, depth=4, retry=7, rnr_retry=7))
        self.wait(1)
        address, key = struct.unpack("!QI", mr.read(12, 0))
        mr.write(b"written", 7, 6000)
        self.post(enums.IBV_WR_RDMA_WRITE, 6000, 7, rdma=(key, address + _WRITTEN))
        self.post(enums.IBV_WR_RDMA_READ, 100_000, LONG, rdma=(key, address + _READ))
        self.wait(2)
        say("read", mr.read(LONG, 100_000) == b"x" * LONG)
        number = key, address + _NUMBER
        self.post(enums.IBV_WR_ATOMIC_FETCH_AND_ADD, 7000, 8, atomic=(*number, 5))
        self.post(enums.IBV_WR_ATOMIC_CMP_AND_SWP, 7008, 8, atomic=(*number, 42, 99))
        self.wait(2)
        say("atomics", *struct.unpack("=2Q", mr.read(16, 7000)))
        self.send(b"hello1")
        self.wait(1)
        self.send(b"hello2", opcode=enums.IBV_WR_SEND_WITH_IMM, imm_data=0x01020304)
        self.wait(2)
        say(mr.read(7, 1000))
        self.send(b"seen")
        cmid.disconnect()
        cmid.close()


def countCopies() -> list[int]:
    """
    @return: the lengths of what an adapter's path copies from now on, though it might not have to.
    """
    from twisted_ib.hca.fabric.hardware.adapterpath import ZERO_COPY_BYTES, AdapterPath

    place, copies = AdapterPath._place, []

    def counted(path: Any, header: bytes, payload: Any, length: int) -> int:
        if length >= ZERO_COPY_BYTES:
            copies.append(length)
        return place(path, header, payload, length)

    AdapterPath._place = counted
    return copies


def messages(hasAtomics: bool, role: str, device: str, here: str, there: str, port: str) -> None:
    """
    A side that uses messages of C{ib:}: a file and its echo, then WRITE, READ and, if there are any, atomics;
    and registered memory, of which an adapter copies nothing.
    """
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred, inlineCallbacks
    from twisted.internet.protocol import ClientFactory, Factory, Protocol

    from twisted_ib.rdma import Access, connectRDMA, listenRDMA

    reactor: Any = installed
    copies = countCopies()

    def lost(self: Any, reason: Any) -> None:
        say("lost", reason.type.__name__)
        reactor.callLater(0, reactor.stop)

    class Server(Protocol):
        transport: Any
        connectionLost = lost

        def connectionMade(self) -> None:
            rights = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
            if hasAtomics:
                rights |= Access.REMOTE_ATOMIC
            region = self.transport.registerMemory(LONG, rights)
            self.transport.write(struct.pack("!QI", region.address, region.remoteKey))

        def dataReceived(self, data: bytes) -> None:
            self.transport.write(data)

    class Client(Protocol):
        transport: Any
        connectionLost = lost
        region: tuple[int, int] = (0, 0)

        def connectionMade(self) -> None:
            self.digest, self.sent, self.got = hashlib.sha256(), 0, 0
            self.all: Deferred[None] = Deferred()

        def dataReceived(self, data: bytes) -> None:
            if self.region == (0, 0):
                self.region = struct.unpack("!QI", data)
            else:
                self.digest.update(data)
                self.got += len(data)
            if self.sent < len(FILE):
                piece = FILE[self.sent : self.sent + PIECE]
                self.sent += len(piece)
                self.transport.write(piece)
            elif self.got == len(FILE):
                say("echoed", self.digest.digest() == hashlib.sha256(FILE).digest())
                self.reach().addErrback(lambda failure: (say(failure), reactor.stop()))
            elif self.got == len(FILE) + PIECE:
                self.all.callback(None)

        @inlineCallbacks
        def reach(self) -> Any:
            transport = self.transport
            yield transport.rdmaWrite(b"w" * LONG, *self.region)
            data = yield transport.rdmaRead(LONG, *self.region)
            say("read", bytes(data) == b"w" * LONG)
            if hasAtomics:
                one = yield transport.fetchAdd(*self.region, 5)
                other = yield transport.compareAndSwap(*self.region, one + 5, 7)
                say("atomics", other - one)
            copies.clear()
            mine = transport.registerMemory(bytearray(b"r" * LONG))
            yield transport.rdmaWrite(mine, *self.region)
            yield transport.sendRegistered(mine, 0, PIECE)
            yield self.all
            data = yield transport.rdmaRead(LONG, *self.region)
            say("registered", bytes(data) == b"r" * LONG, copies)
            transport.loseConnection()

    class Clients(ClientFactory):
        protocol = Client

        def clientConnectionFailed(self, connector: Any, reason: Any) -> None:
            say("failed", reason.value)
            reactor.stop()

    if role == "passive":
        listenRDMA(reactor, int(port), Factory.forProtocol(Server), interface=here, device=device)
        say("listens")
    else:
        connectRDMA(reactor, there, int(port), Clients(), device=device)
    reactor.callLater(3 * PATIENCE, reactor.stop)
    reactor.run()


def stream(role: str, device: str, here: str, there: str, port: str) -> None:
    """
    A side of a stream: a file and its echo, then the same of registered memory, of which an adapter copies
    nothing.
    """
    from twisted.internet import reactor as installed
    from twisted.internet.protocol import ClientFactory, Factory, Protocol

    from twisted_ib.sdp import connectSDP, listenSDP

    reactor: Any = installed
    copies = countCopies()

    class Server(Protocol):
        transport: Any

        def connectionMade(self) -> None:
            self.got = bytearray()

        def dataReceived(self, data: bytes) -> None:
            self.got += data
            if len(self.got) <= len(FILE):
                self.transport.write(data)
            elif len(self.got) == 2 * len(FILE):
                self.register(self.got[len(FILE) :]).addCallback(lambda _: say("registered", copies))

        def register(self, data: Any) -> Any:
            copies.clear()
            return self.transport.writeRegistered(self.transport.registerMemory(bytearray(data)))

        def connectionLost(self, reason: Any = None) -> None:
            say("lost", reason.type.__name__)
            reactor.callLater(0, reactor.stop)

    class Client(Server):
        def connectionMade(self) -> None:
            self.got = bytearray()
            self.transport.write(FILE)

        def dataReceived(self, data: bytes) -> None:
            self.got += data
            if len(self.got) == len(FILE):
                say("echoed", self.isWhole(0))
                self.register(FILE).addCallback(lambda _: say("registered", copies))
            elif len(self.got) == 2 * len(FILE):
                say("echoed", self.isWhole(len(FILE)))
                self.transport.loseConnection()

        def isWhole(self, start: int) -> bool:
            return hashlib.sha256(self.got[start:]).digest() == hashlib.sha256(FILE).digest()

    class Clients(ClientFactory):
        protocol = Client

        def clientConnectionFailed(self, connector: Any, reason: Any) -> None:
            say("failed", reason.value)
            reactor.stop()

    if role == "passive":
        listenSDP(reactor, int(port), Factory.forProtocol(Server), interface=here, device=device)
        say("listens")
    else:
        connectSDP(reactor, there, int(port), Clients(), device=device)
    reactor.callLater(3 * PATIENCE, reactor.stop)
    reactor.run()


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "verbs":
        Verbs(*rest)
    elif kind == "stream":
        stream(*rest)
    else:
        messages(kind == "messages", *rest)
