"""
Which device a command is to use, where it may say an address in place of one that is configured.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from twisted_ib.errors import DeviceError, HCAError
from twisted_ib.hca.device import registry
from twisted_ib.tools.program import ProgramError, sentence

#: The device that is meant if it is there.
_FIRST = "roce0"


def addressOf(host: str | None, passive: bool = False) -> str:
    """
    @param host: an address or a name, or L{None}.
    @param passive: whether it is one of this host.

    @return: the first address of it; nothing if there is none.

    @raise ProgramError: it is not known.
    """
    if not host:
        return ""
    try:
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE if passive else 0)
    except (OSError, UnicodeError) as error:
        raise ProgramError(f"{host}: {sentence(error)}") from None
    address = str(found[0][4][0])
    scope = found[0][4][3] if len(found[0][4]) == 4 else 0
    return f"{address}%{scope}" if scope and "%" not in address else address


def configure() -> None:
    """
    Add the devices that the environment and the configuration name.

    @raise ProgramError: what the environment says is wrong.
    """
    try:
        registry.readEnvironment()
    except DeviceError as error:
        raise ProgramError(sentence(error)) from None
    with suppress(DeviceError):  # A file with an error counts for nothing.
        registry.readConfiguration()


def chosen(name: str | None, own: str | None, peer: str | None = None) -> str:
    """
    Choose a device, and see to it that it is one.

    @param name: what the user names, if anything.
    @param own: the address that the user binds, if any; a name will do.
    @param peer: where the user wants to connect to, if anywhere.

    @return: its name.

    @raise ProgramError: there is no such device, or it needs an address and has none.
    """
    configure()
    if name is None:
        name = _FIRST if _FIRST in registry.DEVICES else registry.DEFAULT_DEVICE
    try:
        if registry.isPlacedByUser(name):
            address = registry.place(name, addressOf(own, True), addressOf(peer))
            registry.addDevice(name, "roce", address)
    except (HCAError, ValueError) as error:
        raise ProgramError(sentence(error)) from None
    return name
