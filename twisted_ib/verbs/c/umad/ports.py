"""
Open ports, their agents, and what is sent and received there.

An open port is a descriptor, as of C{/dev/infiniband/umadN}: readable while a MAD waits.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from socket import htonl, htons, ntohl, ntohs
from typing import Final

from _twisted_ib_umad import ffi

from twisted_ib.errors import HCAError
from twisted_ib.hca.mad.rmpp.receiver import RMPP_TABLE_BYTES
from twisted_ib.hca.mad.user import UserMAD, UserPort
from twisted_ib.hca.mad.vendor import OPENIB
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import ORGANIZATION_CLASSES
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, given
from twisted_ib.verbs.c.umad.buffers import HEADER_BYTES, debug, mad, textOf
from twisted_ib.verbs.c.umad.devices import portOf
from twisted_ib.verbs.core.hub import hub

#: Octets of the longest MAD of a program.
_LONGEST: Final = MAD_BYTES + RMPP_TABLE_BYTES
_METHODS: Final = 128
_MASK_BYTES: Final = _METHODS // 8
#: C{UMAD_USER_RMPP}: the program has RMPP itself.
_USER_RMPP: Final = 1
_OUI_BYTES: Final = 3

#: By their descriptors, which bound them; with each this library's own of the same counter: a program may
#: close the other, and open a file of that number.
_ports: dict[int, tuple[UserPort, int]] = {}


def _readable(fd: int) -> Callable[[bool], None]:
    def tell(isReadable: bool) -> None:
        if isReadable:
            os.eventfd_write(fd, 1)
        else:
            # The program may have read it.
            with suppress(BlockingIOError):
                os.eventfd_read(fd)

    return tell


def _portOf(portid: int) -> UserPort:
    found = _ports.get(portid)
    if found is None:
        raise HandleError(f"{portid} is no open port")
    return found[0]


@handler
def umad_open_port(ca_name: CData, portnum: int) -> int:
    device = portOf(textOf(ca_name), portnum)
    with hub:
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            own = os.dup(fd)
        except OSError:
            os.close(fd)
            raise
        if fd in _ports:
            # The program has closed that of another port.
            _close(fd)
        _ports[fd] = UserPort(device, _readable(own)), own
    debug(f"port {fd} is open at {device.name}")
    return fd


@handler
def umad_open_smi_port(ca_name: CData, portnum: int) -> int:
    """
    Open a port for the datagrams of subnet management: each takes them.
    """
    return umad_open_port(ca_name, portnum)


def _close(portid: int) -> None:
    port, own = _ports.pop(portid)
    port.close()
    os.close(own)


@handler
def umad_close_port(portid: int) -> int:
    with hub:
        _portOf(portid)
        _close(portid)
    with suppress(OSError):
        os.close(portid)
    return 0


@handler
def umad_get_fd(portid: int) -> int:
    _portOf(portid)
    return portid


@handler
def umad_poll(portid: int, timeout_ms: int) -> int:
    """
    Wait for a MAD: that has been done.
    """
    return 0


def _methods(mask: CData) -> list[int]:
    if not mask:
        return []
    # C{long}s of the host, or 64-bit words: the same on hosts that count octets from the lowest.
    bits = int.from_bytes(bytes(ffi.buffer(ffi.cast("char *", mask), _MASK_BYTES)), "little")
    return [method for method in range(_METHODS) if bits >> method & 1]


def _registered(portid: int, class_: int, version: int, rmpp: int, oui: int, mask: CData) -> int:
    _portOf(portid)
    try:
        return _register(portid, class_, version, rmpp, oui, mask)
    except (HCAError, ValueError) as error:
        # umad_register(3).
        raise HandleError(str(error), errno.EPERM) from None


def _register(portid: int, class_: int, version: int, rmpp: int, oui: int, mask: CData) -> int:
    with hub:
        number = _portOf(portid).register(class_ & 0xFF, version & 0xFF, _methods(mask), rmpp, oui)
    debug(f"port {portid} has agent {number} of class {class_:#04x} version {version}")
    return number


@handler
def umad_register(
    portid: int, mgmt_class: int, mgmt_version: int, rmpp_version: int, method_mask: CData
) -> int:
    return _registered(portid, mgmt_class, mgmt_version, rmpp_version, OPENIB, method_mask)


@handler
def umad_register_oui(portid: int, mgmt_class: int, rmpp_version: int, oui: CData, method_mask: CData) -> int:
    if mgmt_class not in ORGANIZATION_CLASSES:
        raise HandleError(f"Class {mgmt_class:#04x} has no OUI")
    given(oui)
    number = int.from_bytes(bytes(ffi.buffer(ffi.cast("char *", oui), _OUI_BYTES)), "big")
    return _registered(portid, mgmt_class, 1, rmpp_version, number, method_mask)


@handler
def umad_register2(portid: int, attr: CData, agent_id: CData) -> int:
    """
    Register an agent; flags that are not known are cleared in C{attr}, and refused.
    """
    given(attr, agent_id)
    unknown = attr.flags & ~_USER_RMPP
    if unknown:
        attr.flags = _USER_RMPP
        raise HandleError(f"There are no flags {unknown:#x}")
    if attr.mgmt_class in ORGANIZATION_CLASSES and not 0 < attr.oui < 1 << 8 * _OUI_BYTES:
        raise HandleError(f"No organization has the OUI {attr.oui:#x}")
    mask = ffi.new("char[]", b"".join(word.to_bytes(8, "little") for word in attr.method_mask))
    rmpp = 0 if attr.flags & _USER_RMPP else attr.rmpp_version
    agent_id[0] = _register(portid, attr.mgmt_class, attr.mgmt_class_version, rmpp, attr.oui, mask)
    return 0


@handler
def umad_unregister(portid: int, agentid: int) -> int:
    with hub:
        _portOf(portid).unregister(agentid)
    return 0


def _vector(addr: CData) -> AddressVector:
    lid, sl = ntohs(addr.lid), addr.sl & 0xF
    if not addr.grh_present:
        return AddressVector(0, lid=lid, serviceLevel=sl, isGlobal=False)
    gid = int.from_bytes(bytes(ffi.buffer(addr.gid)), "big")
    label = ntohl(addr.flow_label) & 0xFFFFF
    return AddressVector(gid, 0, label, addr.hop_limit, addr.traffic_class, lid=lid, serviceLevel=sl)


@handler
def umad_send(portid: int, agentid: int, umad: CData, length: int, timeout_ms: int, retries: int) -> int:
    if not umad or not 0 < length <= _LONGEST:
        raise HandleError(f"A MAD has no {length} octets")
    found = mad(umad)
    found.timeout_ms, found.retries, found.agent_id = timeout_ms & 0xFFFFFFFF, retries & 0xFFFFFFFF, agentid
    octets = bytes(ffi.buffer(ffi.cast("char *", umad) + HEADER_BYTES, length))
    addr = found.addr
    with hub:
        port = _portOf(portid)
        try:
            port.send(
                *(agentid, _vector(addr), ntohl(addr.qpn), octets, timeout_ms, retries, ntohl(addr.qkey))
            )
        except (HCAError, ValueError) as error:
            debug(str(error))
            raise
    return 0


def _fill(target: CData, found: UserMAD) -> None:
    target.agent_id, target.status = found.agent, found.status
    target.length = HEADER_BYTES + len(found.octets)
    addr, source = target.addr, found.source
    ffi.memmove(ffi.addressof(target, "addr"), bytes(ffi.sizeof(addr)), ffi.sizeof(addr))
    addr.qpn, addr.lid, addr.sl = htonl(found.queuePair), htons(source.lid), source.serviceLevel
    if source.isGlobal:
        addr.grh_present, addr.gid = 1, source.gid.to_bytes(16, "big")
        addr.hop_limit, addr.traffic_class = source.hopLimit, source.trafficClass
        addr.flow_label = htonl(source.flowLabel)


@handler
def umad_recv(portid: int, umad: CData, length: CData, timeout_ms: int) -> int:
    given(umad, length)
    room = int(length[0])
    with hub:
        found = _portOf(portid).receive(room)
    if found is None:
        raise HandleError("No MAD waits", errno.EAGAIN)
    _fill(mad(umad), found)
    length[0] = len(found.octets)
    if len(found.octets) > room:
        # It stays; the program comes again with more room.
        raise HandleError(f"The MAD has {len(found.octets)} octets", errno.ENOSPC)
    ffi.memmove(ffi.cast("char *", umad) + HEADER_BYTES, found.octets, len(found.octets))
    return found.agent
