"""
The errors of verbs, by pyverbs' names (rdma-core 65, C{pyverbs/pyverbs_error.py}).
"""

from __future__ import annotations

import ctypes
import errno
import os

from twisted_ib import errors
from twisted_ib.errors import HCAError


class PyverbsError(HCAError):
    """
    Base of the errors of verbs.

    @ivar error_code: the errno, -1 if there is none.
    """

    def __init__(self, msg: str, error_code: int = -1) -> None:
        """
        @param msg: what went wrong.
        @param error_code: the errno; its number and text are added to the message.
        """
        if error_code != -1:
            msg = f"{msg}. Errno: {error_code}, {os.strerror(error_code)}"
        super().__init__(msg)
        self.error_code = error_code


class PyverbsRDMAError(PyverbsError):
    """
    A verb failed: C{error_code} says how.
    """


class PyverbsUserError(PyverbsError):
    """
    A call that cannot be right, whatever the device: it never got as far as a verb.
    """

    def __init__(self, msg: str) -> None:
        """
        @param msg: what is wrong with the call.
        """
        super().__init__(msg)


def PyverbsRDMAErrno(msg: str) -> PyverbsRDMAError:
    """
    @param msg: what went wrong.

    @return: an error with C's present errno, as pyverbs makes one.
    """
    return PyverbsRDMAError(msg, ctypes.get_errno())


ERRNOS: dict[type[HCAError], int] = {
    HCAError: errno.EIO,
    errors.WireError: errno.EPROTO,
    errors.ResourceLimitError: errno.ENOMEM,
    errors.WrongThreadError: errno.EPERM,
    errors.DeviceError: errno.EIO,
    errors.UnknownDeviceError: errno.ENODEV,
    errors.DeviceClosedError: errno.ENODEV,
    errors.RunDirectoryError: errno.EACCES,
    errors.ServiceInUseError: errno.EADDRINUSE,
    errors.NoRouteError: errno.ENETUNREACH,
    errors.NoListenerError: errno.ECONNREFUSED,
    errors.HandshakeError: errno.ECONNABORTED,
    errors.PeerIdentityError: errno.EACCES,
    errors.SilentPeerError: errno.ETIMEDOUT,
    errors.PathLostError: errno.ECONNRESET,
    errors.QueuePairError: errno.EINVAL,
    errors.MemoryRegionError: errno.EINVAL,
    errors.MemoryAccessError: errno.EINVAL,
    errors.ResourceBusyError: errno.EBUSY,
    errors.ConnectionStateError: errno.EINVAL,
}
"""
The errno of each error: what libibverbs and Linux rxe give in that case.  A class that is not
here has its base's.
"""


def errnoOf(error: HCAError) -> int:
    """
    @return: the errno of an error of twisted_ib.
    """
    return next(ERRNOS[kind] for kind in type(error).__mro__ if kind in ERRNOS)
