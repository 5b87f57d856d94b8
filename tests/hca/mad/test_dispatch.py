"""
Registration of agents, and the bounds of requests.
"""

from __future__ import annotations

from typing import Any

from tests.hca.mad.cases import MADTestCase
from tests.hca.mad.toys.echo import CLASS, EchoAgent
from tests.hca.mad.toys.node import NodeAgent
from twisted_ib.errors import (
    DeviceClosedError,
    HeaderError,
    QueuePairError,
    ResourceLimitError,
    ServiceInUseError,
)
from twisted_ib.hca.mad import dispatch
from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.mad.mad import GET, SET, Mad

REPORT, REPORT_RESPONSE = 0x06, 0x86
#: A class that no toy has.
FREE = 0x0B


class RegistrationTests(MADTestCase):
    """
    Class, version and methods.
    """

    def test_conflict(self) -> None:
        """
        A method of a version has one agent; others of the same class may have others.
        """
        mads = self.a.mads
        self.assertRaises(ServiceInUseError, mads.register, CLASS, 1, (GET, SET), print)
        mads.register(CLASS, 1, (GET,), print)
        mads.register(CLASS, 2, (SET,), print)
        self.assertEqual([self.of(kind, self.a).agent.number for kind in (NodeAgent, EchoAgent)], [0, 1])

    def test_close(self) -> None:
        """
        A closed agent's methods are free, and only those.
        """
        mads = self.a.mads
        before = {class_: dict(versions) for class_, versions in mads._classes.items()}
        one, two = (mads.register(FREE, 1, (method,), print) for method in (GET, SET))
        one.close()
        self.assertEqual(mads._classes[FREE], {1: {SET: two}})
        two.close()
        self.assertEqual(mads._classes, before)

    def test_bound(self) -> None:
        """
        There is a bound for all classes together.
        """
        mads = self.a.mads
        used = sum(len(methods) for versions in mads._classes.values() for methods in versions.values())
        self.patch(dispatch, "MAD_REGISTRATIONS", used + 3)
        mads.register(FREE, 1, range(1, 4), print)
        self.assertRaises(ResourceLimitError, mads.register, FREE, 2, (GET,), print)
        self.assertNotIn(2, mads._classes[FREE])


class RequestTests(MADTestCase):
    """
    Requests that wait.
    """

    def setUp(self) -> None:
        """
        An agent whose requests are not answered.
        """
        super().setUp()
        self.agent = self.a.mads.register(FREE, 1, (GET,), print)
        self.responses: list[ReceivedMAD | None] = []

    def send(self, address: AddressVector | None = None, **changes: Any) -> Any:
        """
        Send a request of a class that C{b} has no agent for, and that expects no status.
        """
        mad = Mad(FREE, 1, REPORT, 0, 2)
        return self.agent.send(address or self.address(self.b), mad, self.responses.append, **changes)

    def test_bound(self) -> None:
        """
        So many wait at a time; those that end make room.
        """
        self.patch(dispatch, "MAD_REQUESTS", 3)
        requests = [self.send(retries=0) for _ in range(3)]
        self.assertRaises(ResourceLimitError, self.send)
        requests[0].cancel()
        self.send(retries=0)
        self.settle()
        self.wait(1.0)
        self.assertEqual((self.responses, self.a.mads._requests), ([None] * 3, {}))
        self.assertEqual((len(self.a.addressPaths), self.a.deadline()), (0, None))

    def test_ranges(self) -> None:
        """
        Timeout, retries, address and fields are checked, and nothing is kept of a request that is refused.
        """
        most, again = dispatch.MAD_TIMEOUT_SECONDS, dispatch.MAD_RETRIES
        for changes in ({"timeout": 0.0}, {"timeout": most + 1}, {"retries": -1}, {"retries": again + 1}):
            self.assertRaises(ValueError, self.send, **changes)
        self.assertRaises(QueuePairError, self.send, AddressVector(0))
        self.assertRaises(
            HeaderError, self.agent.send, self.address(self.b), Mad(0, 0, 999, 0, 0), self.responses.append
        )
        self.send(timeout=most, retries=again).cancel()
        self.assertEqual((self.a.mads._requests, len(self.a.addressPaths), self.responses), ({}, 0, []))
        self.a.close()
        self.assertRaises(DeviceClosedError, self.send)

    def test_nobody(self) -> None:
        """
        A request to an HCA that does not exist is given up.
        """
        self.send(AddressVector(self.b.gid ^ 1), retries=1)
        for _ in range(2):
            self.settle()
            self.wait(1.0)
        self.assertEqual((self.responses, self.a.counters["datagrams_lost"]), ([None], 2))

    def test_transactions(self) -> None:
        """
        A transaction id that is in use is not drawn again.
        """
        drawn = iter((5, 5, 5, 6))
        self.a.randomBits = lambda bits: next(drawn)
        self.assertEqual([self.send().key[2] for _ in range(2)], [5, 6])

    def test_otherMethods(self) -> None:
        """
        The response to a method of a class has its number and the response bit.
        """
        agent = self.b.mads.register(FREE, 1, (REPORT,), lambda request: agent.reply(request, request.mad))
        self.send()
        self.settle()
        (response,) = self.responses
        assert response is not None
        self.assertEqual((response.method, response.attribute), (REPORT_RESPONSE, 2))

    def test_noRoom(self) -> None:
        """
        A response for which the path has no room is lost and counted, and so is one for a path that is gone.
        """
        requests: list[ReceivedMAD] = []
        agent = self.b.mads.register(FREE, 1, (REPORT,), requests.append)
        self.send()
        self.settle()
        (request,) = requests
        for size in (8000, 1):
            while request.path.post(99, b"", bytes(size), size):
                pass
        agent.reply(request, request.mad)
        self.assertEqual(self.b.counters["management_dropped"], 1)
        self.a.close()
        self.settle()
        agent.reply(request, request.mad)
        self.assertEqual(self.b.counters["management_dropped"], 2)
