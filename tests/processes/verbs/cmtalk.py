"""
Two processes with connection identifiers, forked after the import: C{python -m
tests.processes.verbs.cmtalk STORY}.

Each story is a function for each side.  The passive side says which port it has through a pipe;
nothing else goes around the HCAs.  The exit status is 0 if both sides came to their end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    AH,
    CMID,
    AddrInfo,
    CMEvent,
    CMEventChannel,
    Context,
    PyverbsError,
    PyverbsRDMAError,
    QPCap,
    QPInitAttr,
    UDParam,
    enums,
)

HOST = "127.0.0.1"
GRH_BYTES = 40
TCP, UDP = enums.RDMA_PS_TCP, enums.RDMA_PS_UDP
_E = enums.rdma_cm_event_type
#: How long a side that shall not drive its HCA does something else, in seconds.
ABSENT = 0.5


def attributes(space: int = TCP) -> QPInitAttr:
    """
    The attributes of a queue pair.
    """
    kind = enums.IBV_QPT_UD if space == UDP else enums.IBV_QPT_RC
    return QPInitAttr(qp_type=kind, cap=QPCap(max_send_wr=16, max_recv_wr=16))


class Wire:
    """
    A pipe each way.
    """

    def __init__(self, read: int, write: int) -> None:
        """
        Of one side.
        """
        self._read, self._write = read, write

    def tell(self, number: int) -> None:
        """
        Tell the other side a number.
        """
        os.write(self._write, number.to_bytes(8, "big"))

    def hear(self) -> int:
        """
        Wait for the other side's number, without driving anything.
        """
        data = os.read(self._read, 8)
        if not data:
            raise EOFError
        return int.from_bytes(data, "big")


def listening(wire: Wire, space: int = TCP) -> CMID:
    """
    A synchronous identifier that listens, whose port the other side knows.
    """
    info = AddrInfo(HOST, src_service="0", port_space=space, flags=enums.RAI_PASSIVE)
    listener = CMID(info, attributes(space))
    listener.listen()
    assert listener.local_addr is not None
    wire.tell(listener.local_addr[1])
    return listener


def calling(wire: Wire, space: int = TCP) -> CMID:
    """
    A synchronous identifier that is about to connect there.
    """
    port = str(wire.hear())
    return CMID(AddrInfo(dst=HOST, dst_service=port, port_space=space), attributes(space))


def expect(channel: CMEventChannel, kind: int, status: int = 0) -> None:
    """
    Wait for an event.
    """
    with CMEvent(channel) as event:
        assert (event.event_type, event.status) == (kind, status), (event.event_str(), event.status)


# -- messages to and fro


def messagesPassive(wire: Wire) -> None:
    """
    Send back what comes.
    """
    with listening(wire) as listener, listener.get_request() as made:
        regions = [made.reg_msgs(1 << 16), made.reg_msgs(1 << 16)]
        made.post_recv(regions[0])
        made.accept()
        for number in range(50):
            completion = made.get_recv_comp()
            assert completion is not None and completion.status == 0, completion
            # First, or the peer meets no receive and comes again after 655 ms.
            made.post_recv(regions[1 - number % 2])
            made.post_send(regions[number % 2], length=completion.byte_len)
            made.get_send_comp()
        made.disconnect()


def messagesActive(wire: Wire) -> None:
    """
    Send messages of many lengths.
    """
    with calling(wire) as made:
        made.connect()
        out, back = made.reg_msgs(1 << 16), made.reg_msgs(1 << 16)
        for number in range(50):
            data = os.urandom(1 + number * 1300)
            made.post_recv(back)
            out.write(data, len(data))
            made.post_send(out, length=len(data))
            for completion in (made.get_send_comp(), made.get_recv_comp()):
                assert completion is not None and completion.status == 0, completion
            assert back.read(len(data), 0) == data
        made.disconnect()


# -- a passive side that does something else


def absentPassive(wire: Wire) -> None:
    """
    Accept, and never look again; its memory is written, read, and its receive taken meanwhile.
    """
    channel = CMEventChannel()
    listener = CMID(channel)
    listener.bind_addr(AddrInfo(HOST, src_service="0", flags=enums.RAI_PASSIVE))
    listener.listen()
    assert listener.local_addr is not None
    wire.tell(listener.local_addr[1])
    event = CMEvent(channel)
    made = CMID(event, listen_id=listener)
    event.ack_cm_event()
    made.create_qp(attributes())
    readable, writable, message = made.reg_read(64), made.reg_write(64), made.reg_msgs(64)
    readable.write(b"read while absent", 17)
    made.post_recv(message)
    made.accept()
    for number in (readable.buf, readable.rkey, writable.buf, writable.rkey):
        wire.tell(number)
    assert wire.hear() == 1
    assert writable.read(8, 0) == b"written!"
    assert message.read(4, 0) == b"sent"
    wire.tell(2)
    # It was disconnected meanwhile, too.
    assert wire.hear() == 3
    expect(channel, _E.RDMA_CM_EVENT_ESTABLISHED)
    expect(channel, _E.RDMA_CM_EVENT_DISCONNECTED)
    made.close()
    listener.close()
    channel.close()


def absentActive(wire: Wire) -> None:
    """
    Do all of it while the other side waits in a read.
    """
    made = calling(wire)
    made.connect()
    address, key, writableAddress, writableKey = (wire.hear() for _ in range(4))
    time.sleep(ABSENT)
    region = made.reg_msgs(64)
    made.post_read(region, 17, address, key, flags=enums.IBV_SEND_SIGNALED)
    completion = made.get_send_comp()
    assert completion is not None and completion.status == 0, completion
    assert region.read(17, 0) == b"read while absent"
    region.write(b"written!", 8)
    made.post_write(region, 8, writableAddress, writableKey, flags=enums.IBV_SEND_SIGNALED)
    made.get_send_comp()
    region.write(b"sent", 4)
    made.post_send(region, length=4)
    completion = made.get_send_comp()
    assert completion is not None and completion.status == 0, completion
    wire.tell(1)
    assert wire.hear() == 2
    made.disconnect()
    wire.tell(3)
    made.close()


# -- datagrams


def datagramsPassive(wire: Wire) -> None:
    """
    Serve datagrams, and answer each.
    """
    with listening(wire, UDP) as listener, listener.get_request() as made:
        region = made.reg_msgs(1 << 10)
        made.post_recv(region)
        made.accept()
        for _ in range(20):
            completion = made.get_recv_comp()
            assert completion is not None and completion.status == 0, completion
            length = completion.byte_len - GRH_BYTES
            data = region.read(length, GRH_BYTES)
            with AH(made.pd, wc=completion, port_num=1, grh=region.buf) as back:
                made.post_recv(region)
                answer = made.reg_msgs(length)
                answer.write(data[::-1], length)
                made.post_ud_send(answer, back, completion.src_qp)
                made.get_send_comp()


def datagramsActive(wire: Wire) -> None:
    """
    Send datagrams to where the service is.
    """
    channel = CMEventChannel()
    made = CMID(channel, port_space=UDP)
    made.resolve_addr(AddrInfo(dst=HOST, dst_service=str(wire.hear()), port_space=UDP))
    expect(channel, _E.RDMA_CM_EVENT_ADDR_RESOLVED)
    made.resolve_route()
    expect(channel, _E.RDMA_CM_EVENT_ROUTE_RESOLVED)
    made.create_qp(attributes(UDP))
    made.connect()
    with CMEvent(channel) as event:
        assert event.event_type == _E.RDMA_CM_EVENT_ESTABLISHED, event.event_str()
        where = UDParam(event)
    back = made.reg_msgs(1 << 10)
    with AH(made.pd, attr=where.ah_attr) as way:
        for number in range(20):
            data = os.urandom(1 + 10 * number)
            made.post_recv(back)
            out = made.reg_msgs(len(data))
            out.write(data, len(data))
            made.post_ud_send(out, way, where.qp_num)
            made.get_send_comp()
            completion = made.get_recv_comp()
            assert completion is not None and completion.status == 0, completion
            assert back.read(len(data), GRH_BYTES) == data[::-1]
    made.close()
    channel.close()


# -- death


def killedPassive(wire: Wire) -> None:
    """
    Die with a connection open.
    """
    with listening(wire) as listener, listener.get_request() as made:
        made.accept()
        wire.hear()
        os.kill(os.getpid(), signal.SIGKILL)


def killedActive(wire: Wire) -> None:
    """
    The connection is over; the receives are there until it is disconnected here too.
    """
    made = calling(wire)
    made.connect()
    region = made.reg_msgs(8)
    made.post_recv(region)
    assert made.qp is not None and made.qp.rcq is not None
    wire.tell(1)
    waitUntil(lambda: not any(device.fabric.paths() for device in hub.devices), made.qp.rcq.poll)
    assert made.qp.qp_state == enums.IBV_QPS_RTS, made.qp.qp_state
    assert made.qp.rcq.poll() == (0, [])
    made.disconnect()
    completion = made.get_recv_comp()
    assert completion is not None and completion.status == enums.IBV_WC_WR_FLUSH_ERR, completion
    made.close()


def leavingPassive(wire: Wire) -> None:
    """
    Never answer, and die.
    """
    with listening(wire) as listener:
        made = listener.get_request()
        assert made.peer_addr is not None
        os.kill(os.getpid(), signal.SIGKILL)


def leavingActive(wire: Wire) -> None:
    """
    The peer dies before it answers.
    """
    made = calling(wire)
    try:
        made.connect()
    except PyverbsRDMAError as error:
        assert "UNREACHABLE" in str(error), error
    else:
        raise AssertionError("connected to nobody")
    made.close()


# -- forks


def forkedPassive(wire: Wire) -> None:
    """
    The parent's objects are unusable; a child that was forked from a process with a connection makes its
    own.
    """
    parent = listening(Wire(-1, os.open(os.devnull, os.O_WRONLY)))
    channel = CMEventChannel()
    # There is a thread that serves peers, and this child needs nothing of it.
    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        parent.close()
        assert status == 0, status
        return
    code = 1
    try:
        for call in (parent.listen, parent.get_request, lambda: CMEvent(channel), lambda: channel.fd):
            with contextlib.suppress(PyverbsError):
                call()
                raise AssertionError("what the parent had works")
        parent.close()
        messagesPassive(wire)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# -- many at a time


def manyPassive(wire: Wire) -> None:
    """
    Accept as they come.
    """
    with listening(wire) as listener:
        made = [listener.get_request() for _ in range(20)]
        for each in made:
            each.accept()
        for each in made:
            region = each.reg_msgs(8)
            each.post_recv(region)
            each.get_recv_comp()
        for each in made:
            each.close()


def manyActive(wire: Wire) -> None:
    """
    Connect often, from identifiers that share a channel.
    """
    channel = CMEventChannel()
    port = str(wire.hear())
    made = [CMID(channel) for _ in range(20)]
    for each in made:
        each.resolve_addr(AddrInfo(dst=HOST, dst_service=port))
        expect(channel, _E.RDMA_CM_EVENT_ADDR_RESOLVED)
        each.resolve_route()
        expect(channel, _E.RDMA_CM_EVENT_ROUTE_RESOLVED)
        each.create_qp(attributes())
        each.connect()
    for _ in made:
        expect(channel, _E.RDMA_CM_EVENT_ESTABLISHED)
    for each in made:
        region = each.reg_msgs(8)
        each.post_send(region)
        completion = each.get_send_comp()
        assert completion is not None and completion.status == 0, completion
    for _ in made:
        expect(channel, _E.RDMA_CM_EVENT_DISCONNECTED)
    for each in made:
        each.close()
    channel.close()


Side = Callable[[Wire], None]
STORIES: dict[str, tuple[Side, Side]] = {
    "messages": (messagesPassive, messagesActive),
    "absent": (absentPassive, absentActive),
    "datagrams": (datagramsPassive, datagramsActive),
    "killed": (killedPassive, killedActive),
    "leaving": (leavingPassive, leavingActive),
    "forked": (forkedPassive, messagesActive),
    "many": (manyPassive, manyActive),
}
#: Those whose passive side is killed.
DEADLY = ("killed", "leaving")


def side(function: Side, wire: Wire) -> int:
    """
    Fork one side.

    @return: the process id.
    """
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(int(HANG_SECONDS))
    status = 1
    try:
        function(wire)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(story: str) -> int:
    """
    @return: the exit status.
    """
    # A context of the parent's, as rdma-core's tests have one, that no child may use.
    context: Any = Context(name="shm0")
    there, back = os.pipe(), os.pipe()
    passive, active = STORIES[story]
    pids = [side(passive, Wire(there[0], back[1])), side(active, Wire(back[0], there[1]))]
    for fd in there + back:
        os.close(fd)
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    context.close()
    wanted = [signal.SIGKILL if story in DEADLY else 0, 0]
    if codes != wanted:
        print(f"{story}: {codes}, not {wanted}", file=sys.stderr)
    return int(codes != wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
