"""
A TUN device (Linux C{Documentation/networking/tuntap.rst}), its MTU and its addresses, by ioctl alone.

netdevice(7) and ipv6(7) have the requests.  A descriptor of a TUN, and a socket, belong to the network
namespace in which they were opened, wherever they are used later: so a process outside can configure what a
child has opened within.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface
from typing import TYPE_CHECKING

from twisted_ib.errors import TunError

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


NODE = "/dev/net/tun"
#: linux/if.h, IFNAMSIZ, without the terminating zero.
NAME_BYTES = 15
#: Of IPv6 (RFC 8200 section 5): an interface with a smaller MTU has no IPv6.
IPV6_MTU = 1280

# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x1, 0x1000
# linux/sockios.h
_SIOCADDRT = 0x890B
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFBRDADDR, _SIOCSIFNETMASK = 0x8916, 0x891A, 0x891C
_SIOCSIFMTU = 0x8922
_SIOCGIFINDEX = 0x8933
_IFF_UP = 0x1
_RTF_UP = 0x1

# struct ifreq (net/if.h) with flags, with a number, and with an address; struct in6_ifreq (linux/ipv6.h).
_FLAGS: Packed[tuple[bytes, int]] = struct.Struct("=16sH22x")
_NUMBER: Packed[tuple[bytes, int]] = struct.Struct("=16si20x")
_ADDRESS: Packed[tuple[bytes, int, int, bytes]] = struct.Struct("=16sHH4s16x")
_ADDRESS6: Packed[tuple[bytes, int, int]] = struct.Struct("=16sIi")
# struct rtentry (net/route.h), without the alignment that the native form gives the fields.
_ROUTE: Packed[
    tuple[int, int, int, bytes, int, int, bytes, int, int, bytes, int, int, int, int, int, int, int, int, int]
] = struct.Struct("@LHH4s8xHH4s8xHH4s8xHhLPhPLLH6x")

#: linux/in6_addrgen.h, IN6_ADDR_GEN_MODE_NONE.
_NO_ADDRESSES = "1"
_MULTICAST = ("224.0.0.0", "240.0.0.0")


def _name(name: str) -> bytes:
    return name.encode("ascii", "replace")


def _openNode(node: str) -> int:
    try:
        return os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise TunError(
            f"{node} does not exist: load the kernel's module tun, or give the container the device"
            " (--device /dev/net/tun)"
        ) from None
    except PermissionError:
        mode = os.stat(node).st_mode & 0o7777
        raise TunError(
            f"{node} has mode {mode:04o}, and this user may not open it: an administrator can make it 0666,"
            " as it is on most hosts"
        ) from None
    except OSError as error:
        raise TunError(f"{node} is no TUN device of this kernel: {error.strerror}") from None


def _attach(descriptor: int, name: str) -> None:
    # Without IFF_VNET_HDR: TCP segments and checksums are made by the kernel, several times as fast as here.
    flags = _IFF_TUN | _IFF_NO_PI
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, _FLAGS.pack(_name(name), flags))
    except OSError as error:
        if error.errno == errno.EPERM:
            reason = "this needs CAP_NET_ADMIN"
        elif error.errno == errno.EBUSY:
            reason = "there is such a TUN device already"
        elif error.errno == errno.EINVAL:
            reason = "no valid name, or that of another interface"
        else:
            reason = str(error.strerror)
        raise TunError(f"{name} was not made: {reason}") from None


def _refuseAddresses(name: str) -> None:
    # Linux net/ipv6/addrconf.c: a TUN gets a random link-local address when it comes up, of which neighbours
    # on the subnet know nothing.
    try:
        with open(f"/proc/sys/net/ipv6/conf/{name}/addr_gen_mode", "w") as file:
            file.write(_NO_ADDRESSES)
    except FileNotFoundError:
        # A kernel without IPv6.
        pass
    except OSError as error:
        raise TunError(f"addr_gen_mode of {name} was not set: {error.strerror}") from None


def isName(name: str) -> bool:
    """
    Return whether an interface can have a name: Linux C{net/core/dev.c}, C{dev_valid_name}, without "%",
    which stands for a number, and without what is no interface below C{/proc/sys/net/ipv6/conf}.
    """
    isValid = re.fullmatch(rf"[!-$&-.0-9;-~]{{1,{NAME_BYTES}}}", name) is not None
    return isValid and name not in (".", "..", "all", "default")


class Tun:
    """
    A TUN device, made by whoever opens it and gone when its descriptor is closed.

    @ivar name: the interface's.
    @ivar descriptor: of its packets; non-blocking.
    """

    def __init__(self, name: str, descriptors: Sequence[int]) -> None:
        """
        @param descriptors: those of L{descriptors}, of another process's object; this takes them over.
        """
        self.name = name
        self.descriptor, *sockets = descriptors
        self._sockets = [socket.socket(fileno=each) for each in sockets]

    @classmethod
    def open(cls, name: str, node: str = NODE) -> Tun:
        """
        Make a TUN device in the network namespace of the calling thread.

        @raise TunError: that cannot be done here; the text says what is missing.
        """
        if not isName(name):
            raise TunError(f"{name!r} is no name of an interface: 1 to {NAME_BYTES} letters and digits")
        descriptor = _openNode(node)
        try:
            _attach(descriptor, name)
            _refuseAddresses(name)
            sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
        except BaseException:
            os.close(descriptor)
            raise
        try:
            sockets.append(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        except OSError:
            # A kernel without IPv6.
            pass
        return cls(name, [descriptor, *(each.detach() for each in sockets)])

    @property
    def descriptors(self) -> list[int]:
        """
        The descriptors that another process needs to use the device.
        """
        return [self.descriptor, *(each.fileno() for each in self._sockets)]

    def begin(self, mtu: int, addresses: Iterable[IPv4Interface | IPv6Interface]) -> None:
        """
        Set the MTU and the addresses, with routes to their networks, and bring the interface up.

        @param addresses: IPv6 ones are left out where IPv6 cannot be.
        @raise TunError: the kernel refuses.
        """
        self.setMTU(mtu)
        self._setUp(self.name)
        isFirst, label = 0, self.name
        for address in addresses:
            if isinstance(address, IPv6Interface):
                if mtu >= IPV6_MTU and len(self._sockets) > 1:
                    self._addIPv6(address)
            else:
                # netdevice(7): SIOCSIFADDR sets the one address of a label, so each has its own.
                label = f"{self.name}:{isFirst}" if isFirst else self.name
                isFirst += 1
                self._addIPv4(label, address)

    def setMTU(self, mtu: int) -> None:
        """
        @raise TunError: the kernel refuses.
        """
        self._request(_SIOCSIFMTU, _NUMBER.pack(_name(self.name), mtu), f"MTU {mtu}")

    def routeMulticast(self) -> None:
        """
        Route all IPv4 multicast to the interface, which is up, as in a namespace that has no other.

        @raise TunError: the kernel refuses.
        """
        name = ctypes.create_string_buffer(_name(self.name))
        network, mask = (IPv4Address(each).packed for each in _MULTICAST)
        inet = socket.AF_INET
        route = _ROUTE.pack(
            *(0, inet, 0, network, inet, 0, bytes(4), inet, 0, mask),
            *(_RTF_UP, 0, 0, 0, 0, ctypes.addressof(name), 0, 0, 0),
        )
        self._request(_SIOCADDRT, route, "a route for multicast")

    def bringUpLoopback(self) -> None:
        """
        Bring C{lo} up, which a new network namespace has down.

        @raise TunError: the kernel refuses.
        """
        self._setUp("lo")

    def close(self) -> None:
        """
        Close; the interface disappears with its addresses.  Idempotent.
        """
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        for each in self._sockets:
            each.close()

    def _setUp(self, name: str) -> None:
        said = self._request(_SIOCGIFFLAGS, _FLAGS.pack(_name(name), 0), f"the flags of {name}")
        _, flags = _FLAGS.unpack(said)
        self._request(_SIOCSIFFLAGS, _FLAGS.pack(_name(name), flags | _IFF_UP), f"{name} up")

    def _addIPv4(self, label: str, address: IPv4Interface) -> None:
        network = address.network
        # A TUN is a point-to-point interface, which the kernel gives /32 and no broadcast address.
        for request, value in (
            (_SIOCSIFADDR, address.ip),
            (_SIOCSIFNETMASK, network.netmask),
            (_SIOCSIFBRDADDR, network.broadcast_address),
        ):
            if request != _SIOCSIFBRDADDR or network.num_addresses > 2:
                what = _ADDRESS.pack(_name(label), socket.AF_INET, 0, value.packed)
                self._request(request, what, str(address))

    def _addIPv6(self, address: IPv6Interface) -> None:
        said = self._request(_SIOCGIFINDEX, _NUMBER.pack(_name(self.name), 0), "its index")
        _, index = _NUMBER.unpack(said)
        what = _ADDRESS6.pack(address.packed, address.network.prefixlen, index)
        self._request(_SIOCSIFADDR, what, str(address), self._sockets[1])

    def _request(self, number: int, argument: bytes, what: str, on: socket.socket | None = None) -> bytes:
        try:
            return fcntl.ioctl((on or self._sockets[0]).fileno(), number, argument)
        except OSError as error:
            reason = "this needs CAP_NET_ADMIN" if error.errno == errno.EPERM else error.strerror
            raise TunError(f"{self.name}: {what} was not set: {reason}") from None
