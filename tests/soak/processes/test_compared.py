"""
The comparison of C{benchmarks} with all that it compares.
"""

from __future__ import annotations

from benchmarks import sockets
from tests import test_benchmarks


class ComparisonTests(test_benchmarks.ProgramTests):
    """
    The programs, with more subjects and rows.
    """

    subjects = ("tcp", "sdp-ib", "blocking", "asyncio", "multiprocessing", "zmq", "iceoryx2")
    subjects += ("pipe", "queues", "queue", "queues-queue", "zmq-pair", "iceoryx2-pair")
    rows = ("rt64", "stream64k", "echo100", "connects", "mp64", "mp1m")


class SocketsTests(test_benchmarks.SocketsTests):
    """
    Round trips of all kinds.
    """

    faces = sockets.FACES
