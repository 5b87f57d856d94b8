"""
Tests of L{twisted_ib.subnet.sa.services}.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.subnet.sa.cases import FULL, KEY, AdministrationTestCase, gidOf, star
from twisted_ib import limits
from twisted_ib.hca.mad.attributes.administration import NO_LEASE_END, ServiceRecord
from twisted_ib.hca.wire.mad.administration import DELETE, SAStatus
from twisted_ib.hca.wire.mad.mad import SET

KEYS = "serviceID", "serviceGID", "servicePKey"
NAMES = *KEYS, "serviceLease", "serviceKey", "serviceName"
RECORD = ServiceRecord(
    serviceID=0x1000,
    serviceGID=gidOf(2),
    servicePKey=FULL,
    serviceLease=NO_LEASE_END,
    serviceName=b"storage".ljust(64, b"\0"),
    serviceData8=tuple(range(16)),
    serviceData64=(1, 2),
)
SECRET = bytes(range(16))


class ServiceTests(AdministrationTestCase):
    """
    L{Services<twisted_ib.subnet.sa.services.Services>}.
    """

    def names(self, **changes: Any) -> list[bytes]:
        """
        @return: the names of all services.
        """
        return [each.serviceName.rstrip(b"\0") for each in self.table(ServiceRecord(), **changes)]

    def attempt(self, method: int, names: Any = NAMES, lid: int = 2, **changes: Any) -> SAStatus:
        """
        @return: the status of a request.
        """
        return self.status(method, evolve(RECORD, **changes), *names, lid=lid)

    def test_registered(self) -> None:
        """
        A service is there until it is deleted.
        """
        self.assertEqual(self.set(RECORD, *NAMES), RECORD)
        self.assertEqual(
            self.get(ServiceRecord(serviceName=RECORD.serviceName), "serviceName", lid=3), RECORD
        )
        self.assertEqual(self.get(ServiceRecord(serviceID=0x1000), "serviceID"), RECORD)
        changed = evolve(RECORD, serviceName=b"other".ljust(64, b"\0"))
        self.set(changed, *NAMES)
        self.assertEqual(self.names(), [b"other"])
        self.assertEqual(self.attempt(DELETE, KEYS), SAStatus.SUCCESS)
        self.assertEqual(self.names(), [])
        self.assertEqual(self.attempt(DELETE, KEYS), SAStatus.NO_RECORDS)
        self.assertEqual(self.administration.services._owned, {})

    def test_lease(self) -> None:
        """
        A lease ends unless it is renewed; one that is not named does not.
        """
        self.set(evolve(RECORD, serviceLease=10), *NAMES)
        self.wait(9)
        self.set(evolve(RECORD, serviceLease=20), *NAMES)
        self.wait(19)
        self.assertEqual(self.names(), [b"storage"])
        self.wait(1)
        self.assertEqual((self.names(), self.administration.deadline()), ([], None))
        self.set(evolve(RECORD, serviceLease=10), *KEYS)
        self.wait(3600)
        self.assertEqual(len(self.administration.services), 1)
        self.set(evolve(RECORD, serviceLease=0), *NAMES)
        self.assertEqual(len(self.administration.services), 0)

    def test_refused(self) -> None:
        """
        A port registers its own services in its partitions, and names what identifies them.
        """
        for missing in KEYS:
            names = [name for name in NAMES if name != missing]
            for method in (SET, DELETE):
                self.assertEqual(self.attempt(method, names), SAStatus.INSUFFICIENT_COMPONENTS)
        self.assertEqual(self.attempt(SET, serviceGID=gidOf(9)), SAStatus.INVALID_GID)
        for changes in ({"serviceGID": gidOf(3)}, {"servicePKey": 0x8001}, {"servicePKey": 0x8000}):
            self.assertEqual(self.attempt(SET, **changes), SAStatus.REQUEST_INVALID)
        self.set(RECORD, *NAMES)
        self.assertEqual(self.attempt(DELETE, KEYS, lid=3), SAStatus.REQUEST_INVALID)

    def test_key(self) -> None:
        """
        A service with a ServiceKey is changed and deleted with it alone, which is told to who is trusted.
        """
        self.set(evolve(RECORD, serviceKey=SECRET), *NAMES)
        for method in (SET, DELETE):
            self.assertEqual(self.attempt(method), SAStatus.REQUEST_INVALID)
        for key, expected in ((0, bytes(16)), (KEY, SECRET)):
            (found,) = self.table(ServiceRecord(), key=key)
            self.assertEqual(found.serviceKey, expected)
        self.assertEqual(self.attempt(DELETE, serviceKey=SECRET), SAStatus.SUCCESS)

    def test_partitions(self) -> None:
        """
        Ports of other partitions are not told.
        """
        self.set(RECORD, *NAMES)
        self.port(3).keys = (0x8001,)
        self.assertEqual((self.names(lid=3), self.names(lid=3, key=KEY)), ([], [b"storage"]))

    def test_gone(self) -> None:
        """
        A port that is gone offers nothing.
        """
        self.set(evolve(RECORD, serviceGID=gidOf(3), serviceLease=10), *NAMES, lid=3)
        self.sweep(star(2))
        self.assertEqual((self.names(), self.administration.deadline()), ([], None))

    def test_bounds(self) -> None:
        """
        A port has so many services, and so have all.
        """
        self.patch(limits, "SA_PORT_SERVICES", 2)
        self.patch(limits, "SA_SERVICES", 3)
        for number in range(2):
            self.set(evolve(RECORD, serviceID=number), *NAMES)
        self.assertEqual(self.attempt(SET), SAStatus.NO_RESOURCES)
        self.set(evolve(RECORD, serviceGID=gidOf(3)), *NAMES, lid=3)
        self.assertEqual(self.attempt(SET, lid=3, serviceGID=gidOf(3), serviceID=1), SAStatus.NO_RESOURCES)
        # A service that is there is renewed.
        self.set(evolve(RECORD, serviceID=1), *NAMES)
