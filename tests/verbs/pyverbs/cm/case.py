"""
Common parts of the tests of the communication manager of verbs.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.pair import VerbsTestCase
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    CMID,
    AddrInfo,
    CMEvent,
    CMEventChannel,
    ConnParam,
    Context,
    PyverbsError,
    QPCap,
    QPInitAttr,
    enums,
)

TCP, UDP = enums.RDMA_PS_TCP, enums.RDMA_PS_UDP
Kind = enums.rdma_cm_event_type


def attributes(space: int = TCP, **more: Any) -> QPInitAttr:
    """
    The attributes of a queue pair for a port space.
    """
    kind = enums.IBV_QPT_UD if space == UDP else enums.IBV_QPT_RC
    return QPInitAttr(qp_type=kind, cap=QPCap(max_send_wr=10), **more)


def param(data: bytes = b"", **fields: Any) -> ConnParam:
    """
    Connection parameters with private data.
    """
    made = ConnParam(data_len=len(data), **fields)
    made.set_private_data(data)
    return made


class CMTestCase(VerbsTestCase):
    """
    Identifiers of one process, that report to two channels.

    @ivar near: where the active side reports; C{far} the passive side.
    """

    host = "127.0.0.1"
    space = int(TCP)

    def setUp(self) -> None:
        """
        Channels; and a context, so that the device is the same all the time.
        """
        super().setUp()
        self.context: Context = self.open()
        self.near, self.far = self.channel(), self.channel()

    def channel(self) -> CMEventChannel:
        """
        A channel that is closed after the test.
        """
        channel = CMEventChannel()
        self.addCleanup(channel.close)
        return channel

    def made(self, *arguments: Any, **keywords: Any) -> Any:
        """
        An identifier that is closed after the test.
        """
        made = CMID(*arguments, **keywords)
        self.addCleanup(self.closed, made)
        return made

    @staticmethod
    def closed(made: CMID) -> None:
        """
        Close an identifier, which may have lost its device.
        """
        with contextlib.suppress(PyverbsError):
            made.close()

    def event(self, channel: CMEventChannel, kind: int, status: int = 0) -> CMEvent:
        """
        Wait for an event that must come next.
        """
        self.assertTrue(hub.wait(lambda: bool(len(channel._reports)), HANG_SECONDS), f"no {kind!r}")
        event = CMEvent(channel)
        self.assertEqual((event.event_str(), event.status), (Kind(kind).name, status))
        return event

    def expect(self, channel: CMEventChannel, kind: int, status: int = 0) -> None:
        """
        Wait for an event, and acknowledge it.
        """
        self.event(channel, kind, status).ack_cm_event()

    def quiet(self, *channels: CMEventChannel) -> None:
        """
        Nothing is reported.
        """
        for _ in range(20):
            with hub:
                hub.drive()
        for channel in channels:
            self.assertEqual(len(channel._reports), 0)

    def listening(self, backlog: int = 0, space: int | None = None, host: str | None = None) -> Any:
        """
        An identifier that listens on any port.
        """
        space = self.space if space is None else space
        listener = self.made(self.far, port_space=space)
        listener.bind_addr(AddrInfo(host or self.host, src_service="0", port_space=space, flags=1))
        listener.listen(backlog)
        return listener

    def routed(self, port: int, space: int | None = None, host: str | None = None) -> Any:
        """
        An identifier that has resolved the path to a port.
        """
        space = self.space if space is None else space
        active = self.made(self.near, port_space=space)
        active.resolve_addr(AddrInfo(dst=host or self.host, dst_service=str(port), port_space=space))
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        active.resolve_route()
        self.expect(self.near, Kind.RDMA_CM_EVENT_ROUTE_RESOLVED)
        return active

    def calling(self, listener: Any, parameters: ConnParam | None = None, withQP: bool = True) -> Any:
        """
        An identifier that has asked for a connection.
        """
        active = self.routed(listener.local_addr[1])
        if withQP:
            active.create_qp(attributes(self.space))
        active.connect(parameters)
        return active

    def called(self, listener: Any, withQP: bool = True) -> Any:
        """
        The identifier of the next request.
        """
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        passive = self.made(event, listen_id=listener)
        event.ack_cm_event()
        if withQP:
            passive.create_qp(attributes(self.space))
        return passive

    def pair(self, there: ConnParam | None = None, back: ConnParam | None = None) -> tuple[Any, Any]:
        """
        Both ends of a connection.
        """
        listener = self.listening()
        active = self.calling(listener, there)
        passive = self.called(listener)
        passive.accept(back)
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        if self.space != UDP:
            self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
        return active, passive

    def talk(self, one: Any, other: Any) -> None:
        """
        A message from one end to the other.
        """
        source, sink = one.reg_msgs(64), other.reg_msgs(64)
        other.post_recv(sink)
        source.write(b"a message", 9)
        one.post_send(source, length=9)
        self.assertEqual(other.get_recv_comp().byte_len, 9)
        self.assertEqual(one.get_send_comp().status, enums.IBV_WC_SUCCESS)
        self.assertEqual(sink.read(9, 0), b"a message")
        source.close()
        sink.close()
