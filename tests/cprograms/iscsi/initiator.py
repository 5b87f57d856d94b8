"""
A program of libiscsi: it writes a disk in requests of several sizes, and reads it in others.

Arguments: the URL of the LUN, and the initiator's name.  It prints the hashes of what it wrote and read.
"""

from __future__ import annotations

import hashlib
import random
import sys
from ctypes import (
    CDLL,
    Structure,
    addressof,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint32,
    c_void_p,
    create_string_buffer,
)

BLOCK = 512
TOTAL = 8 << 20
#: libiscsi's iSER takes no requests of 512 KiB and more.
WRITES = (4 << 10, 32 << 10, 256 << 10)
READS = (256 << 10, 8 << 10, 64 << 10)
NORMAL_SESSION, ISER = 2, 1


class Vector(Structure):
    """
    C{struct scsi_iovec}.
    """

    _fields_ = (("base", c_void_p), ("size", c_size_t))


if __name__ == "__main__":
    # Who only looks at this module need not have it.
    library = CDLL("libiscsi.so.7")
    for name in ("iscsi_create_context", "iscsi_read10_iov_sync", "iscsi_write10_sync"):
        getattr(library, name).restype = c_void_p
    library.iscsi_get_error.restype = c_char_p


def check(context: c_void_p, task: int | None, what: str) -> None:
    """
    End if a request has failed.
    """
    if not task or library.scsi_task_get_status(c_void_p(task), None):
        sys.exit(f"{what}: {library.iscsi_get_error(context).decode()}")
    library.scsi_free_scsi_task(c_void_p(task))


def connected(url: str, initiator: str) -> c_void_p:
    """
    @return: a context that has logged in.
    """
    context = c_void_p(library.iscsi_create_context(initiator.encode()))
    portal, rest = url.removeprefix("iser://").split("/", 1)
    target, lun = rest.rsplit("/", 1)
    failed = (
        library.iscsi_init_transport(context, ISER)
        or library.iscsi_set_targetname(context, target.encode())
        or library.iscsi_set_session_type(context, NORMAL_SESSION)
        or library.iscsi_full_connect_sync(context, portal.encode(), int(lun))
    )
    if failed:
        sys.exit(f"login: {library.iscsi_get_error(context).decode()}")
    return context


def main() -> None:
    """
    Write and read.
    """
    context = connected(*sys.argv[1:3])
    lun = int(sys.argv[1].rsplit("/", 1)[1])
    for size, reads in zip(WRITES, READS, strict=True):
        data = random.Random(size).randbytes(TOTAL)
        for at in range(0, TOTAL, size):
            piece = create_string_buffer(data[at : at + size], size)
            task = library.iscsi_write10_sync(
                *(context, lun, c_uint32(at // BLOCK), piece, c_uint32(size), BLOCK, 0, 0, 0, 0, 0)
            )
            check(context, task, f"write of {size} at {at}")
        found = hashlib.sha256()
        for at in range(0, TOTAL, reads):
            piece = create_string_buffer(reads)
            vector = Vector(addressof(piece), reads)
            task = library.iscsi_read10_iov_sync(
                *(context, lun, c_uint32(at // BLOCK), c_uint32(reads), BLOCK, 0, 0, 0, 0, 0),
                *(byref(vector), c_int(1)),
            )
            check(context, task, f"read of {reads} at {at}")
            found.update(piece.raw)
        print(hashlib.sha256(data).hexdigest(), found.hexdigest(), flush=True)
    library.iscsi_logout_sync(context)
    library.iscsi_destroy_context(context)


if __name__ == "__main__":
    main()
