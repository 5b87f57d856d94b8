"""
Programs of verbs whose connections the communication manager makes, against C{rdma_client} and
C{rdma_server}; and RC ATOMIC WRITE, by one program on both sides.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.trial.unittest import SkipTest

from tests.interop.case import DEVICE, InteropTestCase, Program
from tests.interop.lab.images import OWN
from tests.interop.lab.lab import RXE
from tests.interop.lab.wire import Seen
from tests.support.commands import PATH
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.wire import Packet, decodeMAD
from twisted_ib.hca.wire.cm.messages import DREP, DREQ, REJ, RTU

#: How often each ending is tried.
SESSIONS = 3
#: By how much the guest's packets for QP 1 are late where its data overtake them.
LATE = "500ms"
#: Of a packet of IPv4, from the network header on: the BTH's destination QP (IBTA vol. 1 9.2).
_DESTINATION = 20 + 8 + 4

#: One side of a connection with C{rdma_client} or C{rdma_server}: the client sends 16 octets, the server
#: answers with as many.  Then it disconnects, or ends without that while the identifier is alive: in a
#: global, or in the frame of an exception.
_SIDE = """
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import enums

role, here, there, ending = sys.argv[1:]
attr = verbs.QPInitAttr(enums.IBV_QPT_RC, cap=verbs.QPCap(max_send_wr=1, max_recv_wr=1), sq_sig_all=1)

def serve():
    channel = verbs.CMEventChannel()
    listener = verbs.CMID(channel)
    listener.bind_addr(verbs.AddrInfo(here, None, "7471", None, enums.RDMA_PS_TCP, enums.RAI_PASSIVE))
    listener.listen(1)
    print("listens", flush=True)
    event = channel.get_cm_event()
    cmid = verbs.CMID(event, listen_id=listener)
    event.ack_cm_event()
    cmid.create_qp(attr)
    mr = cmid.reg_msgs(16)
    cmid.post_recv(mr)
    cmid.accept()
    cmid.get_recv_comp()
    cmid.post_send(mr)
    cmid.get_send_comp()
    end(cmid)
    return listener, cmid

def call():
    cmid = verbs.CMID(verbs.AddrInfo(here, there, None, "7471", enums.RDMA_PS_TCP), attr)
    mr = cmid.reg_msgs(16)
    cmid.post_recv(mr)
    cmid.connect()
    cmid.post_send(mr)
    cmid.get_send_comp()
    cmid.get_recv_comp()
    end(cmid)
    return cmid

def end(cmid):
    if ending == "disconnect":
        cmid.disconnect()
        cmid.close()
    elif ending == "frame":
        raise RuntimeError("the program fails")

kept = serve() if role == "server" else call()
"""
#: Prints whether rxe has ATOMIC WRITE: Linux, rdma/ib_user_verbs.h, IB_UVERBS_DEVICE_ATOMIC_WRITE.
_CAPABILITY = f"""
from pyverbs.device import Context
print(Context(name="{RXE}").query_device_ex().device_cap_flags_ex >> 40 & 1)
"""
#: Gives a program that imports pyverbs this package's verbs.
_PYVERBS = """
import runpy
from types import ModuleType
from twisted_ib.verbs import pyverbs as verbs
sys.modules["pyverbs"] = ModuleType("pyverbs")
sys.modules["pyverbs"].enums = verbs.enums
for name in ("addr", "cq", "device", "mr", "pd", "qp"):
    sys.modules[f"pyverbs.{name}"] = verbs
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _kindOf(packet: Packet) -> str:
    """
    @return: whether a packet is an RTU, a SEND or anything else.
    """
    if packet.bth.destination != GSI_QPN:
        return "data" if "SEND" in packet.row.name else "other"
    return "RTU" if decodeMAD(packet.payload).attribute == RTU.attribute else "other"


class EndsTestCase(InteropTestCase):
    """
    What goes over the wire when a session ends.
    """

    def side(self, role: str, ending: str) -> Program:
        """
        @return: one side, here.
        """
        return self.program([sys.executable, "-c", PATH + _SIDE, role, self.host, self.there, ending])

    def session(self, ending: str) -> None:
        """
        Serve C{rdma_client} once.
        """
        server = self.side("server", ending)
        self.until(server, "listens")
        client = self.start(f"rdma_client -s {self.host}")
        self._ended(self.guest.finish(client, HANG_SECONDS).status, server, ending)

    def call(self, ending: str) -> None:
        """
        Call C{rdma_server} once.
        """
        server = self.listening("rdma_server")
        client = self.side("client", ending)
        self._ended(self.guest.finish(server, HANG_SECONDS).status, client, ending)

    def _ended(self, status: int, program: Program, ending: str) -> None:
        """
        Check that both have ended as they should.
        """
        ended = program.finish()
        self.assertEqual((status, ended.status), (0, int(ending == "frame")), ended.text)

    def messages(self, packets: list[Seen], ours: bool) -> list[tuple[int, bytes]]:
        """
        @return: attribute and octets of what a side has sent to QP 1.
        """
        found = [each.packet for each in packets if each.ours is ours]
        return [
            (decodeMAD(each.payload).attribute, each.payload)
            for each in found
            if each.bth.destination == GSI_QPN
        ]

    def disconnected(self, packets: list[Seen], sessions: int) -> None:
        """
        Check that this side has ended each session by its own DREQ or has answered the peer's; and that none
        was repeated, nor a session ended by a REJ.
        """
        for ours in True, False:
            sent = self.messages(packets, ours)
            requests = [octets for attribute, octets in sent if attribute == DREQ.attribute]
            self.assertEqual(len(requests), len(set(requests)), f"a DREQ is repeated, ours: {ours}")
            attributes = [attribute for attribute, _ in sent]
            self.assertNotIn(REJ.attribute, attributes)
            if ours:
                self.assertGreaterEqual(len(requests) + attributes.count(DREP.attribute), sessions)


