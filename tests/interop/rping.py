"""
C{ib-ping} and C{rping}, each the other's server.
"""

from __future__ import annotations

import sys
import time
from typing import TypeVar

from tests.interop.case import DEVICE, LISTENING, TROUBLE, GuestTestCase, InteropTestCase, Program
from tests.interop.lab.machine import Ended
from tests.interop.lab.wire import Seen
from tests.soak.killed.sharers import NOBODY
from tests.support.commands import PATH
from tests.support.waiting import HANG_SECONDS

#: Octets of a round; the first and the last are rping's limits.
SIZES = (23, 64, 1000, 5000, 65535)
ROUNDS = 100
#: Where nobody listens, and where an idle client's server does.
UNUSED, PORT = "7999", "7176"
#: How long a round of tests may take: a guest that is emulated is slow.
SECONDS = 2 * HANG_SECONDS
#: The status of a process of the guest that is killed after its time.
KILLED = 124
#: How soon a refused connect has to end, and how soon a process whose peer is gone.
REFUSED_SECONDS, GONE_SECONDS = 8, HANG_SECONDS
#: The same where another process has the dead one's address.
TOLD_SECONDS = 5
#: Sizes that fit Ethernet's usual frames, and its largest.
USUAL, LARGE = (1500, 1024), (9000, 4096)
#: Processes of ours that share an address, and the rounds of each as a server, and as a client.
SHARERS, SHARED_ROUNDS = 16, 50
#: Ports of their servers, and of those in the guest.
SHARERS_PORT, SHARED_PORT = 7200, 7300
#: How often a server is killed whose client is idle.
DEATHS = 20
#: Takes one client, and what that asks with, and answers nothing.
_SILENT = """
import sys
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import enums

device, here, port = sys.argv[1:]
info = verbs.AddrInfo(here, None, port, None, enums.RDMA_PS_TCP, enums.RAI_PASSIVE)
with verbs.CMID(info, device=device) as listener:
    listener.listen(1)
    print("listens")
    cmid = listener.get_request()
    cq = verbs.CQ(verbs.Context(cmid=cmid), 4)
    cmid.create_qp(verbs.QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=verbs.QPCap(1, 1)))
    mr = verbs.MR(cmid.pd, 4096, enums.IBV_ACCESS_LOCAL_WRITE)
    cmid.qp.post_recv(verbs.RecvWR(1, 1, [verbs.SGE(mr.buf, 4096, mr.lkey)]))
    cmid.accept(verbs.ConnParam(resources=1, depth=1))
    while not cq.poll(1)[0]:
        pass
    print("is asked")
    sys.stdin.read()
"""
#: Is a server, and a client when it is told to.
_BOTH = """
from threading import Thread
from twisted_ib.tools.ping.ping import main

here, there, own, other, *options = sys.argv[1:]
ended = []

def run(*arguments):
    ended.append(main([*arguments, *options]))

server = Thread(target=run, args=("-s", "-a", here, "-p", own, "-d"))
server.start()
sys.stdin.readline()
run("-c", "-a", there, "-I", here, "-p", other)
server.join()
sys.exit(ended != [0, 0])
"""

_Rounds = TypeVar("_Rounds", bound="type[Rounds]")


def isDone(ended: Ended) -> bool:
    """
    @return: whether an C{rping} of Linux has done its rounds, and failed at the very end: one of its threads
        may still read from what the other has closed.
    """
    return ended.errors.endswith("rdma_get_cm_event: Bad file descriptor\n")


class RPingPrograms(GuestTestCase):
    """
    The programs of both sides.
    """

    def client(self, *options: str) -> Program:
        """
        @return: a client on this side.
        """
        return self.ping("-c", "-a", self.there, "-I", self.host, *options)

    def server(self, *options: str) -> Program:
        """
        @return: a server on this side, which listens by now.
        """
        server = self.ping("-s", "-a", self.host, "-d", *options)
        self.until(server, "waits for clients")
        return server

    def remoteServer(self, *options: str) -> int:
        """
        @return: a server in the guest, which listens by now.
        """
        return self.listening(f"rping -s -a {self.there} {' '.join(options)}")

    def remoteClient(self, *options: str) -> int:
        """
        @return: a client in the guest.
        """
        return self.start(f"rping -c -a {self.host} {' '.join(options)}")

    def oneSentence(self, ended: Ended) -> None:
        """
        Check that a process of this side has said why it failed, in one sentence.
        """
        said = [line for line in ended.errors.splitlines() if "waits for clients" not in line]
        self.assertEqual(len(said), 1, ended.errors)

    def told(self, number: int) -> None:
        """
        Check that a client in the guest ends, as it is told that the connection does.
        """
        ended = self.guest.finish(number, TOLD_SECONDS)
        self.assertNotEqual(ended.status, KILLED, ended.text)
        self.assertIn("DISCONNECT", ended.text)

    def done(self, number: int) -> None:
        """
        Check that a client in the guest has done its rounds.
        """
        ended = self.guest.finish(number, SECONDS)
        if not isDone(ended):
            self.succeeded(ended)


