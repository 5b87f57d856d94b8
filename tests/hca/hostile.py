"""
An HCA, and a process that calls it and writes whatever it likes: for tests.
"""

from __future__ import annotations

from typing import Any

from tests.hca.hcas import LISTENER, SDP, HCATestCase, settle
from tests.hca.queues.keyed_pair import RTR, RTS, Consumer, Side
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.wire.grh import DETH_BYTES, guidGID, length, packGRH
from twisted_ib.hca.wire.headers import DETH
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY

KEY = 0x11111111
ALL = int(
    Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC | Access.MW_BIND
)


class Target(Side):
    """
    A queue pair of a device that somebody attacks, in RTS.

    @ivar device: the device.
    """

    def __init__(
        self, device: Device, type: QPType, path: Any = None, remote: int = 0, **changes: int
    ) -> None:
        """
        @param path: the way to its peer, if it has one.
        @param remote: the peer's queue pair number.
        @param changes: attributes other than L{RTR} and L{RTS} have them.
        """
        self.device, self.path = device, path
        self.memory, self.timers = device.memory, device.timers
        self.pd = self.memory.allocateDomain()
        self.consumer = Consumer()
        self.qp = device.createQueuePair(self.consumer, type)
        self.equip(4096)
        if type == QPType.RC:
            self.to(QPState.RTS, remote, **changes)
            return
        first = {"qkey": KEY} if type == QPType.UD else {"qp_access_flags": ALL}
        self.qp.modify(QPState.INIT, pkey_index=0, port_num=1, **first)
        second: dict[str, Any] = {}
        if type == QPType.UC:
            second = {"ah_attr": path, "dest_qp_num": remote}
            second |= {name: RTR[name] for name in ("path_mtu", "rq_psn")}
        self.qp.modify(QPState.RTR, **second)
        self.qp.modify(QPState.RTS, sq_psn=RTS["sq_psn"])


def datagram(source: int, destination: int, payload: bytes, key: int = KEY) -> bytes:
    """
    The record of a datagram without an immediate.

    @param source: GID.
    @param destination: GID.
    """
    grh = packGRH(0, 0, length(len(payload)), 1, source, destination)
    return grh + DETH.pack(key, 77) + payload


class HostileTestCase(HCATestCase):
    """
    An HCA and a liar that has called it.

    @ivar liar: the HCA of the liar.
    @ivar device: the one that it calls.
    @ivar path: the liar's path.
    @ivar other: the other end of it.
    """

    def setUp(self) -> None:
        """
        Call.
        """
        super().setUp()
        self.device_ = self.device()
        self.device_.listen(SDP, "127.0.0.1", 7001, LISTENER)
        self.call()

    def call(self, guid: int | None = None) -> None:
        """
        Call with an HCA more, and say that a GUID is ours.
        """
        self.liar = self.device()
        if guid is not None:
            self.liar.fabric.guid = guid
        self.path = self.pathTo(self.liar, self.device_)
        self.other = self.device_.fabric.paths()[-1]

    def write(self, opcode: int, number: int, data: bytes) -> bool:
        """
        Publish a record.

        @return: whether there was room for it.
        """
        done: bool = self.path.post(opcode << 24 | number & 0xFFFFFF, b"", data, len(data))
        return done

    def rest(self) -> None:
        """
        Let everything move.
        """
        settle(self.liar, self.device_)


__all__ = ["ALL", "DETH_BYTES", "KEY", "UD_SEND_ONLY", "HostileTestCase", "Target", "datagram", "guidGID"]