class AbandonedTests(EndsTestCase):
    """
    A program that ends without C{disconnect} while its identifier is alive: the peer, which disconnects, too,
    does not wait in vain for the DREP.
    """

    def setUp(self) -> None:
        """
        The last DREP may find nobody.
        """
        super().setUp()
        self.lost = True

    def _sessions(self, session: Any, ending: str) -> None:
        """
        Have some sessions.
        """
        for _ in range(SESSIONS):
            session(ending)
        self.disconnected(self.packets(), SESSIONS)

    def test_serverGlobal(self) -> None:
        """
        Of a server, in a global.
        """
        self._sessions(self.session, "global")

    def test_serverFrame(self) -> None:
        """
        Of a server, in an exception's frame.
        """
        self._sessions(self.session, "frame")

    def test_clientGlobal(self) -> None:
        """
        Of a client, in a global.
        """
        self._sessions(self.call, "global")

    def test_clientFrame(self) -> None:
        """
        Of a client, in an exception's frame.
        """
        self._sessions(self.call, "frame")


class OvertakenTests(EndsTestCase):
    """
    The guest's RTU arrives behind its data (IBTA vol. 1 12.9.8), and when the session has ended.
    """

    def setUp(self) -> None:
        """
        Delay what the guest sends to QP 1.
        """
        super().setUp()
        self.lost = True
        self.guest.must(f"""
            modprobe -a sch_prio sch_netem cls_u32
            tc qdisc replace dev eth0 root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
            tc qdisc add dev eth0 parent 1:2 netem delay {LATE}
            tc filter add dev eth0 parent 1: protocol ip u32 match u32 1 0xffffff at {_DESTINATION} flowid 1:2
        """)
        self.addCleanup(self.guest.must, "tc qdisc del dev eth0 root")

    def _sessions(self, ending: str) -> None:
        """
        Have some sessions.
        """
        for _ in range(SESSIONS):
            self.session(ending)
        # Until nothing is held back any more.
        sent = "tc -s qdisc show dev eth0 parent 1:2 | grep -q 'backlog 0b 0p'"
        self.guest.must(f"until {sent}; do sleep 0.1; done")
        packets = self.packets()
        self.disconnected(packets, SESSIONS)
        kinds = [_kindOf(each.packet) for each in packets if not each.ours]
        self.assertEqual([each for each in kinds if each in ("data", "RTU")], ["data", "RTU"] * SESSIONS)

    def test_disconnect(self) -> None:
        """
        It ends with C{disconnect}.
        """
        self._sessions("disconnect")

    def test_exit(self) -> None:
        """
        It ends with the program.
        """
        self._sessions("global")


class AtomicWriteTests(InteropTestCase):
    """
    C{guest/atomicwrite.py} here and there, where the guest's kernel has ATOMIC WRITE: from Linux 6.2 on.
    """

    def setUp(self) -> None:
        """
        Skip the test without.
        """
        super().setUp()
        if not int(self.guest.must(f"python3 -c '{_CAPABILITY}'")):
            raise SkipTest("the guest's rxe has no ATOMIC WRITE, which it has from Linux 6.2 on")

    def _here(self, *arguments: str) -> Program:
        """
        @return: one side, here.
        """
        name = str(OWN / "atomicwrite.py")
        program = f"{PATH}sys.argv[:1] = [{name!r}]; {_PYVERBS}"
        return self.program([sys.executable, "-c", program, DEVICE, "0", *arguments])

    def test_client(self) -> None:
        """
        We begin.
        """
        server = self.start(f"python3 /interop/atomicwrite.py {RXE} 1")
        self.guest.must("until ss -ltn | grep -q :18515; do sleep 0.1; done", HANG_SECONDS)
        self.succeeded(self._here(self.there).finish())
        self.succeeded(self.guest.finish(server, HANG_SECONDS))

    def test_server(self) -> None:
        """
        The guest begins.
        """
        server = self._here()
        self.until(server, "listens")
        client = self.start(f"python3 /interop/atomicwrite.py {RXE} 1 {self.host}")
        self.succeeded(self.guest.finish(client, HANG_SECONDS))
        self.succeeded(server.finish())
