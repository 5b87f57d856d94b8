"""
Errors of a device translated into those of C{twisted.internet.error}.

Each text is one line and names what failed.
"""

from __future__ import annotations

import errno
import os

from twisted.internet import error

from twisted_ib.errors import (
    EXHAUSTED,
    DeviceError,
    HiddenListenerError,
    NoListenerError,
    NoRouteError,
    ResourceLimitError,
    RunDirectoryError,
    ServiceInUseError,
    UnknownDeviceError,
    UnsupportedOperationError,
)
from twisted_ib.hca.connection import RejectReason
from twisted_ib.internet.addressing.addresses import withPort

#: How many causes of an error are looked through.
_CAUSES = 8

cmReasons: dict[int, str] = {reason.value: reason.name for reason in RejectReason}


def oneLine(reason: object) -> str:
    """
    Return an error's text as one line without the full stop, which Twisted's errors add.
    """
    if isinstance(reason, error.InvalidAddressError):
        # The str() of this class is that of a tuple.
        reason = reason.message
    return " ".join(str(reason).split()).rstrip(".")


def _exhaustion(reason: BaseException | None) -> int:
    # The number of the OSError behind an error, if no descriptor was free; else 0.
    for _ in range(_CAUSES):
        if isinstance(reason, OSError) and reason.errno in EXHAUSTED:
            return reason.errno
        reason = None if reason is None else reason.__cause__
    return 0


def connectError(reason: Exception, where: str) -> error.ConnectError:
    """
    Translate the reason of a failed connect.

    @param reason: an exception of the device, the CM or a codec.
    @param where: protocol, host and port.
    """
    if isinstance(reason, error.ConnectError):
        return reason
    exhausted = _exhaustion(reason)
    if exhausted:
        # As tcp.BaseClient reports that it gets no socket.
        return error.ConnectBindError(exhausted, f"{where}: {os.strerror(exhausted)}")
    if isinstance(reason, HiddenListenerError):
        return refused(where, oneLine(reason))
    if isinstance(reason, NoListenerError):
        return refused(where)
    if isinstance(reason, NoRouteError):
        # OFED's sdp_cma.c reports the same errno for RDMA_CM_EVENT_ADDR_ERROR and _UNREACHABLE.
        return error.NoRouteError(errno.ENETUNREACH, f"no HCA reaches {where}")
    text = oneLine(reason) or type(reason).__name__
    return error.ConnectError(string=f"{where}: {text}")


def refused(where: str, why: str = "") -> error.ConnectionRefusedError:
    """
    Return the error for a port without a listener.

    @param why: there is one, but not for us.
    """
    text = f"{where}: {why}" if why else f"nobody listens on {where}"
    # IBTA vol. 1 12.6.7.2, reason 8 (invalid service id) is the CM's form of TCP's RST to a SYN (RFC 9293
    # section 3.10.7.1).
    return error.ConnectionRefusedError(errno.ECONNREFUSED, text)


def rejected(where: str, reason: int) -> error.ConnectionRefusedError:
    """
    Return the error for a REJ of another reason than a missing listener.

    @param reason: the reason code (IBTA vol. 1 12.6.7.2).
    """
    name = cmReasons.get(reason, "unknown").lower().replace("_", " ")
    # OFED's sdp_cma.c reports ECONNREFUSED for every RDMA_CM_EVENT_REJECTED; the code is in the text only.
    return error.ConnectionRefusedError(
        errno.ECONNREFUSED, f"{where} rejected the connection: {name} ({reason})"
    )


def noAnswer(where: str) -> error.TCPTimedOutError:
    """
    Return the error for exhausted CM retries.
    """
    return error.TCPTimedOutError(errno.ETIMEDOUT, f"{where} did not answer")


def timedOut(where: str, seconds: float | None) -> error.TimeoutError:
    """
    Return the error for the expired timeout of the user, in seconds.
    """
    return error.TimeoutError(string=f"{where} did not answer within {seconds} s")


def notOurs(host: str) -> error.ConnectBindError:
    """
    Return the error for a C{bindAddress} of another host or another address family than the peer's.
    """
    return error.ConnectBindError(errno.EADDRNOTAVAIL, f"{host} cannot be the local address")


def localPortInUse(host: str, port: int) -> error.ConnectBindError:
    """
    Return the error for a local port in use, or, for port 0, for an exhausted range.
    """
    what = f"the local port {withPort(host, port)} is in use" if port else f"no local port of {host} is free"
    return error.ConnectBindError(errno.EADDRINUSE, what)


#: The numbers of Twisted's errors that have none of their own; the first match counts.
_NUMBERS = (
    (error.ConnectionRefusedError, errno.ECONNREFUSED),
    (error.TimeoutError, errno.ETIMEDOUT),
    (error.TCPTimedOutError, errno.ETIMEDOUT),
    (error.NoRouteError, errno.ENETUNREACH),
    (error.ConnectBindError, errno.EADDRNOTAVAIL),
    (error.UserError, errno.ECONNABORTED),
    (error.ConnectError, errno.EHOSTUNREACH),
)


def osError(reason: BaseException | None) -> OSError:
    """
    Return Twisted's reason why a connection was not made or broke as the operating system's error.
    """
    if isinstance(reason, OSError):
        return reason
    number = getattr(reason, "osError", None)
    if not isinstance(number, int):
        number = next((code for kind, code in _NUMBERS if isinstance(reason, kind)), errno.ECONNRESET)
    text, detail = os.strerror(number), oneLine(reason.args[0] if reason is not None and reason.args else "")
    # Its subclass by the number: ConnectionRefusedError and the like.
    return OSError(number, text if detail in ("", text) else f"{text} ({detail})")


# The first match counts, so subclasses of DeviceError stand before it.
_LISTEN_ERRORS: tuple[tuple[type[Exception], int], ...] = (
    (ServiceInUseError, errno.EADDRINUSE),
    (NoRouteError, errno.EADDRNOTAVAIL),
    (UnknownDeviceError, errno.ENODEV),
    (RunDirectoryError, errno.EACCES),
    (DeviceError, errno.ENODEV),
    (ResourceLimitError, errno.ENOBUFS),
    (UnsupportedOperationError, errno.EOPNOTSUPP),
    (ValueError, errno.EADDRNOTAVAIL),
)


def listenError(interface: str, port: int, device: str | None, reason: Exception) -> error.CannotListenError:
    """
    Translate the reason of a failed listen into C{CannotListenError}, whose C{socketError} has an C{errno}.

    @param device: the HCA's name, if one was given.
    """
    number = next((code for kind, code in _LISTEN_ERRORS if isinstance(reason, kind)), errno.EIO)
    exhausted = _exhaustion(reason)
    if exhausted:
        number, text = exhausted, os.strerror(exhausted)
    elif isinstance(reason, ServiceInUseError):
        text = os.strerror(number)
    elif isinstance(reason, NoRouteError) and interface:
        text = f"{interface} is not an address of this host"
    else:
        text = oneLine(reason) or type(reason).__name__
        if isinstance(reason, UnknownDeviceError) and repr(device) not in text and str(device) not in text:
            text = f"device {device!r}: {text}"
    return error.CannotListenError(interface, port, OSError(number, text))
