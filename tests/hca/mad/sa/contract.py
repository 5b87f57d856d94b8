"""
The contract of subnet managers with the client of subnet administration.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from twisted_ib.errors import SAStatusError
from twisted_ib.hca.base.port import DEFAULT_PREFIX
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.mad.attributes.administration import (
    JoinState,
    MCMemberRecord,
    NodeRecord,
    PathRecord,
    ServiceRecord,
)
from twisted_ib.hca.mad.attributes.notice import GIDDetails, Trap
from twisted_ib.hca.mad.sa.registry import Registrations
from twisted_ib.subnet.network.switch import FIRST_MULTICAST_LID

#: ff12:401b:ffff::ffff:ffff, the broadcast group of IPoIB (RFC 4391 section 4), which every manager has.
BROADCAST = 0xFF12401BFFFF << 80 | 0xFFFFFFFF
MGID = 0xFF12401BFFFF << 80 | 0x00010203
#: OpenSM gives all groups of IPoIB the Q_Key of the broadcast group.
MADE = {"qKey": 0xB1B, "pKey": 0xFFFF, "sl": 0, "flowLabel": 0, "tClass": 0}
NAME = b"twisted_ib".ljust(64, b"\0")


def isRenewing(registrations: Registrations) -> bool:
    """
    @return: whether some have still to be registered again.
    """
    return bool(registrations._waiting or registrations._renewing or registrations._late)


class AdministrationContract:
    """
    A subnet of several nodes, two of which have devices that are Active; one of the others comes and goes.

    Subclasses have C{until(holds)}, which serves all until something holds, C{remove()} and C{restore()} for
    the node that comes and goes, and C{restart()}, after which the manager knows nothing of its clients.

    @cvar groups: as many as are joined at once.
    @ivar one: a device.
    @ivar other: another one.
    @ivar ends: the LIDs of all ports of adapters that are Active, by their GIDs.
    """

    groups = 50
    one: Device
    other: Device
    ends: dict[int, int]
    until: Callable[[Callable[[], object]], None]

    def answer(self, call: Callable[..., Any], *arguments: Any, **values: Any) -> Any:
        """
        @param call: a method of a client, whose arguments end with the function that gets the answer.
        @return: the answer.
        """
        found: list[Any] = []
        call(*arguments, found.append, **values)
        self.until(lambda: found)
        return found[0]

    def opened(self, call: Callable[..., Any], *arguments: Any, **values: Any) -> Any:
        """
        @return: the handle of what is registered.
        """
        found: list[Any] = []
        handle = call(*arguments, found.append, **values)
        self.until(lambda: found)
        self.assertIs(found[0], handle.record)  # type: ignore[attr-defined]
        return handle

    def closed(self, handle: Any) -> None:
        """
        Close it, and wait until that is done.
        """
        found: list[Any] = []
        handle.close(found.append)
        self.until(lambda: found)
        self.assertEqual(found, [None])  # type: ignore[attr-defined]

    def group(self: Any, mgid: int) -> list[MCMemberRecord]:
        """
        @return: the records of a group.
        """
        found: list[MCMemberRecord] = self.answer(self.other.sa.query, MCMemberRecord, values={"mgid": mgid})
        return found

    def test_paths(self: Any) -> None:
        """
        Paths between all pairs of ports.
        """
        self.assertIn(self.one.gid, self.ends)
        for source, target in product(self.ends, repeat=2):
            path = self.answer(self.one.sa.path, target, sgid=source)
            self.assertEqual((path.dgid, path.sgid), (target, source))
            self.assertEqual((path.dlid, path.slid), (self.ends[target], self.ends[source]))
            self.assertEqual((path.reversible, path.pKey, path.hopLimit), (1, 0xFFFF, 0))
        self.assertEqual(len(self.one.sa.paths), len(self.ends) ** 2)

    def test_noPath(self: Any) -> None:
        """
        There is no path to a GID that is nobody's.
        """
        error = self.answer(self.one.sa.path, DEFAULT_PREFIX << 64 | 0xDEAD)
        self.assertIsInstance(error, SAStatusError)
        self.assertIn(error.statusName, ("NO_RECORDS", "INVALID_GID", "REQUEST_INVALID"))

    def test_records(self: Any) -> None:
        """
        A record by its values, and by those that are nested in it.
        """
        port = self.one.port
        for values in ({"lid": port.lid}, {"portGuid": self.one.gid & (1 << 64) - 1}):
            (record,) = self.answer(self.other.sa.query, NodeRecord, values=values)
            self.assertEqual((record.lid, record.nodeInfo.portGuid), (port.lid, self.one.guid))
        paths = self.answer(
            self.one.sa.query, PathRecord, values={"slid": port.lid, "dlid": self.other.port.lid}
        )
        self.assertEqual([each.dgid for each in paths], [self.other.gid])

    def test_broadcast(self: Any) -> None:
        """
        The broadcast group, which is there without us, is joined and left.
        """
        handle = self.opened(self.one.sa.join, BROADCAST)
        self.assertEqual((handle.record.mgid, handle.record.pKey), (BROADCAST, 0xFFFF))
        self.assertGreaterEqual(handle.record.mlid, FIRST_MULTICAST_LID)
        self.closed(handle)
        self.assertTrue(self.group(BROADCAST))

    def test_group(self: Any) -> None:
        """
        A group that does not exist is made, joined by another device, and gone after the last one.
        """
        error = self.answer(self.one.sa.join, MGID)
        self.assertIsInstance(error, SAStatusError)
        self.assertIn(error.statusName, ("INSUFFICIENT_COMPONENTS", "REQUEST_INVALID"))
        first = self.opened(self.one.sa.join, MGID, **MADE)
        second = self.opened(self.other.sa.join, MGID, joinState=JoinState.FULL_MEMBER)
        self.assertEqual((second.record.mlid, second.record.qKey), (first.record.mlid, 0xB1B))
        self.assertIsInstance(self.answer(self.other.sa.join, MGID + 1, qKey=5), SAStatusError)
        self.closed(first)
        self.assertTrue(self.group(MGID))
        self.closed(second)
        self.assertEqual(self.group(MGID), [])

    def test_newGroup(self: Any) -> None:
        """
        A group whose GID the manager makes.
        """
        handle = self.opened(self.one.sa.join, 0, **MADE, scope=2)
        self.assertEqual(handle.record.mgid >> 112, 0xFF12)
        self.assertTrue(self.group(handle.record.mgid))
        self.closed(handle)

    def test_service(self: Any) -> None:
        """
        A service is registered, found by another device, and withdrawn.
        """
        handle = self.opened(self.one.sa.service, 0x1000, serviceName=NAME, serviceData8=tuple(range(16)))
        (record,) = self.answer(self.other.sa.query, ServiceRecord, values={"serviceID": 0x1000})
        self.assertEqual((record.serviceGID, record.serviceName), (self.one.gid, NAME))
        self.assertEqual(record.serviceData8, tuple(range(16)))
        self.closed(handle)
        self.assertEqual(self.answer(self.other.sa.query, ServiceRecord, values={"serviceID": 0x1000}), [])

    def test_events(self: Any) -> None:
        """
        A node that goes and comes is told to who has subscribed, until that ends.
        """
        came: list[tuple[int, int]] = []

        def received(notice: Any, issuer: int) -> None:
            came.append((notice.noticeTrapNumber, GIDDetails.parse(notice.details).gid))

        handles = [
            self.opened(self.one.sa.subscribe, trap, received)
            for trap in (Trap.GID_IN_SERVICE, Trap.GID_OUT_OF_SERVICE)
        ]
        self.remove()
        self.until(lambda: came)
        self.restore()
        self.until(lambda: len(came) > 1)
        (first, gone), (second, back) = came
        self.assertEqual((first, second), (Trap.GID_OUT_OF_SERVICE, Trap.GID_IN_SERVICE))
        self.assertEqual(gone, back)
        for handle in handles:
            self.closed(handle)

    def test_many(self: Any) -> None:
        """
        Groups that are joined at once, and left at once, leave nothing.
        """
        found: list[Any] = []
        client = self.one.sa
        handles = [client.join(MGID + each, found.append, **MADE) for each in range(self.groups)]
        self.until(lambda: len(found) == self.groups)
        self.assertEqual(len({each.mlid for each in found}), self.groups)
        for handle in handles:
            handle.close()
        self.until(lambda: not len(client.registrations))
        for each in (0, self.groups - 1):
            self.assertEqual(self.group(MGID + each), [])

    def test_close(self: Any) -> None:
        """
        A device that closes leaves its groups.
        """
        self.opened(self.one.sa.join, MGID, **MADE)
        self.assertTrue(self.group(MGID))
        self.one.close()
        self.until(lambda: not self.asked(MCMemberRecord, {"mgid": MGID}))

    def test_restart(self: Any) -> None:
        """
        Groups, services and subscriptions are there again after the manager has forgotten them.
        """
        lost: list[Any] = []
        self.opened(self.one.sa.join, BROADCAST, changed=lost.append)
        self.opened(self.one.sa.join, MGID, changed=lost.append, **MADE)
        self.opened(self.one.sa.service, 0x1000, changed=lost.append, serviceName=NAME)
        came: list[Any] = []
        self.opened(self.one.sa.subscribe, Trap.GID_OUT_OF_SERVICE, lambda *event: came.append(event))
        self.restart()
        member = {"mgid": MGID, "portGID": self.one.gid}
        self.until(lambda: self.asked(MCMemberRecord, member))
        self.until(lambda: self.asked(ServiceRecord, {"serviceID": 0x1000}))
        self.until(lambda: not isRenewing(self.one.sa.registrations))
        self.remove()
        self.until(lambda: came)
        self.assertEqual([each for each in lost if isinstance(each, Exception)], [])

    def asked(self: Any, kind: type, values: dict[str, Any]) -> Any:
        """
        @return: the records, as far as there are any now.
        """
        found = self.answer(self.other.sa.query, kind, values=values)
        return [] if isinstance(found, Exception) else found