class RPingTestCase(RPingPrograms, InteropTestCase):
    """
    Common parts of all cases with rxe.
    """


class Rounds(RPingPrograms):
    """
    Rounds with all sizes.
    """

    def look(self, size: int) -> None:
        """
        Look at the frames of the rounds.

        @param size: of a round, octets.
        """
        raise NotImplementedError

    def roundsOfClient(self, size: int) -> None:
        """
        Do them as client of C{rping -s}.
        """
        options = ("-C", str(ROUNDS), "-S", str(size), "-V")
        server = self.remoteServer(*options)
        self.succeeded(self.client(*options).finish(SECONDS))
        self.succeeded(self.guest.finish(server, GONE_SECONDS))
        self.look(size)

    def roundsOfServer(self, size: int) -> None:
        """
        Do them as server of C{rping -c}.
        """
        options = ("-C", str(ROUNDS), "-S", str(size), "-V")
        server = self.server(*options)
        self.done(self.remoteClient(*options))
        self.succeeded(server.finish(GONE_SECONDS))
        self.look(size)


def addSizes(case: _Rounds) -> _Rounds:
    """
    Make one test per size and role.

    @param case: the class that gets them.
    """
    for size in SIZES:

        def client(self: Rounds, size: int = size) -> None:
            self.roundsOfClient(size)

        def server(self: Rounds, size: int = size) -> None:
            self.roundsOfServer(size)

        for role, test in (("client", client), ("server", server)):
            test.__doc__ = f"As {role}, with {size} octets a round."
            setattr(case, f"test_{role}{size}", test)
    return case


