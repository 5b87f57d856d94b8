"""
The errors of verbs, by pyverbs' names (rdma-core 65, C{pyverbs/pyverbs_error.py}).
"""

from __future__ import annotations

import os

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
