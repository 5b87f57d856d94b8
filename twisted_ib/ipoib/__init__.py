"""
IP over InfiniBand (RFC 4391, 4392, 4755): IP packets over datagrams and reliable connections of an HCA.

L{listenIPoIB} is C{listenUDP} and C{listenMulticast} on an interface of the program's own; L{ipoibPort} is a
port for whole packets, as C{twisted.pair} has them.

Inside: C{protocol} is pure, with C{protocol.stack} for programs without a kernel's stack.  C{interface} is
one interface on a device, C{resolver} finds or opens it.  Its packets go to C{userspace}, which ports are on,
or by C{forwarder} to a TUN.

Besides:

  - C{connections}: the reliable connections of an interface (RFC 4755), by the device's connection management
  - C{driver}: the driver of an interface's machine
  - C{namespaces}: commands in user and network namespaces of their own (namespaces(7)), and TUN devices in
    those of others
  - C{port}: UDP ports and raw ports over IPoIB, for programs that run without privileges
  - C{subnetaccess}: an interface's requests to its subnet
  - C{tun}: a TUN device (Linux C{Documentation/networking/tuntap.rst}), its MTU and its addresses, by ioctl
    alone
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.ipoib.interface import IPacketConsumer, IPoIBInterface
    from twisted_ib.ipoib.port import ipoibPort, listenIPoIB
    from twisted_ib.ipoib.resolver import interfaceFor

__all__ = ["IPacketConsumer", "IPoIBInterface", "interfaceFor", "ipoibPort", "listenIPoIB"]


def __getattr__(name: str) -> object:
    # Imported on first use: a program that needs only a codec or the machine does not load ports.
    if name in ("IPacketConsumer", "IPoIBInterface"):
        from twisted_ib.ipoib import interface

        return getattr(interface, name)
    if name == "interfaceFor":
        from twisted_ib.ipoib import resolver

        return resolver.interfaceFor
    if name in ("ipoibPort", "listenIPoIB"):
        from twisted_ib.ipoib import port

        return getattr(port, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