class RoundsTestCase(Rounds, InteropTestCase):
    """
    Rounds with rxe.

    @cvar frames: the largest Ethernet frames, and the path MTU that follows.
    """

    frames = USUAL

    def setUp(self) -> None:
        """
        Have frames of that size.
        """
        self.mtu = self.frames[0]
        super().setUp()

    def look(self, size: int) -> None:
        packets = self.packets()
        data = [each for each in packets if "READ Response" in each.name or "WRITE" in each.name]
        self.assertEqual(max(len(each.packet.payload) for each in data), min(size, self.frames[1]))
        parts = -(-size // self.frames[1])
        self.assertGreaterEqual(len(data), 2 * ROUNDS * parts)


@addSizes
class RoundsTests(RoundsTestCase):
    """
    IPv4, path MTU 1024.
    """


@addSizes
class RoundsIPv6Tests(RoundsTestCase):
    """
    IPv6, path MTU 1024.
    """

    ipv6 = True


@addSizes
class RoundsLargeTests(RoundsTestCase):
    """
    IPv4, path MTU 4096.
    """

    frames = LARGE


@addSizes
class RoundsLargeIPv6Tests(RoundsTestCase):
    """
    IPv6, path MTU 4096.
    """

    frames, ipv6 = LARGE, True


class DisturbedTests(RPingTestCase):
    """
    The guest's packets are lost, duplicated, late or reordered: all rounds are done, and validated.
    """

    options = ("-C", "20", "-S", "20000", "-V")

    def _disturbed(self, how: str) -> None:
        """
        Do the rounds in both roles.

        @param how: what befalls packets, as C{tc} has it.
        """
        self.lost = True  # rxe hears what it has sent itself more than once.
        self.trouble = set(TROUBLE)
        self.guest.must(f"modprobe sch_netem; tc qdisc replace dev eth0 root netem {how}")
        self.addCleanup(self.guest.must, "tc qdisc del dev eth0 root")
        remote = self.remoteServer(*self.options)
        self.succeeded(self.client(*self.options).finish(SECONDS))
        self.succeeded(self.guest.finish(remote, GONE_SECONDS))
        server = self.server(*self.options)
        self.done(self.remoteClient(*self.options))
        self.succeeded(server.finish(GONE_SECONDS))

    def test_loss(self) -> None:
        """
        One packet in fifty is lost.
        """
        self._disturbed("loss 2%")

    def test_duplication(self) -> None:
        """
        One in ten comes twice.
        """
        self._disturbed("duplicate 10%")

    def test_damage(self) -> None:
        """
        One in fifty has a bit turned over, which its invariant CRC tells.
        """
        self.sound = False  # Not all that is captured is what was sent.
        self._disturbed("corrupt 2%")

    def test_reordering(self) -> None:
        """
        One in a hundred overtakes others.
        """
        self._disturbed("delay 2ms reorder 1%")


class SharedTests(RPingTestCase):
    """
    Processes of ours that share an address, as a user without rights.
    """

    rights = NOBODY

    def test_both(self) -> None:
        """
        Each serves a client in the guest and is a client of a server there, all at the same time; all rounds
        are done, and validated.
        """
        options = "-C", str(SHARED_ROUNDS), "-V"
        numbers = range(SHARERS)
        servers = [self.start(self._guests("s", self.there, SHARED_PORT + each)) for each in numbers]
        count = "rdma resource show cm_id | grep -c 'state LISTEN ps TCP'"
        self.guest.must(f"until [ $({count}) = {SHARERS} ]; do sleep 0.1; done", LISTENING)
        ours = []
        for each in numbers:
            ports = str(SHARERS_PORT + each), str(SHARED_PORT + each)
            command = [sys.executable, "-c", PATH + _BOTH, self.host, self.there, *ports, *options]
            ours.append(self.program(command))
        for one in ours:
            self.until(one, "waits for clients")
        clients = [self.start(self._guests("c", self.host, SHARERS_PORT + each)) for each in numbers]
        for one in ours:
            one.say("")
        for number in clients:
            self.done(number)
        for one in ours:
            self.succeeded(one.finish(SECONDS))
        for number in servers:
            self.succeeded(self.guest.finish(number, SECONDS))

    def _guests(self, role: str, address: str, port: int) -> str:
        """
        @return: the command of an C{rping} in the guest.
        """
        return f"rping -{role} -a {address} -p {port} -C {SHARED_ROUNDS} -V"


class RefusedTests(RPingTestCase):
    """
    A port without a listener: REJ with reason 8.
    """

    def _rejects(self, ours: bool) -> list[Seen]:
        """
        @return: the management datagrams of one side that are REJ.
        """
        # MAD: the attribute's number is at 16, what it says from 24 on.
        mads = [each for each in self.packets() if each.ours is ours and each.packet.bth.destination == 1]
        return [each for each in mads if bytes(each.packet.payload[16:18]) == b"\0\x12"]

    def _reason(self, ours: bool) -> int:
        """
        @return: the reason that one side gives, once.
        """
        (reject,) = self._rejects(ours)
        return int.from_bytes(bytes(reject.packet.payload[24 + 10 : 24 + 12]), "big")

    def test_client(self) -> None:
        """
        C{ib-ping} says so at once, in one sentence.
        """
        # Its start is not the client's time.
        self.neighbour()
        began = time.monotonic()
        ended = self.client("-p", UNUSED, "-C", "1").finish(SECONDS)
        self.assertLess(time.monotonic() - began, REFUSED_SECONDS)
        self.assertNotIn(ended.status, (0, -1))
        self.assertEqual(ended.output, "")
        self.assertEqual(len(ended.errors.splitlines()), 1, ended.errors)
        self.assertIn("refused", ended.errors)
        self.assertEqual(self._reason(False), 8)

    def test_server(self) -> None:
        """
        C{rping} hears so from a device on which there are other services.
        """
        server = self.server("-C", "1")
        ended = self.guest.finish(self.remoteClient("-p", UNUSED, "-C", "1"), REFUSED_SECONDS)
        self.assertIn("REJECTED, error 8", ended.output + ended.errors)
        self.assertEqual(self._reason(True), 8)
        self.assertIsNone(server.process.poll())


class RefusedIPv6Tests(RefusedTests):
    """
    IPv6.
    """

    ipv6 = True


class GoneTests(RPingTestCase):
    """
    One side is killed in the middle of its rounds.
    """

    options = ("-C", "1000000", "-S", "20000", "-V")

    def setUp(self) -> None:
        """
        The last packets may find nobody, or no answer.
        """
        super().setUp()
        self.lost = True
        self.trouble = {"retry_exceeded_err", "send_err", "rcvd_seq_err", "out_of_seq_request"}

    def _rounds(self) -> None:
        """
        Wait until they go on.
        """
        deadline = time.monotonic() + GONE_SECONDS
        while self.lab.counters()["rcvd_pkts"] < 500:
            assert time.monotonic() < deadline, "there are no rounds"

    def _said(self, ended: Ended) -> None:
        """
        Check that a process of this side has failed, with one sentence.
        """
        self.assertNotIn(ended.status, (0, -1), ended.text)
        self.oneSentence(ended)

    def test_remoteServer(self) -> None:
        """
        The guest's server: its kernel disconnects, and our client hears it.
        """
        server = self.remoteServer(*self.options)
        client = self.client(*self.options)
        self._rounds()
        self.guest.kill(server)
        self._said(client.finish(GONE_SECONDS))

    def test_remoteClient(self) -> None:
        """
        The guest's client.
        """
        server = self.server(*self.options)
        client = self.remoteClient(*self.options)
        self._rounds()
        self.guest.kill(client)
        self._said(server.finish(GONE_SECONDS))

    def _again(self) -> None:
        """
        A new pair of processes has its rounds, while the kernel still sends to the one that is gone.
        """
        options = ("-C", "10", "-V")
        server = self.listening(f"rping -s -a {self.there} -p 7175 {' '.join(options)}")
        self.succeeded(self.client("-p", "7175", *options).finish(SECONDS))
        self.succeeded(self.guest.finish(server, GONE_SECONDS))

    def test_client(self) -> None:
        """
        Our client: nobody says so to the guest.  The next process with this address works at once.
        """
        self.remoteServer(*self.options)
        client = self.client(*self.options)
        self._rounds()
        client.kill()
        self._again()

    def test_server(self) -> None:
        """
        Our server.
        """
        server = self.server(*self.options)
        self.remoteClient(*self.options)
        self._rounds()
        server.kill()
        self._again()

    def test_neighbour(self) -> None:
        """
        Our server, while another process of ours has the address: that says so to the guest.
        """
        neighbour = self.server("-p", "7175")
        server = self.server(*self.options)
        client = self.remoteClient(*self.options)
        self._rounds()
        server.kill()
        self.told(client)
        self.assertIsNone(neighbour.process.poll())

    def test_link(self) -> None:
        """
        The whole guest, for our client: it gives up.
        """
        self.remoteServer(*self.options)
        client = self.client(*self.options)
        self._rounds()
        self.guest.must("ip link set eth0 down")
        self._said(client.finish(GONE_SECONDS))
        self.guest.must(f"ip link set eth0 up; ip addr add {self.guest.ipv6}/64 dev eth0 nodad")


class IdleTests(RPingTestCase):
    """
    Our server is killed, and its client in the guest waits for it: an idle Linux peer asks nothing.
    """

    def setUp(self) -> None:
        """
        The last acknowledgment may come late.
        """
        super().setUp()
        self.lost = True

    def _silent(self) -> Program:
        """
        @return: a server that will answer nothing, and listens by now.
        """
        server = self.program([sys.executable, "-c", PATH + _SILENT, DEVICE, self.host, PORT])
        self.until(server, "listens")
        return server

    def _idle(self, server: Program) -> int:
        """
        @return: its client, which has asked.
        """
        client = self.remoteClient("-p", PORT, "-C", "1")
        self.until(server, "is asked")
        return client

    def test_neighbour(self) -> None:
        """
        A process that shares the address, and does nothing else, tells the client.
        """
        neighbour = self.server("-p", "7175")
        for _ in range(DEATHS):
            server = self._silent()
            client = self._idle(server)
            server.kill()
            self.told(client)
        self.assertIsNone(neighbour.process.poll())

    def test_restarted(self) -> None:
        """
        The server that is started again tells it.
        """
        server = self._silent()
        for _ in range(DEATHS):
            client = self._idle(server)
            server.kill()
            server = self._silent()
            self.told(client)
