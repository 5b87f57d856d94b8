"""
Listens with librdmacm, and rejects one request.

C{python3 reject.py ADDRESS PORT TEXT}; TEXT becomes the private data.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys

#: rdma/rdma_cma.h: RDMA_PS_TCP.
_TCP = 0x0106


def _address(text: str, port: int) -> bytes:
    """
    @return: a C{struct sockaddr_in} or C{sockaddr_in6}.
    """
    if ":" in text:
        octets = socket.inet_pton(socket.AF_INET6, text)
        return struct.pack("=H", socket.AF_INET6) + struct.pack(">HI16sI", port, 0, octets, 0)
    octets = socket.inet_pton(socket.AF_INET, text)
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", port, octets)


def main(address: str, port: str, text: str) -> None:
    """
    Do it.
    """
    library = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    library.rdma_create_event_channel.restype = ctypes.c_void_p

    def call(name: str, *arguments: object) -> None:
        if getattr(library, name)(*arguments):
            raise OSError(ctypes.get_errno(), name)

    channel = ctypes.c_void_p(library.rdma_create_event_channel())
    listener, event = ctypes.c_void_p(), ctypes.c_void_p()
    call("rdma_create_id", channel, ctypes.byref(listener), None, _TCP)
    call("rdma_bind_addr", listener, _address(address, int(port)))
    call("rdma_listen", listener, 1)
    call("rdma_get_cm_event", channel, ctypes.byref(event))
    # The first member of struct rdma_cm_event is the new identifier.
    identifier = ctypes.c_void_p.from_address(event.value or 0)
    data = text.encode()
    call("rdma_reject", ctypes.c_void_p(identifier.value), data, len(data))
    call("rdma_ack_cm_event", event)


if __name__ == "__main__":
    main(*sys.argv[1:])
