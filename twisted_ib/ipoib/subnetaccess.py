"""
An interface's requests to its subnet: for the path to a port, and for memberships of multicast groups.

On InfiniBand subnet administration has both.  Elsewhere there is none: a GID is the path, and the values of
all groups are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, succeed
from zope.interface import Interface, implementer

from twisted_ib.errors import DeviceError, HCAError, SAResponseError, SAStatusError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.mad.attributes.administration import JoinState, MCMemberRecord, PathRecord, Selector
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.opcodes import MTU_BYTES
from twisted_ib.ipoib.protocol.interfaces import Group

if TYPE_CHECKING:
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.mad.sa.registry import Handle

#: The Q_Key of OpenSM's broadcast group, for groups without a subnet administration.
QUEUE_KEY: Final = 0xB1B
#: The IB MTU of such groups, octets, if packets can be as long.
GROUP_MTU: Final = 2048
#: IBTA vol. 1 8.3.6: packets with a hop limit of 0 or 1 stay in the subnet, and need no GRH.
_LOCAL_HOPS: Final = 1

#: The values of a L{Group} and of a MCMemberRecord that a group is made with (RFC 4391 section 10).
_MAKING: Final = ("qKey", "sl", "rate", "flowLabel", "tClass", "hopLimit")

#: Takes the address vector of a port, or the reason that there is no path to it.
TakesPath = Callable[[AddressVector | HCAError], object]
#: Takes a group, or the reason that it is not joined.
TakesGroup = Callable[[Group | HCAError], object]


class IMembership(Interface):
    """
    A membership of a multicast group.
    """

    def close(closed: Callable[[], object]) -> None:
        """
        Leave the group, or stop joining it; nothing more is reported about it.  Idempotent.

        @param closed: called without arguments when that is done, or cannot be.
        """


class ISubnetAccess(Interface):
    """
    The subnet of one interface.  A request that fails is reported as an L{HCAError
    <twisted_ib.errors.HCAError>}, in the place of what was asked for.
    """

    def path(gid: int, taken: TakesPath) -> None:
        """
        Find the path to a port.

        @param taken: called once, perhaps before this returns: see L{TakesPath}.
        """

    def join(mgid: int, isSendOnly: bool, template: Group | None, taken: TakesGroup) -> IMembership:
        """
        Join a group.

        @param isSendOnly: whether nothing is to be received from it.
        @param template: the L{Group} whose values it is made with if it does not exist; L{None} if it must.
        @param taken: called once, perhaps before this returns, and again when the group has other values or
            the membership is lost: see L{TakesGroup}.  The C{path} of a group is L{None}.
        @return: an L{IMembership}.
        """

    def silent() -> Deferred[bool]:
        """
        Find out whether who could tell of paths is away, and does not answer.

        @return: a L{Deferred} that fires with a L{bool}.
        """


def groupVector(group: Group) -> AddressVector:
    """
    @return: the address of a group.
    """
    return AddressVector(
        *(group.mgid, 0, group.flowLabel, group.hopLimit, group.tClass),
        lid=group.mlid,
        serviceLevel=group.sl,
    )


@implementer(IMembership)
class _Constant:
    def close(self, closed: Callable[[], object]) -> None:
        # Nobody is to be told.
        closed()


@implementer(ISubnetAccess)
class ConstantAccess:
    """
    Ports that are addressed by their GIDs alone.
    """

    def __init__(self, device: Device, pKey: int) -> None:
        """
        @raise DeviceError: groups of IPv6 cannot be reached from the device.
        """
        if device.address is not None and ":" not in device.address:
            raise DeviceError(
                f"IPoIB needs a device with an IPv6 address, as its multicast groups are GIDs of IPv6:"
                f" {device.name} has {device.address}"
            )
        self._pKey = pKey
        self._mtu = min(GROUP_MTU, device.pathMTU)

    def path(self, gid: int, taken: TakesPath) -> None:
        taken(AddressVector(gid))

    def join(self, mgid: int, isSendOnly: bool, template: Group | None, taken: TakesGroup) -> _Constant:
        taken(Group(mgid, 0, QUEUE_KEY, self._mtu, hopLimit=1, pKey=self._pKey))
        return _Constant()

    def silent(self) -> Deferred[bool]:
        return succeed(False)


@implementer(IMembership)
class _Member:
    """
    A membership that subnet administration has, or is asked for.
    """

    def __init__(self, device: Device, taken: TakesGroup) -> None:
        self._device = device
        self._taken: TakesGroup | None = taken
        self._handle: Handle | None = None

    def open(self, mgid: int, joinState: JoinState, values: dict[str, int]) -> None:
        def answered(outcome: MCMemberRecord | HCAError) -> None:
            # Linux ipoib_multicast.c first asks subnet administration whether it knows this state
            # (ClassPortInfo, CapabilityMask2).  One that does not refuses it.
            isRefused = isinstance(outcome, SAStatusError)
            if isRefused and joinState is JoinState.SEND_ONLY_FULL_MEMBER and self._taken is not None:
                self.open(mgid, JoinState.SEND_ONLY_NON_MEMBER, values)
            else:
                self._take(outcome)

        try:
            self._handle = self._device.sa.join(mgid, answered, self._take, joinState, **values)
        except HCAError as error:
            self._take(error)

    def _take(self, outcome: MCMemberRecord | HCAError) -> None:
        if self._taken is not None:
            self._taken(outcome if isinstance(outcome, HCAError) else _groupOf(outcome, self._device.pathMTU))

    def close(self, closed: Callable[[], object]) -> None:
        self._taken = None
        if self._handle is None:
            closed()
        else:
            # An error says that subnet administration does not answer: it forgets a port that goes.
            self._handle.close(lambda error: closed())


@implementer(ISubnetAccess)
class AdministrationAccess:
    """
    Ports and groups that the subnet administration of a device's subnet knows.
    """

    def __init__(self, device: Device, pKey: int) -> None:
        """
        @raise HCAError: the device has no client of it.
        """
        self._device, self._pKey = device, pKey
        # Made now: it is told of the port's events before the interface is.
        _ = device.sa

    def path(self, gid: int, taken: TakesPath) -> None:
        def answered(outcome: PathRecord | HCAError) -> None:
            taken(outcome if isinstance(outcome, HCAError) else _vectorOf(outcome))

        # The interface keeps the paths that it uses: it asks for one that is new, or in doubt.
        self._device.sa.paths.forget(gid)
        try:
            self._device.sa.path(gid, answered, self._pKey)
        except HCAError as error:
            taken(error)

    def join(self, mgid: int, isSendOnly: bool, template: Group | None, taken: TakesGroup) -> _Member:
        values = {"pKey": self._pKey}
        if template is not None:
            values |= {name: getattr(template, name) for name in _MAKING}
            values |= {"mtu": MTU_CODES[template.mtu], "mtuSelector": Selector.EXACTLY}
            values["rateSelector"] = Selector.EXACTLY
        member = _Member(self._device, taken)
        # A group of senders alone is made too, and its packets go nowhere until it has a receiver.
        state = JoinState.SEND_ONLY_FULL_MEMBER if isSendOnly else JoinState.FULL_MEMBER
        member.open(mgid, state, values)
        return member

    def silent(self) -> Deferred[bool]:
        told: Deferred[bool] = Deferred(lambda _: asked.cancel())
        asked = self._device.sa.silent(told.callback)
        return told


def _groupOf(record: MCMemberRecord, longest: int) -> Group | HCAError:
    mtu = MTU_BYTES.get(record.mtu)
    if mtu is None or mtu > longest:
        # The port could neither send nor receive the longest packets of the others.
        return SAResponseError(
            f"the group {record.mgid:#034x} has the MTU code {record.mtu}, and the port's MTU is {longest}"
            " octets: change the group in the subnet manager's configuration"
        )
    return Group(
        *(record.mgid, record.mlid, record.qKey, mtu, record.sl, record.rate),
        *(record.flowLabel, record.tClass, record.hopLimit, record.pKey),
    )


def _vectorOf(record: PathRecord) -> AddressVector:
    return AddressVector(
        *(record.dgid, 0, record.flowLabel, record.hopLimit, record.tClass),
        lid=record.dlid,
        serviceLevel=record.sl,
        isGlobal=record.hopLimit > _LOCAL_HOPS,
    )


def subnetAccess(device: Device, pKey: int) -> ConstantAccess | AdministrationAccess:
    """
    @param pKey: the partition, with the bit of full members.
    @return: the access of a device to its subnet.
    @raise DeviceError: there is none.
    """
    if device.port.linkLayer is LinkLayer.INFINIBAND:
        return AdministrationAccess(device, pKey)
    return ConstantAccess(device, pKey)
