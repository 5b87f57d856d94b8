"""
Services that ports register (IBTA vol. 1 15.2.5.14), until they are deleted or their lease is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import define

from twisted_ib import limits
from twisted_ib.hca.base.partition import isValid, matches
from twisted_ib.hca.mad.attributes.administration import NO_LEASE_END, ServiceRecord
from twisted_ib.hca.wire.mad.administration import SAStatus
from twisted_ib.subnet.sa.request import Refusal, Request

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer, Timers
    from twisted_ib.subnet.sm.manager import Manager

#: The identity of a service: its ID, the GID of its port, and the partition in which it is.
Key = tuple[int, int, int]
_KEY = ("serviceID", "serviceGID", "servicePKey")


@define(eq=False)
class _Service:
    number: int
    owner: int
    key: bytes
    timer: Timer | None


class Services:
    """
    The services of a subnet.
    """

    def __init__(self, manager: Manager, timers: Timers) -> None:
        self._manager = manager
        self._timers = timers
        self._services: dict[Key, _Service] = {}
        self._owned: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._services)

    def records(self, request: Request) -> Iterator[int]:
        """
        @return: the services of the requester's partitions, as numbers.
        """
        for (_, _, partition), service in self._services.items():
            if request.isTrusted or _sees(request, partition):
                yield service.number

    def register(self, request: Request) -> ServiceRecord:
        """
        Register a service, or renew its lease and change its data.
        """
        record, key = self._asked(request)
        port = self._manager.model.byGID(record.serviceGID)
        if port is None:
            raise Refusal(SAStatus.INVALID_GID)
        # A port registers its own services; in a partition that it is in.
        if port is not request.port or not isValid(record.servicePKey) or not _sees(request, key[2]):
            raise Refusal(SAStatus.REQUEST_INVALID)
        lease = record.serviceLease if request.has(ServiceRecord, "serviceLease") else NO_LEASE_END
        known = self._services.get(key)
        if known is not None:
            _check(record, known)
            self._remove(key)
        if not lease:
            # o15-0.2.5: it is over at once.
            return record
        if self._owned[port.guid] >= limits.SA_PORT_SERVICES or len(self) >= limits.SA_SERVICES:
            raise Refusal(SAStatus.NO_RESOURCES)
        timer = None
        if lease != NO_LEASE_END:
            timer = self._timers.start(lease, lambda: self._remove(key))
        number = int.from_bytes(record.pack(), "big")
        self._services[key] = _Service(number, port.guid, record.serviceKey, timer)
        self._owned[port.guid] += 1
        return record

    def delete(self, request: Request) -> ServiceRecord:
        """
        Delete a service.
        """
        record, key = self._asked(request)
        known = self._services.get(key)
        if known is None:
            raise Refusal(SAStatus.NO_RECORDS)
        if known.owner != request.port.guid:
            raise Refusal(SAStatus.REQUEST_INVALID)
        _check(record, known)
        self._remove(key)
        return ServiceRecord.parse(known.number.to_bytes(ServiceRecord.OCTETS, "big"))

    def configure(self) -> None:
        """
        The model has changed: services of ports that are gone are not there.
        """
        guids = self._manager.model.guids
        for key in [key for key, service in self._services.items() if service.owner not in guids]:
            self._remove(key)

    def _asked(self, request: Request) -> tuple[ServiceRecord, Key]:
        record = request.record(ServiceRecord)
        if not request.has(ServiceRecord, *_KEY):
            raise Refusal(SAStatus.INSUFFICIENT_COMPONENTS)
        return record, (record.serviceID, record.serviceGID, record.servicePKey)

    def _remove(self, key: Key) -> None:
        service = self._services.pop(key)
        if service.timer is not None:
            service.timer.cancel()
        self._owned[service.owner] -= 1
        if not self._owned[service.owner]:
            del self._owned[service.owner]


def _sees(request: Request, partition: int) -> bool:
    return any(matches(key, partition) for key in request.port.keys)


def _check(record: ServiceRecord, known: _Service) -> None:
    # IBTA vol. 1 15.2.5.14: who has registered it with a ServiceKey has to name that.
    if any(known.key) and record.serviceKey != known.key:
        raise Refusal(SAStatus.REQUEST_INVALID)
