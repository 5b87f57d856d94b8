"""
Turning what a device raises into the errors that Twisted's users know.

Each text is one line and names what failed.
"""

from __future__ import annotations

import errno
import os

from twisted.internet import error

from twisted_ib.errors import (
    DeviceError,
    NoListenerError,
    NoRouteError,
    ResourceLimitError,
    RunDirectoryError,
    ServiceInUseError,
    UnknownDeviceError,
)
from twisted_ib.hca.wire.cm import RejectReason
from twisted_ib.internet.addresses import withPort

cmReasons: dict[int, str] = {reason.value: reason.name for reason in RejectReason}


def oneLine(reason: object) -> str:
    """
    Give the text of an error without line ends and full stop: Twisted's errors
    add one.

    @param reason: an error.
    """
    if isinstance(reason, error.InvalidAddressError):
        reason = reason.message  # Its own text is a tuple.
    return " ".join(str(reason).split()).rstrip(".")


def connectError(reason: Exception, where: str) -> error.ConnectError:
    """
    Say in Twisted's terms why a connect failed.

    @param reason: What the device, the CM or a codec raised.
    @param where: The protocol, host and port.
    @return: one of L{twisted.internet.error}.
    """
    if isinstance(reason, error.ConnectError):
        return reason
    if isinstance(reason, NoListenerError):
        return refused(where)
    if isinstance(reason, NoRouteError):
        return error.NoRouteError(errno.ENETUNREACH, f"no HCA reaches {where}")
    text = oneLine(reason) or type(reason).__name__
    return error.ConnectError(string=f"{where}: {text}")


def refused(where: str) -> error.ConnectionRefusedError:
    """
    Nobody listens.

    @param where: the protocol, host and port.
    @return: the error for it.
    """
    return error.ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {where}")


def rejected(where: str, reason: int) -> error.ConnectionRefusedError:
    """
    Somebody listens and does not want this connection.

    @param where: the protocol, host and port.
    @param reason: A reason of the CM's REJ.
    @return: the error for it.
    """
    name = cmReasons.get(reason, "unknown").lower().replace("_", " ")
    return error.ConnectionRefusedError(
        errno.ECONNREFUSED, f"{where} rejected the connection: {name} ({reason})"
    )


def noAnswer(where: str) -> error.TCPTimedOutError:
    """
    The CM's retries are used up.

    @param where: the protocol, host and port.
    @return: the error for it.
    """
    return error.TCPTimedOutError(errno.ETIMEDOUT, f"{where} did not answer")


def timedOut(where: str, seconds: float | None) -> error.TimeoutError:
    """
    The user's timeout has passed.

    @param where: the protocol, host and port.
    @param seconds: the timeout.
    @return: the error for it.
    """
    return error.TimeoutError(string=f"{where} did not answer within {seconds} s")


def notOurs(host: str) -> error.ConnectBindError:
    """
    The address to connect from is not of this host, or not of the kind of the
    address to connect to.

    @param host: that address.
    @return: the error for it.
    """
    return error.ConnectBindError(errno.EADDRNOTAVAIL, f"{host} cannot be the local address")


def localPortInUse(host: str, port: int) -> error.ConnectBindError:
    """
    The number to connect from belongs to another connection, or no number is
    left.

    @param host: the local address.
    @param port: the number, or 0 for any.
    @return: the error for it.
    """
    what = f"the local port {withPort(host, port)} is in use" if port else f"no local port of {host} is free"
    return error.ConnectBindError(errno.EADDRINUSE, what)


_LISTEN_ERRORS: tuple[tuple[type[Exception], int], ...] = (
    (ServiceInUseError, errno.EADDRINUSE),
    (NoRouteError, errno.EADDRNOTAVAIL),
    (UnknownDeviceError, errno.ENODEV),
    (RunDirectoryError, errno.EACCES),
    (DeviceError, errno.ENODEV),
    (ResourceLimitError, errno.ENOBUFS),
    (ValueError, errno.EADDRNOTAVAIL),
)


def listenError(interface: str, port: int, device: str | None, reason: Exception) -> error.CannotListenError:
    """
    Say in Twisted's terms why a listen failed.

    @param interface: the address to listen on.
    @param port: the port.
    @param device: the HCA's name, if one was given.
    @param reason: what the device raised.
    @return: the error for it, with the number that C{errno} has for it.
    """
    number = next((code for kind, code in _LISTEN_ERRORS if isinstance(reason, kind)), errno.EIO)
    if isinstance(reason, ServiceInUseError):
        text = os.strerror(number)
    elif isinstance(reason, NoRouteError) and interface:
        text = f"{interface} is not an address of this host"
    else:
        text = oneLine(reason) or type(reason).__name__
        if isinstance(reason, UnknownDeviceError) and repr(device) not in text and str(device) not in text:
            text = f"device {device!r}: {text}"
    return error.CannotListenError(interface, port, OSError(number, text))
