"""
Exceptions of verbs, with pyverbs' names (rdma-core 65, C{pyverbs/pyverbs_error.py}).
"""

from __future__ import annotations

import ctypes
import errno
import os

from twisted_ib import errors
from twisted_ib.errors import HCAError


class PyverbsError(HCAError):
    """
    Base class.

    @ivar error_code: the errno, -1 if there is none.
    """

    def __init__(self, msg: str, error_code: int = -1) -> None:
        # As pyverbs: the message ends in the number and the text of the errno.
        if error_code != -1:
            msg = f"{msg}. Errno: {error_code}, {os.strerror(error_code)}"
        super().__init__(msg)
        self.error_code = error_code


class PyverbsRDMAError(PyverbsError):
    """
    A verb failed; C{error_code} is its errno.
    """


class PyverbsUserError(PyverbsError):
    """
    A call that is wrong on any device: it fails before a verb runs, so it has no errno.
    """

    def __init__(self, msg: str) -> None:
        super().__init__(msg)


def PyverbsRDMAErrno(msg: str) -> PyverbsRDMAError:
    """
    @return: an error with C's current errno, as in C{pyverbs/base.pyx}.
    """
    # ctypes keeps a private copy of errno per thread; only libraries loaded with use_errno set it.
    return PyverbsRDMAError(msg, ctypes.get_errno())


#: The errno of each error, as libibverbs and Linux rxe return it.  A class that is missing here has its
#: base's.
ERRNOS: dict[type[HCAError], int] = {
    HCAError: errno.EIO,
    errors.WireError: errno.EPROTO,
    # Linux rxe_verbs.c: ENOMEM for a full work queue, too.
    errors.ResourceLimitError: errno.ENOMEM,
    errors.WrongThreadError: errno.EPERM,
    errors.DeviceError: errno.EIO,
    errors.UnknownDeviceError: errno.ENODEV,
    errors.DeviceClosedError: errno.ENODEV,
    errors.RunDirectoryError: errno.EACCES,
    errors.ServiceInUseError: errno.EADDRINUSE,
    errors.NoRouteError: errno.ENETUNREACH,
    # librdmacm/cma.c ucma_complete: a rejected connect is ECONNREFUSED, as for connect(2).
    errors.NoListenerError: errno.ECONNREFUSED,
    errors.HandshakeError: errno.ECONNABORTED,
    errors.PeerIdentityError: errno.EACCES,
    errors.SilentPeerError: errno.ETIMEDOUT,
    errors.PathLostError: errno.ECONNRESET,
    # Linux rxe_qp.c: EINVAL for a transition or attribute that the state table refuses.
    errors.QueuePairError: errno.EINVAL,
    errors.UnsupportedOperationError: errno.EOPNOTSUPP,
    errors.MemoryRegionError: errno.EINVAL,
    errors.UnsupportedRegionError: errno.EOPNOTSUPP,
    errors.MemoryAccessError: errno.EINVAL,
    errors.ResourceBusyError: errno.EBUSY,
    errors.ConnectionStateError: errno.EINVAL,
    # Linux sa_query.c, recv_handler and send_handler.
    errors.NoSubnetManagerError: errno.EAGAIN,
    errors.SATimeoutError: errno.ETIMEDOUT,
    errors.SAStatusError: errno.EINVAL,
}


def errnoOf(error: HCAError) -> int:
    """
    @return: the errno of an error of twisted_ib: its class's, else the nearest base's.
    """
    return next(ERRNOS[kind] for kind in type(error).__mro__ if kind in ERRNOS)
