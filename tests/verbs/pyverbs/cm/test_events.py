"""
Tests of L{twisted_ib.verbs.pyverbs.cm.event}, of L{twisted_ib.verbs.pyverbs.cm.addrinfo}, and of synchronous
identifiers, whose other side is another thread.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.support.waiting import HANG_SECONDS, waitUntil
from tests.verbs.pyverbs.cm.case import UDP, CMTestCase, Kind, attributes, param
from twisted_ib.hca.connection import RejectReason
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    CMID,
    AddrInfo,
    CMEvent,
    CMEventChannel,
    PyverbsRDMAError,
    PyverbsUserError,
    UDParam,
    enums,
)

PASSIVE = enums.RAI_PASSIVE


class ChannelTests(CMTestCase):
    """
    Where events come in.
    """

    def resolving(self) -> Any:
        """
        An identifier that has something to report.
        """
        made = self.made(self.near)
        made.resolve_addr(AddrInfo(dst=self.host, dst_service="1"))
        return made

    def test_pending(self) -> None:
        """
        A program may ask whether there is an event, before it waits for one.
        """
        self.assertFalse(self.near.pending)
        self.resolving()
        self.assertTrue(self.near.pending)
        self.near.get_cm_event().close()
        self.assertFalse(self.near.pending)
        self.near.close()
        with self.assertRaises(PyverbsUserError):
            self.near.pending  # noqa: B018

    def test_acknowledged(self) -> None:
        """
        An event that is acknowledged says nothing any more.
        """
        self.resolving()
        event = self.near.get_cm_event()
        self.assertIsInstance(event, CMEvent)
        self.assertEqual(event.event_type, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.assertEqual(event.event_str(), "RDMA_CM_EVENT_ADDR_RESOLVED")
        self.assertEqual((event.status, event.private_data, event.conn_param), (0, b"", None))
        event.ack_cm_event()
        self.assertEqual(event.event_str(), "")
        self.refused(errno.EINVAL, event.ack_cm_event)
        for name in ("event_type", "status", "private_data", "conn_param"):
            self.refused(errno.EINVAL, getattr, event, name)
        self.refused(errno.EINVAL, UDParam, event)
        event.close()

    def test_closed(self) -> None:
        """
        A closed channel gives nothing, and takes nothing.
        """
        made = self.resolving()
        self.near.close()
        self.assertRaises(PyverbsUserError, CMEvent, self.near)
        self.assertRaises(PyverbsUserError, CMID, self.near)
        self.assertRaises(PyverbsUserError, getattr, self.near, "fd")
        made.resolve_route()
        self.assertEqual(len(self.near._reports), 0)

    def test_closedWhileWaiting(self) -> None:
        """
        Waiting for a channel ends when another thread closes it.
        """
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                CMEvent(self.near)
            except PyverbsUserError as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        waitUntil(lambda: hub.isAwaited)
        self.near.close()
        thread.join(HANG_SECONDS)
        self.assertEqual(len(failures), 1)

    def test_otherThread(self) -> None:
        """
        A thread that waits hears what another one does.
        """
        heard: list[str] = []
        thread = threading.Thread(target=lambda: heard.append(CMEvent(self.near).event_str()))
        thread.start()
        waitUntil(lambda: hub.isAwaited)
        self.resolving()
        thread.join(HANG_SECONDS)
        self.assertEqual(heard, ["RDMA_CM_EVENT_ADDR_RESOLVED"])

    def test_descriptor(self) -> None:
        """
        The descriptor is readable as long as there are events.
        """
        for early in (True, False):
            self.near = self.channel()
            fd = self.near.fd if early else -1
            self.resolving()
            fd = self.near.fd
            self.assertEqual(select.select([fd], [], [], 0)[0], [fd])
            self.near.get_cm_event().close()
            self.assertEqual(select.select([fd], [], [], 0)[0], [])
            made = self.resolving()
            self.resolving()
            self.near.get_cm_event().close()
            self.assertEqual(select.select([fd], [], [], 0)[0], [fd])
            self.near.get_cm_event().close()
            del made
            self.resolving().close()
            self.assertEqual(select.select([fd], [], [], 0)[0], [])
            self.near.close()
            self.assertRaises(OSError, os.fstat, fd)

    def test_served(self) -> None:
        """
        The descriptor becomes readable when a peer calls though this program does nothing else.
        """
        listener = self.listening()
        fd = self.far.fd
        self.calling(listener)
        self.assertEqual(select.select([fd], [], [], HANG_SECONDS)[0], [fd])
        self.expect(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)

    def test_migrate(self) -> None:
        """
        An identifier may move to another channel, and become synchronous.
        """
        made = self.resolving()
        made.migrate_id(self.far)
        self.assertIs(made.event_channel, self.far)
        self.expect(self.far, Kind.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.quiet(self.near)
        made.migrate_id()
        self.assertIsNone(made.event_channel)
        made.resolve_route()
        self.refused(errno.EINVAL, made.migrate_id)
        made.migrate_id(self.near)
        self.quiet(self.near)

    def test_migrateListener(self) -> None:
        """
        Requests that wait go along.
        """
        listener = self.listening()
        self.calling(listener)
        self.assertTrue(hub.wait(lambda: bool(len(self.far._reports)), HANG_SECONDS))
        listener.migrate_id()
        passive = listener.get_request()
        self.addCleanup(self.closed, passive)
        passive.reject()
        self.expect(self.near, Kind.RDMA_CM_EVENT_REJECTED, RejectReason.CONSUMER_DEFINED)


class SynchronousTests(CMTestCase):
    """
    Identifiers whose commands wait.
    """

    def passive(self, space: int = enums.RDMA_PS_TCP, host: str = "") -> Any:
        """
        One that listens.
        """
        info = AddrInfo(host or self.host, src_service="0", port_space=space, flags=PASSIVE)
        made = self.made(info, attributes(space))
        made.listen()
        return made

    def active(self, listener: Any, space: int = enums.RDMA_PS_TCP) -> Any:
        """
        One that is about to connect.
        """
        port = str(listener.local_addr[1])
        info = AddrInfo(src=self.host, dst=self.host, dst_service=port, port_space=space)
        return self.made(info, attributes(space))

    def beside(self, function: Callable[[], None]) -> None:
        """
        Do something in another thread, until the test is over.
        """
        failures: list[BaseException] = []

        def run() -> None:
            try:
                function()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def finish() -> None:
            thread.join(HANG_SECONDS)
            self.assertEqual((failures, thread.is_alive()), ([], False))

        self.addCleanup(finish)

    def test_connection(self) -> None:
        """
        To and fro.
        """
        listener = self.passive()

        def serve() -> None:
            made = listener.get_request()
            region = made.reg_msgs(8)
            made.post_recv(region)
            made.accept(param(b"welcome"))
            made.get_recv_comp()
            made.post_send(region)
            made.get_send_comp()
            made.disconnect()
            made.close()

        self.beside(serve)
        active = self.active(listener)
        self.assertIsNone(active.event_channel)
        active.connect(param(b"hello"))
        region = active.reg_msgs(8)
        region.write(b"same way", 8)
        active.post_recv(region)
        active.post_send(region)
        self.assertEqual(active.get_send_comp().status, enums.IBV_WC_SUCCESS)
        self.assertEqual(active.get_recv_comp().status, enums.IBV_WC_SUCCESS)
        active.disconnect()
        self.assertEqual(active.query_qp(0)[0].qp_state, enums.IBV_QPS_ERR)
        active.disconnect()

    def test_refused(self) -> None:
        """
        A refusal is ECONNREFUSED.
        """
        listener = self.passive()

        def serve() -> None:
            made = listener.get_request()
            made.reject(b"no")
            made.close()

        self.beside(serve)
        active = self.active(listener)
        self.refused(errno.ECONNREFUSED, active.connect)
        listener.close()
        again = self.active(listener) if listener.local_addr else None
        self.assertIsNone(again)

    def test_nobody(self) -> None:
        """
        So is a port where nobody is, of datagrams too.
        """
        for space in (enums.RDMA_PS_TCP, enums.RDMA_PS_UDP):
            info = AddrInfo(dst=self.host, dst_service="1", port_space=space)
            self.refused(errno.ECONNREFUSED, self.made(info, attributes(space)).connect)

    def test_noWay(self) -> None:
        """
        An address that no device reaches.
        """
        device = self.context._device
        before = device.inUse()
        self.refused(errno.ENODEV, CMID, AddrInfo(dst="192.0.2.1", dst_service="1"), attributes())
        self.assertEqual(device.inUse(), before)

    def test_badQueuePair(self) -> None:
        """
        A queue pair that cannot be: nothing is left.
        """
        device = self.context._device
        before = device.inUse()
        attr = attributes()
        attr.max_send_wr = 1 << 20
        self.refused(errno.EINVAL, CMID, AddrInfo(dst=self.host, dst_service="1"), attr)
        self.assertEqual(device.inUse(), before)
        listener = self.made(AddrInfo(self.host, src_service="0", flags=PASSIVE), attr)
        listener.listen()
        active = self.active(listener)
        self.beside(lambda: self.fails(errno.EINVAL, listener.get_request))
        self.refused(errno.ECONNREFUSED, active.connect)

    def fails(self, code: int, call: Callable[[], object]) -> None:
        """
        A verb fails, in another thread.
        """
        try:
            call()
        except PyverbsRDMAError as error:
            assert error.error_code == code, error
        else:
            raise AssertionError("no error")

    def test_datagrams(self) -> None:
        """
        A service of datagrams.
        """
        listener = self.passive(UDP)

        def serve() -> None:
            made = listener.get_request()
            made.accept()
            made.close()

        self.beside(serve)
        active = self.active(listener, UDP)
        active.connect()
        active.disconnect()

    def test_notListening(self) -> None:
        """
        Requests come to those that listen.
        """
        made = self.made(AddrInfo(self.host, src_service="0", flags=PASSIVE), attributes())
        self.refused(errno.EINVAL, made.get_request)

    def test_closedListener(self) -> None:
        """
        Waiting for a request ends when the listener is closed.
        """
        listener = self.passive()
        self.beside(lambda: self.fails(errno.ECONNABORTED, listener.get_request))
        waitUntil(lambda: hub.isAwaited)
        listener.close()


class AddressTests(CMTestCase):
    """
    Names and addresses.
    """

    def test_sources(self) -> None:
        """
        The requirements of a listener.
        """
        info = AddrInfo(src="127.0.0.1", src_service="7471", port_space=enums.RDMA_PS_TCP, flags=PASSIVE)
        assert info.source is not None
        self.assertEqual((info.source.host, info.source.port, info.destination), ("127.0.0.1", 7471, None))
        self.assertEqual((info.flags, info.port_space), (PASSIVE, enums.RDMA_PS_TCP))
        info = AddrInfo(src_service=b"5", port_space=enums.RDMA_PS_UDP, flags=PASSIVE)
        assert info.source is not None
        self.assertEqual((info.source.isAny, info.source.port), (True, 5))
        self.assertEqual(info.qp_type, enums.IBV_QPT_UD)

    def test_destinations(self) -> None:
        """
        The requirements of connecting.
        """
        info = AddrInfo("127.0.0.2", b"127.0.0.1", "1234", "7471", enums.RDMA_PS_UDP)
        assert info.source is not None and info.destination is not None
        self.assertEqual((info.source.host, info.source.port), ("127.0.0.2", 1234))
        self.assertEqual((info.destination.host, info.destination.port), ("127.0.0.1", 7471))
        self.assertEqual((info.flags, info.qp_type), (0, enums.IBV_QPT_UD))
        info = AddrInfo(dst="::1", dst_service="1")
        assert info.destination is not None
        self.assertEqual(info.destination.version, 6)
        self.assertEqual((info.port_space, info.qp_type), (enums.RDMA_PS_TCP, enums.IBV_QPT_RC))

    def test_sourceOnly(self) -> None:
        """
        A group is a source alone.
        """
        info = AddrInfo(src="230.0.0.1")
        assert info.source is not None
        self.assertEqual((info.source.isMulticast, info.destination), (True, None))

    def test_nothing(self) -> None:
        """
        Nothing is resolved until something is given; and all is forgotten at the end.
        """
        info = AddrInfo()
        self.assertEqual((info.source, info.destination), (None, None))
        info.get_addrinfo(src=self.host, src_service="1", flags=PASSIVE)
        self.assertIsNotNone(info.source)
        info.close()
        self.assertEqual((info.source, info.flags, info.port_space), (None, 0, 0))

    def test_unknown(self) -> None:
        """
        Names that the resolver does not know, or not now.
        """
        numeric = enums.RAI_NUMERICHOST
        self.refused(errno.EADDRNOTAVAIL, AddrInfo, dst="no number", dst_service="1", flags=numeric)
        self.refused(errno.EADDRNOTAVAIL, AddrInfo, dst="name", dst_service="1", port_space=enums.RDMA_PS_IB)
        self.refused(errno.EINVAL, AddrInfo, dst=self.host, dst_service="no service")
        for answer, code in ((socket.EAI_AGAIN, errno.EAGAIN), (socket.EAI_MEMORY, errno.ENOMEM)):
            with mock.patch("socket.getaddrinfo", side_effect=socket.gaierror(answer, "text")):
                self.refused(code, AddrInfo, dst="name")

    def test_resolveAddrInfo(self) -> None:
        """
        An identifier can ask as well.
        """
        made = self.made(self.near)
        self.refused(errno.ENODATA, made.query_addrinfo)
        made.resolve_addrinfo("127.0.0.1", "99", enums.RDMA_PS_TCP, PASSIVE)
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDRINFO_RESOLVED)
        info = made.query_addrinfo()
        assert info.source is not None
        self.assertEqual((info.source.port, info.flags), (99, PASSIVE))
        made.bind_addr(info)
        made.resolve_addrinfo("no number", "99", flags=enums.RAI_NUMERICHOST)
        self.expect(self.near, Kind.RDMA_CM_EVENT_ADDRINFO_ERROR, -errno.EADDRNOTAVAIL)
        self.refused(errno.ENODATA, made.query_addrinfo)

    def test_channelOnly(self) -> None:
        """
        A channel needs no device.
        """
        channel = CMEventChannel()
        self.assertGreater(channel.fd, 2)
        channel.close()
