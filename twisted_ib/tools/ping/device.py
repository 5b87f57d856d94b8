"""
The choice of a command's device, which may be given by an address instead of a configured name.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from twisted_ib.errors import DeviceError, HCAError
from twisted_ib.hca.device import registry
from twisted_ib.tools.program import ProgramError, sentence

#: The default device, if it is configured.
_FIRST = "roce0"


def addressOf(host: str | None, passive: bool = False) -> str:
    """
    @param host: an address or a name, or L{None}.
    @param passive: whether it is one of this host.
    @return: its first address; an empty string without C{host}.
    @raise ProgramError: it cannot be resolved.
    """
    if not host:
        return ""
    try:
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE if passive else 0)
    except (OSError, UnicodeError) as error:
        raise ProgramError(f"{host}: {sentence(error)}") from None
    # RFC 4007 section 11: a link-local address means nothing without its zone, which getaddrinfo(3) gives as
    # a number.
    address = str(found[0][4][0])
    scope = found[0][4][3] if len(found[0][4]) == 4 else 0
    return f"{address}%{scope}" if scope and "%" not in address else address


def configure() -> None:
    """
    Add the devices of the environment and the configuration file.

    @raise ProgramError: the environment has an error.
    """
    try:
        registry.readEnvironment()
    except DeviceError as error:
        raise ProgramError(sentence(error)) from None
    # An error in the file must not stop a command that needs none of its devices.
    with suppress(DeviceError):
        registry.readConfiguration()


def chosen(name: str | None, own: str | None, peer: str | None = None) -> str:
    """
    Choose a device, and add it if necessary.

    @param name: the user's choice, if any.
    @param own: the local address that the user names, if any.
    @param peer: the peer's address, if any.
    @return: its name.
    @raise ProgramError: there is no such device, or it needs an address and has none.
    """
    configure()
    if name is None:
        name = _FIRST if _FIRST in registry.DEVICES else registry.DEFAULT_DEVICE
    try:
        if registry.isPlacedByUser(name):
            # The route to the peer decides if the user gives no local address, as in rdma_resolve_addr(3).
            address = registry.place(name, addressOf(own, True), addressOf(peer))
            registry.addDevice(name, registry.kindOf(name).name, address)
    except (HCAError, ValueError) as error:
        raise ProgramError(sentence(error)) from None
    return name
