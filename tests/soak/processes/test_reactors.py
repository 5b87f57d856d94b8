"""
Tests between processes again, on reactors that know nothing of HCAs.
"""

from __future__ import annotations

from tests.processes import test_kill, test_rdma, test_scale
from tests.processes.applications import test_applications


class WebTests(test_applications.WebTests):
    """
    Websites and their clients.
    """

    reactor = "epoll"


class OthersTests(test_applications.OthersTests):
    """
    Child processes and threads.
    """

    reactor = "epoll"


class RoleTests(test_kill.RoleTests):
    """
    A process is killed.
    """

    reactor = "epoll"


class RDMATests(test_rdma.RDMATests):
    """
    Messages and memory.
    """

    reactors = ("epoll", "epoll")


class MixedRDMATests(test_rdma.RDMATests):
    """
    Between different reactors.
    """

    reactors = ("ib", "select")


class ConnectionsTests(test_scale.ConnectionsTests):
    """
    How many connections there are changes nothing.
    """

    reactor = "epoll"


class FairnessTests(test_scale.FairnessTests):
    """
    1,000 echoing connections and one that sends as much as it can.
    """

    reactor = "epoll"


class HaulTests(test_scale.HaulTests):
    """
    Streams of some MiB.
    """

    reactor = "epoll"
