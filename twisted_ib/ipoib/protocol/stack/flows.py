"""
A stack remembers flows: the datagrams that it sends to, and receives from, one address and port.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted_ib.ipoib.protocol.stack.udp import UDP, IPv4Flow, IPv6Flow


class SendFlow:
    """
    Where the datagrams of one port to one address go.

    @ivar frame: makes a datagram's frame.
    @ivar send: takes it.
    @ivar most: octets of the longest payload that is not fragmented.
    """

    __slots__ = ("addresses", "frame", "hopLimit", "longest", "most", "mtu", "send")

    def __init__(
        self,
        addresses: tuple[bytes, int, bytes, int],
        hopLimit: int,
        mtu: int,
        send: Callable[[bytes], object],
    ) -> None:
        flow = (IPv4Flow if len(addresses[0]) == 4 else IPv6Flow)(*addresses, hopLimit)
        self.addresses = addresses
        self.hopLimit = hopLimit
        self.frame = flow.frame
        self.longest = flow.longest
        self.mtu = mtu
        self.most = min(mtu - flow.headers, flow.longest)
        self.send = send


class ReceiveFlow:
    """
    The datagrams from one address and port that one port receives.

    @ivar sum: of the pseudo header without the length, and of the ports.
    @ivar header: the octets in front of the addresses, which were checked.
    @ivar size: octets of packets with that header.
    """

    __slots__ = ("address", "header", "port", "size", "sum")

    def __init__(self, port: Any, address: tuple[str, int], key: bytes) -> None:
        self.port = port
        self.address = address
        self.sum = (int.from_bytes(key, "big") + UDP) % 0xFFFF
        self.header = b""
        self.size = 0
