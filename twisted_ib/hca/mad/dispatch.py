"""
Which agent takes a management datagram, and which request a response belongs to.

An L{Agent} is registered for the methods of one version of a management class, as with Linux's
C{ib_register_mad_agent}.  Subnet management (classes 0x01 and 0x81) is on queue pair 0, all other classes on
queue pair 1 (IBTA vol. 1 13.5.1).  A datagram that is dropped is counted:

  - C{management_malformed}: not 256 octets, or another base version;
  - C{management_wrong_queue_pair}: its class is on the other queue pair;
  - C{management_unsupported}: no agent has its class, version and method;
  - C{management_unmatched}: a response that was not asked for, not of this peer, or too late.

A Get or Set that no agent takes is answered with its status; other methods expect no response, or one that
only their class defines (Linux C{mad.c}, C{generate_unmatched_resp}).  C{management_timeouts} counts requests
that were not answered, C{management_dropped} responses for which the path has no room: both are datagrams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attrs import evolve

from twisted_ib.errors import DeviceError, ResourceLimitError, ServiceInUseError
from twisted_ib.hca.base.operation import GSI_QPN, SMI_QPN, UD_SEND_ONLY
from twisted_ib.hca.base.traits import Peers
from twisted_ib.hca.wire.grh import DETH, GRH, length
from twisted_ib.hca.wire.mad.classes import COMMUNICATION, SUBNET, SUBNET_DIRECTED
from twisted_ib.hca.wire.mad.mad import (
    BAD_VERSION,
    BASE_VERSION,
    CLASS_PORT_INFO,
    DIRECTION,
    GET,
    GET_RESPONSE,
    HEADER,
    MAD_BYTES,
    QUEUE_KEY,
    RESPONSE,
    SEND,
    SET,
    TRAP_REPRESS,
    UNSUPPORTED_METHOD,
    UNSUPPORTED_METHOD_ATTRIBUTE,
    Mad,
    decodeMAD,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.services.address import AddressVector

#: Triples of class, version and method that agents of one device have.
MAD_REGISTRATIONS = 1024
#: Requests of one device that wait for their responses.
MAD_REQUESTS = 4096
#: The longest wait for a response, in seconds.
MAD_TIMEOUT_SECONDS = 60.0
#: The most repetitions of one request.
MAD_RETRIES = 15

#: As libibmad has them: C{MAD_DEF_TIMEOUT_MS} and C{MAD_DEF_RETRIES}.
_TIMEOUT: Final = 1.0
_RETRIES: Final = 3
#: A response travels as far as its request may have.
_HOP_LIMIT: Final = 64
_TRANSACTION_BITS: Final = 64
_SUBNET: Final = frozenset((SUBNET, SUBNET_DIRECTED))


class ReceivedMAD(NamedTuple):
    """
    A MAD that arrived.

    @ivar path: the path that it came by; its C{peer} is the sender, by the sender's own account where the
        path cannot know.
    @ivar number: the queue pair that it came to, 0 or 1.
    @ivar source: the sender's queue pair.
    @ivar method: its method.
    @ivar transaction: its transaction id.
    @ivar attribute: its attribute id.
    @ivar data: its 256 octets.
    @ivar partition: its P_Key; 0 if the medium has none.
    """

    path: Any
    number: int
    source: int
    method: int
    transaction: int
    attribute: int
    data: bytes
    partition: int = 0

    @property
    def mad(self) -> Mad:
        """
        All its fields.
        """
        return decodeMAD(self.data)


#: Takes a request of a peer.
Received = Callable[[ReceivedMAD], object]
#: Takes the response to a request, or L{None} if there is none.
Answered = Callable[["ReceivedMAD | None"], object]


class Agent:
    """
    The methods of one version of a management class (Linux C{struct ib_mad_agent}).
    """

    __slots__ = ("_agents", "managementClass", "methods", "received", "version")

    def __init__(
        self, agents: Agents, managementClass: int, version: int, methods: frozenset[int], received: Received
    ) -> None:
        self._agents = agents
        self.managementClass = managementClass
        self.version = version
        self.methods = methods
        self.received = received

    @property
    def number(self) -> int:
        """
        The queue pair of its class, here and at peers.
        """
        return SMI_QPN if self.managementClass in _SUBNET else GSI_QPN

    def send(
        self,
        address: AddressVector,
        mad: Mad,
        answered: Answered | None = None,
        timeout: float = _TIMEOUT,
        retries: int = _RETRIES,
    ) -> Request | None:
        """
        Send a MAD to the agents of another HCA.

        @param mad: class and version become the agent's, the transaction id one that nobody can guess.
        @param answered: called once, with the response, or with L{None} if there is none in time or the
            device is closed; without it no response is expected.
        @param timeout: how long each attempt waits, seconds, at most L{MAD_TIMEOUT_SECONDS}.
        @param retries: how often it is repeated, at most L{MAD_RETRIES}.
        @return: the request, which can be cancelled, if a response is expected.
        @raise ResourceLimitError: L{MAD_REQUESTS} wait already.
        @raise QueuePairError: the address is not valid.
        @raise WireError: a field does not fit.
        @raise ValueError: C{timeout} or C{retries} is out of range.
        """
        return self._agents.send(self, address, mad, answered, timeout, retries)

    def reply(self, request: ReceivedMAD, mad: Mad) -> None:
        """
        Answer a request, on the path that it came by; the response may be lost.

        @param mad: its transaction id and method are replaced by those of the response.
        @raise WireError: a field does not fit.
        """
        self._agents.reply(request, mad)

    def close(self) -> None:
        """
        Take no more MADs.  Idempotent; requests that were sent go on.
        """
        self._agents.remove(self)


class Request:
    """
    A MAD that waits for its response.
    """

    __slots__ = ("_agents", "_answered", "_left", "_record", "_timeout", "_timer", "_way", "gid", "key")

    def __init__(
        self,
        agents: Agents,
        key: tuple[int, int, int],
        gid: int,
        record: tuple[int, bytes],
        answered: Answered,
    ) -> None:
        self._agents = agents
        self._record = record
        self._answered: Answered | None = answered
        self._way: Any = agents.device.addressPaths.hold(gid)
        self._timer: Timer | None = None
        self._timeout, self._left = 0.0, 0
        #: Queue pair, class and transaction id, as its response has them.
        self.key = key
        #: The port that it was sent to.
        self.gid = gid

    def begin(self, timeout: float, retries: int) -> None:
        """
        Send it, and again until it is answered.
        """
        self._timeout, self._left = timeout, retries
        self._send()

    def _send(self) -> None:
        word, record = self._record
        self._timer = self._agents.device.timers.start(self._timeout, self._expired)
        self._way.send(word, record, b"", 0)

    def _expired(self) -> None:
        if self._left:
            self._left -= 1
            self._send()
        else:
            self._agents.device.count("management_timeouts")
            self.end(None)

    def end(self, response: ReceivedMAD | None) -> None:
        """
        Report its response, or that there is none.
        """
        answered = self._answered
        self.cancel()
        if answered is not None:
            answered(response)

    def cancel(self) -> None:
        """
        Wait no longer; nothing is reported.  Idempotent.
        """
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = self._answered = None
        self._agents.forget(self)
        self._agents.device.addressPaths.release(self._way)


class Agents:
    """
    The agents of one device, and the requests that they have sent.
    """

    def __init__(self, device: Any) -> None:
        """
        @param device: has C{addressPaths}, C{check}, C{count}, C{gid}, C{randomBits}, C{timers} and
            C{traits}.
        """
        self.device = device
        #: Class -> version -> method -> agent.
        self._classes: dict[int, dict[int, dict[int, Agent]]] = {}
        self._requests: dict[tuple[int, int, int], Request] = {}

    # -- registration

    def has(self, number: int) -> bool:
        """
        Whether the device has queue pair 0, or 1.
        """
        # IBTA vol. 1 annex A17: a RoCE port has no subnet manager, and so no queue pair 0.
        return number != SMI_QPN or self.device.traits.peers is not Peers.ADDRESSES

    def register(
        self, managementClass: int, version: int, methods: Iterable[int], received: Received
    ) -> Agent:
        """
        Take the MADs of a class.

        @param methods: those of requests, at least one; responses go to the request that they answer.
        @param received: called with each L{ReceivedMAD}.
        @raise ServiceInUseError: another agent has one of these methods.
        @raise ResourceLimitError: there are L{MAD_REGISTRATIONS}.
        @raise DeviceError: the class is on queue pair 0, which this device does not have.
        """
        agent = Agent(self, managementClass, version, frozenset(methods), received)
        if not self.has(agent.number):
            raise DeviceError(f"class {managementClass:#04x} needs queue pair 0, which RoCE does not have")
        found = self._classes.get(managementClass, {}).get(version, {})
        if not agent.methods.isdisjoint(found):
            raise ServiceInUseError(f"class {managementClass:#04x} version {version} has an agent already")
        count = sum(len(each) for versions in self._classes.values() for each in versions.values())
        if count + len(agent.methods) > MAD_REGISTRATIONS:
            raise ResourceLimitError(f"{MAD_REGISTRATIONS} methods have agents")
        table = self._classes.setdefault(managementClass, {}).setdefault(version, {})
        table.update(dict.fromkeys(agent.methods, agent))
        return agent

    def remove(self, agent: Agent) -> None:
        """
        See L{Agent.close}.
        """
        versions = self._classes.get(agent.managementClass, {})
        methods = versions.get(agent.version, {})
        for method in [method for method, each in methods.items() if each is agent]:
            del methods[method]
        if not methods:
            versions.pop(agent.version, None)
        if not versions:
            self._classes.pop(agent.managementClass, None)

    # -- receiving

    def received(
        self, path: Any, number: int, source: int, buffer: Any, start: int, stop: int, partition: int = 0
    ) -> None:
        """
        A MAD arrived: see L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        """
        count = self.device.count
        if stop - start != MAD_BYTES:
            count("management_malformed")
            return
        # Copied before it is read, as the buffer may be memory that the peer still writes.
        data = bytes(buffer[start:stop])
        base, class_, version, method, _, _, transaction, attribute, _, _ = HEADER.unpack_from(data)
        if base != BASE_VERSION:
            count("management_malformed")
        elif (class_ in _SUBNET) != (number == SMI_QPN):
            count("management_wrong_queue_pair")
        # Linux mad.c validate_mad: CM messages have method Send, and anything else is dropped unanswered.
        elif class_ == COMMUNICATION and method != SEND and attribute != CLASS_PORT_INFO:
            count("management_unsupported")
        elif method & RESPONSE or method == TRAP_REPRESS:
            request = self._requests.get((number, class_, transaction))
            # The transaction id is random, so that a process which only claims the peer's GUID, or a forged
            # source address, cannot answer in its place.
            if request is None or request.gid != path.peer.gid:
                count("management_unmatched")
            else:
                request.end(
                    ReceivedMAD(path, number, source, method, transaction, attribute, data, partition)
                )
        else:
            received = ReceivedMAD(path, number, source, method, transaction, attribute, data, partition)
            agent = self._classes.get(class_, {}).get(version, {}).get(method)
            if agent is not None:
                agent.received(received)
            else:
                self._refuse(received, class_, version)

    def _refuse(self, received: ReceivedMAD, class_: int, version: int) -> None:
        self.device.count("management_unsupported")
        if received.method not in (GET, SET):
            return
        versions = self._classes.get(class_)
        if versions is None:
            status = UNSUPPORTED_METHOD_ATTRIBUTE
        else:
            status = UNSUPPORTED_METHOD if version in versions else BAD_VERSION
        self.reply(received, evolve(received.mad, status=status))

    # -- sending

    def reply(self, request: ReceivedMAD, mad: Mad) -> None:
        """
        See L{Agent.reply}.
        """
        method = GET_RESPONSE if request.method in (GET, SET) else request.method | RESPONSE
        status = mad.status
        if mad.managementClass == SUBNET_DIRECTED:
            status |= DIRECTION
        octets = evolve(mad, method=method, transaction=request.transaction, status=status).pack()
        path = request.path
        header = self._header(request.number, path.peer.gid, _HOP_LIMIT)
        # On the path of the request, whoever the peer says it is: nobody else is disturbed.
        word = UD_SEND_ONLY << 24 | request.source
        if not path.alive or not path.respond(word, header + octets, request.partition):
            self.device.count("management_dropped")

    def _header(
        self, number: int, gid: int, hopLimit: int, trafficClass: int = 0, flowLabel: int = 0
    ) -> bytes:
        grh = GRH(trafficClass, flowLabel, length(MAD_BYTES), hopLimit, self.device.gid, gid)
        # Queue pair 0 has no Q_Key to check (Linux mad.c posts SMPs with 0).
        return grh.pack() + DETH(QUEUE_KEY if number else 0, number).pack()

    def send(
        self,
        agent: Agent,
        address: AddressVector,
        mad: Mad,
        answered: Answered | None,
        timeout: float,
        retries: int,
    ) -> Request | None:
        """
        See L{Agent.send}.
        """
        device = self.device
        device.check()
        address.check()
        if not 0 < timeout <= MAD_TIMEOUT_SECONDS or not 0 <= retries <= MAD_RETRIES:
            raise ValueError(f"a request waits {MAD_TIMEOUT_SECONDS} s, {MAD_RETRIES} times more, at most")
        if len(self._requests) >= MAD_REQUESTS:
            raise ResourceLimitError(f"{MAD_REQUESTS} requests wait for their responses")
        key = self._draw(agent)
        number, class_, transaction = key
        octets = evolve(
            mad, managementClass=class_, classVersion=agent.version, transaction=transaction
        ).pack()
        gid = address.gid
        header = self._header(number, gid, address.hopLimit, address.trafficClass, address.flowLabel)
        record = UD_SEND_ONLY << 24 | number, header + octets
        if answered is None:
            way = device.addressPaths.hold(gid)
            way.send(*record, b"", 0)
            device.addressPaths.release(way)
            return None
        request = self._requests[key] = Request(self, key, gid, record, answered)
        request.begin(timeout, retries)
        return request

    def _draw(self, agent: Agent) -> tuple[int, int, int]:
        while True:
            key = agent.number, agent.managementClass, self.device.randomBits(_TRANSACTION_BITS)
            if key not in self._requests:
                return key

    def forget(self, request: Request) -> None:
        """
        A request ended.
        """
        self._requests.pop(request.key, None)

    def close(self) -> None:
        """
        The device closes: no request is answered any more.  An exception from one that waits keeps no other
        from its end; the first is raised when all have ended.
        """
        failure: Exception | None = None
        for request in list(self._requests.values()):
            try:
                request.end(None)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure


__all__ = [
    "MAD_REGISTRATIONS",
    "MAD_REQUESTS",
    "MAD_RETRIES",
    "MAD_TIMEOUT_SECONDS",
    "Agent",
    "Agents",
    "ReceivedMAD",
    "Request",
]
