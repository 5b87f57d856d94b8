"""
A Python in a guest that has imported what programs of this package need, which takes most of their time where
a processor is emulated: they are forked from it.

C{ready.py serve}: that one.  C{ready.py PROGRAM WORD...}: a program, with the descriptors and the environment
of this process, which ends as it does, and takes it along where it is killed.  Without the one that serves,
this process becomes the program.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SOCKET = "/tmp/ready"
#: A request: the words and the environment.
_BYTES = 65536
#: All that the programs import; none installs a reactor.
MODULES = (
    "ibverbs",
    "twisted.internet.endpoints",
    "twisted_ib.hca.fabric.hardware.hardware",
    "twisted_ib.hca.fabric.iwarp.iwarp",
    "twisted_ib.hca.fabric.shm.shm",
    "twisted_ib.rdma",
    "twisted_ib.rds",
    "twisted_ib.reactor.ibreactor",
    "twisted_ib.sdp",
    "twisted_ib.switch",
    "twisted_ib.verbs.pyverbs",
)


def run(words: list[str], environment: dict[str, str]) -> None:
    """
    Be a program.
    """
    import runpy

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = words
    runpy.run_path(words[0], run_name="__main__")


def guard(client: socket.socket) -> None:
    """
    Start a program, and end with it, or it with its client.
    """
    import select
    from contextlib import suppress

    request, descriptors, _, _ = socket.recv_fds(client, _BYTES, 3)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    for target, descriptor in enumerate(descriptors):
        if not child:
            os.dup2(descriptor, target)
        os.close(descriptor)
    if not child:
        client.close()
        run(*json.loads(request))
        return
    end = os.pidfd_open(child)
    poll = select.poll()
    for each in (end, client):
        poll.register(each, select.POLLIN)
    if end not in dict(poll.poll()):
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        client.send(bytes([status if status >= 0 else 128 - status]), socket.MSG_NOSIGNAL)
    os._exit(0)


def serve() -> None:
    """
    Import everything, and fork.
    """
    import importlib

    for each in MODULES:
        importlib.import_module(each)
    assert "twisted.internet.reactor" not in sys.modules
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(SOCKET)
    listener.listen(8)
    # Nobody waits for those that guard.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            guard(client)
            return
        client.close()


def ask(words: list[str]) -> int:
    """
    @return: the status of a program.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(SOCKET)
        except OSError:
            os.execv(sys.executable, [sys.executable, *words])
        socket.send_fds(server, [json.dumps([words, dict(os.environ)]).encode()], [0, 1, 2])
        return (server.recv(1) or b"\1")[0]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        sys.exit(ask(sys.argv[1:]))
