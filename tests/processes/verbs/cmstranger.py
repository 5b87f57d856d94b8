"""
A program of verbs that knows nothing of Twisted, and talks to one that does: C{python -m
tests.processes.verbs.cmstranger SIDE}, where SIDE is C{call PORT} or C{listen}.
"""

from __future__ import annotations

import sys

from tests.processes.verbs.cmtalk import HOST, attributes
from twisted_ib.verbs.pyverbs import CMID, AddrInfo, ConnParam, enums

_SIGNALED = enums.IBV_SEND_SIGNALED


def _done(completion: object) -> object:
    """
    Be sure that a request has ended well.
    """
    assert completion is not None and completion.status == 0, completion  # type: ignore[attr-defined]
    return completion


def call(port: str) -> None:
    """
    Call L{tests.processes.programs.messenger.Messenger}: take its offer, read and write its memory, say
    something, and go.
    """
    space = enums.RDMA_PS_TCP
    with CMID(AddrInfo(dst=HOST, dst_service=port, port_space=space), attributes(space)) as made:
        message, data = made.reg_msgs(1 << 10), made.reg_msgs(1 << 16)
        made.post_recv(message)
        made.connect(ConnParam(rnr_retry=0))
        completion = _done(made.get_recv_comp())
        offer = message.read(completion.byte_len, 0)  # type: ignore[attr-defined]
        address, key = map(int, offer.split())
        data.write(b"by a stranger", 13)
        made.post_write(data, 13, address, key, flags=_SIGNALED)
        _done(made.get_send_comp())
        data.write(bytes(13), 13)
        made.post_read(data, 13, address, key, flags=_SIGNALED)
        _done(made.get_send_comp())
        assert data.read(13, 0) == b"by a stranger"
        for length in (1, 1000, 65536):
            data.write(b"s" * length, length)
            made.post_send(data, length=length)
            _done(made.get_send_comp())
        made.disconnect()
    print("done")


def listen() -> None:
    """
    Let it call: offer memory, take three messages and send them back.
    """
    space = enums.RDMA_PS_TCP
    info = AddrInfo(HOST, src_service="0", port_space=space, flags=enums.RAI_PASSIVE)
    with CMID(info, attributes(space)) as listener:
        listener.listen()
        assert listener.local_addr is not None
        print(listener.local_addr[1], flush=True)
        with listener.get_request() as made:
            message, offer, memory = made.reg_msgs(1 << 16), made.reg_msgs(64), made.reg_read(8)
            memory.write(b"readable", 8)
            made.post_recv(message)
            made.accept()
            text = b"%d %d" % (memory.buf, memory.rkey)
            offer.write(text, len(text))
            made.post_send(offer, length=len(text))
            _done(made.get_send_comp())
            for _ in range(3):
                length = _done(made.get_recv_comp()).byte_len  # type: ignore[attr-defined]
                offered = message.read(length, 0)
                made.post_recv(message)
                message.write(offered, length)
                made.post_send(message, length=length)
                _done(made.get_send_comp())
            made.disconnect()
    print("done")


if __name__ == "__main__":
    {"call": call, "listen": listen}[sys.argv[1]](*sys.argv[2:])
