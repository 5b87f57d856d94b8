"""
A process that has everything imported and forks one child per request.

A Python process with Twisted takes a third of a second to start; a fork of
this one takes a hundredth.  No reactor is installed before the fork.  Runs as
C{python -m tests.processes.programs.nursery} with a UNIX socket as its standard input:
each message on it carries three descriptors (the child's standard input,
output and error) and a JSON list: the environment and the arguments for
L{tests.processes.programs.child.main}.  The answer is the child's process id.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback

#: The longest request.
REQUEST_BYTES = 65536


def _become(descriptors: list[int], request: bytes) -> None:
    """
    In the fork: put the descriptors in place and be the child.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
    for descriptor in descriptors:
        os.close(descriptor)
    environment, arguments = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    from tests.processes.programs.child import main

    main(arguments)


def main() -> None:
    """
    Serve requests until the other end closes.
    """
    # What a child would import anyway; the reactor modules install nothing.
    import twisted.application.reactors
    import twisted.internet.endpoints
    import twisted.internet.epollreactor
    import twisted.internet.stdio  # noqa: F401

    import tests.processes.programs.child  # noqa: F401
    import twisted_ib.hca.fabric.shm.shm
    import twisted_ib.reactor.ibreactor
    import twisted_ib.reactor.socketreport
    import twisted_ib.sdp.port
    import twisted_ib.switch.rules.configuration
    import twisted_ib.switch.switch  # noqa: F401

    # Children are reaped by the kernel.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=os.dup(0))
    while True:
        request, descriptors, _flags, _address = socket.recv_fds(requests, REQUEST_BYTES, 3)
        if not request:
            return
        pid = os.fork()
        if not pid:
            requests.close()
            status = 1
            try:
                _become(descriptors, request)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())


if __name__ == "__main__":
    main()
