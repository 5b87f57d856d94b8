"""
Which agent takes a management datagram, and which request a response belongs to.

An L{Agent} is registered for the methods of one version of a management class, as with Linux's
C{ib_register_mad_agent}.  Which datagrams are for an agent, and which for the sender of a request, says
L{twisted_ib.hca.mad.takers}.  A datagram that is dropped is counted:

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
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve

from twisted_ib.errors import DeviceError, LengthError, ResourceLimitError, ServiceInUseError
from twisted_ib.hca.base.events import notifyAll
from twisted_ib.hca.base.operation import GSI_QPN, SMI_QPN
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.mad.requests import (
    Answered,
    Received,
    ReceivedMAD,
    Redirection,
    Redirections,
    Request,
    Target,
    redirecting,
    redirectionOf,
)
from twisted_ib.hca.mad.rmpp.segments import dataAt, isSegment
from twisted_ib.hca.mad.takers import Taker, queuePairOf, takerOf
from twisted_ib.hca.mad.transfers import Transfers
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.hca.wire.headers import DETH, MAD_BYTES, QPN_MASK, QUEUE_KEY
from twisted_ib.hca.wire.mad.classes import (
    ACTIVE,
    RMPP_VERSION,
    SUBNET_DIRECTED,
    TRANSFER_HEADERS,
    RMPPHeader,
)
from twisted_ib.hca.wire.mad.mad import (
    BAD_VERSION,
    BASE_VERSION,
    CLASS_AT,
    CLASS_PORT_INFO,
    DIRECTION,
    GET,
    GET_RESPONSE,
    HEADER,
    METHOD_AT,
    REDIRECTED,
    RESPONSE,
    SEND,
    SET,
    STATUS_AT,
    TRAP,
    UNSUPPORTED_METHOD,
    UNSUPPORTED_METHOD_ATTRIBUTE,
    Mad,
)
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY

if TYPE_CHECKING:
    from twisted_ib.hca.mad.agents import IManagedDevice
    from twisted_ib.hca.services.address import AddressVector
    from twisted_ib.hca.services.datagramform import DatagramForm

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
_TRANSACTION_BITS: Final = 64
#: Methods without a response, which says that it is redirected: Send, Trap.
_UNANSWERED: Final = frozenset((SEND, TRAP))


def checkPatience(timeout: float, retries: int) -> None:
    """
    @raise ValueError: an attempt waits too long, or there are too many.
    """
    if not 0 < timeout <= MAD_TIMEOUT_SECONDS or not 0 <= retries <= MAD_RETRIES:
        raise ValueError(f"a request waits {MAD_TIMEOUT_SECONDS} s, {MAD_RETRIES} times more, at most")


@define(eq=False, repr=False, weakref_slot=False)
class Agent:
    """
    The methods of one version of a management class (Linux C{struct ib_mad_agent}).
    """

    _agents: Agents
    managementClass: int
    version: int
    methods: frozenset[int]
    received: Received
    hasRMPP: bool = False
    yields: bool = False
    #: See L{redirectTo}.
    redirection: tuple[Any, int] | None = None

    @property
    def number(self) -> int:
        """
        The queue pair of its class, here and at peers.
        """
        return queuePairOf(self.managementClass)

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

        @param address: with the permissive LID, 0xFFFF, for a MAD whose directed route begins here.
        @param mad: class and version become the agent's, the transaction id one that nobody can guess.  Its
            data may be as long as L{RMPP_TABLE_BYTES<twisted_ib.hca.mad.rmpp.receiver.RMPP_TABLE_BYTES>} if
            its RMPP header is L{TABLE<twisted_ib.hca.mad.rmpp.segments.TABLE>} and the agent has RMPP.
        @param answered: called once, with the response, or with L{None} if there is none in time or the
            device is closed; without it no response is expected.
        @param timeout: how long each attempt waits, seconds, at most L{MAD_TIMEOUT_SECONDS}.
        @param retries: how often it is repeated, at most L{MAD_RETRIES}.  A response of several MADs has the
            time of all attempts again with each MAD that arrives in order, and at least
            L{RMPP_RESPONSE_LEAST<twisted_ib.hca.mad.transfers.RMPP_RESPONSE_LEAST>}.
        @return: the request, which can be cancelled, if a response is expected or its data is a transfer.
        @raise ResourceLimitError: L{MAD_REQUESTS} wait already, or there is no room for a transfer.
        @raise QueuePairError: the address is not valid.
        @raise WireError: a field does not fit.
        @raise ValueError: C{timeout} or C{retries} is out of range.
        """
        return self._agents.send(self, address, mad, answered, timeout, retries)

    def reply(self, request: ReceivedMAD, mad: Mad) -> None:
        """
        Answer a request, on the path that it came by; the response may be lost.

        @param mad: its transaction id and method are replaced by those of the response.  Its data may be
            long as in L{send}.
        @raise WireError: a field does not fit, or the data is too long.
        """
        self._agents.reply(request, mad)

    def post(self, address: AddressVector, number: int, mad: Mad, queueKey: int = QUEUE_KEY) -> None:
        """
        Send a MAD with its own transaction id, for which no response is expected: an answer whose request is
        no longer at hand, for example.  It may be lost.

        @param number: the destination queue pair, and C{queueKey} its Q_Key.
        @param mad: class and version become the agent's; its data may be long as in L{send}.
        @raise QueuePairError: the address is not valid.
        @raise WireError: a field does not fit, or the data is too long.
        """
        self._agents.post(self, address, number, mad, queueKey)

    def redirectTo(self, queuePair: Any, capabilities: int = 0) -> None:
        """
        Have peers send their requests to another queue pair of this device: they are answered with status
        0x0002 and ClassPortInfo (IBTA vol. 1 13.5.2).  Responses come from that queue pair to queue pair 1.

        @param queuePair: a UD queue pair with a Q_Key; L{None} to serve them here again.
        @param capabilities: CapabilityMask of the class.
        @raise ValueError: the class is subnet management, which is on queue pair 0 alone.
        """
        # An SMP has no room for ClassPortInfo either.
        if self.number == SMI_QPN:
            raise ValueError(f"class {self.managementClass:#04x} is served on queue pair 0 alone")
        self.redirection = None if queuePair is None else (queuePair, capabilities)

    def close(self) -> None:
        """
        Take no more MADs.  Idempotent; requests that were sent go on.
        """
        self._agents.remove(self)


class Agents:
    """
    The agents of one device, and the requests that they have sent.

    See L{Agent}.
    """

    def __init__(self, device: IManagedDevice) -> None:
        """
        @param device: has C{check}, C{count}, C{datagramForm}, C{gid}, C{partitions}, C{paths}, C{port},
            C{randomBits}, C{timers} and C{traits}.
        """
        self.device = device
        #: Class -> version -> method -> agent.
        self._classes: dict[int, dict[int, dict[int, Agent]]] = {}
        #: Those that yield, by class, version and method.
        self._yielding: dict[tuple[int, int, int], Agent] = {}
        self._requests: dict[tuple[int, int, int], Request] = {}
        #: What transaction ids begin with, in its place, and the bits that follow.
        self._prefix, self._bits = 0, _TRANSACTION_BITS
        #: Classes and versions that have agents with RMPP.
        self._segmented: set[tuple[int, int]] = set()
        self.transfers = Transfers(self)
        #: The redirections of peers.
        self.redirections = Redirections()

    def begin(self, prefix: int, bits: int) -> None:
        """
        From now on transaction ids are a prefix and so many random bits.
        """
        self._prefix, self._bits = prefix << bits, bits

    # -- registration

    def has(self, number: int) -> bool:
        """
        Whether the device has queue pair 0, or 1.
        """
        return number != SMI_QPN or bool(self.device.paths.hasSMI)

    def register(
        self,
        managementClass: int,
        version: int,
        methods: Iterable[int],
        received: Received,
        rmppVersion: int = 0,
        yields: bool = False,
    ) -> Agent:
        """
        Take the MADs of a class.

        @param methods: those of requests, none for an agent that only sends; responses go to the request that
            they answer.
        @param received: called with each L{ReceivedMAD}.
        @param rmppVersion: 1 for an agent that sends and takes data of many MADs (as C{rmpp_version} of
            Linux's C{ib_register_mad_agent}); it gets each transfer whole.  0 for one that gets the MADs.
        @param yields: whether another agent may take its methods; it has them again when that is closed.
        @raise ServiceInUseError: another agent has one of these methods, and does not yield it.
        @raise ResourceLimitError: there are L{MAD_REGISTRATIONS}.
        @raise DeviceError: the class is on queue pair 0, which this device does not have.
        @raise ValueError: the class has no RMPP, or not of this version.
        """
        if rmppVersion and (rmppVersion != RMPP_VERSION or dataAt(managementClass) is None):
            raise ValueError(f"class {managementClass:#04x} has no version {rmppVersion} of RMPP")
        has = bool(rmppVersion)
        agent = Agent(self, managementClass, version, frozenset(methods), received, has, yields)
        if not self.has(agent.number):
            raise DeviceError(f"class {managementClass:#04x} needs queue pair 0, which RoCE does not have")
        found = self._classes.get(managementClass, {}).get(version, {})
        if any(method in found and not found[method].yields for method in agent.methods):
            raise ServiceInUseError(f"class {managementClass:#04x} version {version} has an agent already")
        count = sum(len(each) for versions in self._classes.values() for each in versions.values())
        if count + len(agent.methods) > MAD_REGISTRATIONS:
            raise ResourceLimitError(f"{MAD_REGISTRATIONS} methods have agents")
        table = self._classes.setdefault(managementClass, {}).setdefault(version, {})
        table.update(dict.fromkeys(agent.methods, agent))
        if yields:
            self._yielding.update(((managementClass, version, method), agent) for method in agent.methods)
        if agent.hasRMPP:
            self._segmented.add((managementClass, version))
        return agent

    def remove(self, agent: Agent) -> None:
        """
        See L{Agent.close}.
        """
        versions = self._classes.get(agent.managementClass, {})
        methods = versions.get(agent.version, {})
        for method in agent.methods:
            key = agent.managementClass, agent.version, method
            if agent.yields:
                self._yielding.pop(key, None)
            if methods.get(method) is agent:
                del methods[method]
                if key in self._yielding:
                    methods[method] = self._yielding[key]
        if not any(each.hasRMPP for each in methods.values()):
            self._segmented.discard((agent.managementClass, agent.version))
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
        elif queuePairOf(class_) != number:
            count("management_wrong_queue_pair")
        elif (taker := takerOf(class_, method, attribute)) is Taker.NOBODY:
            count("management_unsupported")
        else:
            received = ReceivedMAD(path, number, source, method, transaction, attribute, data, partition)
            if (class_, version) in self._segmented and isSegment(data):
                self.transfers.received(received, class_, version)
            elif taker is Taker.REQUESTER:
                request = self.requestOf(received)
                if request is None:
                    count("management_unmatched")
                elif not self._redirected(request, received):
                    request.end(received)
            else:
                self.deliver(received)

    def _redirected(self, request: Request, received: ReceivedMAD) -> bool:
        status = int.from_bytes(received.data[STATUS_AT : STATUS_AT + 2], "big")
        isInfo = received.attribute == CLASS_PORT_INFO and not status
        if status != REDIRECTED and not isInfo:
            return False
        # ClassPortInfo that was asked for redirects too, but has been answered.
        found = redirectionOf(received.mad, request.address, self._linkLayer is LinkLayer.INFINIBAND)
        if found is None:
            return False
        self.redirections.learn(request.asked, found)
        return not isInfo and request.redirect(self._target(GSI_QPN, found))

    def requestOf(self, received: ReceivedMAD) -> Request | None:
        """
        @return: the request that a response belongs to, if there is one.
        """
        request = self._requests.get((received.number, received.data[CLASS_AT], received.transaction))
        # The transaction id is random, so that a process which only claims the peer's GUID, or a forged
        # source address, cannot answer in its place.
        return None if request is None or request.address != self.addressOf(received.path) else request

    def deliver(self, received: ReceivedMAD) -> None:
        """
        Give a request to its agent, or refuse it.
        """
        agent = self._agentOf(received)
        if agent is not None and agent.redirection is not None and received.method not in _UNANSWERED:
            self.reply(received, redirecting(received.mad, self.device, *agent.redirection))
        elif agent is not None:
            agent.received(received)
        else:
            self._refuse(received, *received.data[CLASS_AT:METHOD_AT])

    def takesTransfer(self, received: ReceivedMAD) -> bool:
        """
        @return: whether the agent of a request takes transfers; else it has got this MAD.
        """
        agent = self._agentOf(received)
        if agent is not None and agent.hasRMPP and agent.redirection is None:
            return True
        self.deliver(received)
        return False

    def _agentOf(self, received: ReceivedMAD) -> Agent | None:
        class_, version = received.data[CLASS_AT:METHOD_AT]
        return self._classes.get(class_, {}).get(version, {}).get(received.method)

    def _refuse(self, received: ReceivedMAD, class_: int, version: int) -> None:
        self.device.count("management_unsupported")
        if received.method not in (GET, SET):
            return
        versions = self._classes.get(class_)
        if versions is None:
            status = UNSUPPORTED_METHOD_ATTRIBUTE
        else:
            status = UNSUPPORTED_METHOD if version in versions else BAD_VERSION
        mad, header = received.mad, received.mad.header
        # A segment that is refused is answered by a plain MAD.
        if isinstance(header, TRANSFER_HEADERS) and isSegment(received.data):
            header = header._replace(transfer=RMPPHeader())
        self.reply(received, evolve(mad, status=status, header=header))

    # -- sending

    def reply(self, request: ReceivedMAD, mad: Mad) -> None:
        method = GET_RESPONSE if request.method in (GET, SET) else request.method | RESPONSE
        status = mad.status
        if mad.managementClass == SUBNET_DIRECTED:
            status |= DIRECTION
        mad = evolve(mad, method=method, transaction=request.transaction, status=status)
        # Of a request of one segment the ACK is half of what it may draw.
        size = MAD_BYTES - (dataAt(mad.managementClass) or 0)
        isShort = request.table is not None and len(request.table) <= size
        post = partial(self.respond, request)
        self._answer(self.addressOf(request.path), request.number, mad, post, int(isShort))

    def post(self, agent: Agent, address: AddressVector, number: int, mad: Mad, queueKey: int) -> None:
        self.device.check()
        if agent.managementClass != SUBNET_DIRECTED:
            address.check(self._linkLayer)
        mad = evolve(mad, managementClass=agent.managementClass, classVersion=agent.version)
        header = self._header(agent.number, address, queueKey)
        target = Target(address.key(self._linkLayer), UD_SEND_ONLY << 24 | number & QPN_MASK, header)
        self._answer(target.key, agent.number, mad, partial(self._post, target))

    def _post(self, target: Target, octets: bytes) -> None:
        way = self.hold(target)
        way.send(target.word, target.header + octets, b"", 0)
        self.device.paths.release(way)

    def _answer(
        self, address: int, number: int, mad: Mad, post: Callable[[bytes], object], spent: int = 0
    ) -> None:
        data = self._table(mad)
        if data is None:
            post(mad.pack())
            return
        octets = evolve(mad, data=b"").pack()
        key = address, number, mad.managementClass, mad.classVersion, mad.transaction, mad.method
        if self.transfers.repeated(key, spent):
            return
        head = octets[: dataAt(mad.managementClass)]
        try:
            self.transfers.send(key, head, data, post, isResponse=True, spent=spent)
        except ResourceLimitError:
            # The peer repeats its request.
            self.device.count("management_dropped")

    def _table(self, mad: Mad) -> bytes | None:
        header = mad.header
        isActive = isinstance(header, TRANSFER_HEADERS) and header.transfer.flags & ACTIVE
        if not isActive or (mad.managementClass, mad.classVersion) not in self._segmented:
            return None
        return mad.data if isinstance(mad.data, bytes) else None

    def respond(self, request: ReceivedMAD, octets: bytes) -> None:
        """
        Send a MAD on the path that another came by, to its sender; it may be lost.
        """
        path = request.path
        header = self._header(request.number, self._form.vector(self.addressOf(path), HOP_LIMIT))
        # On the path of the request, whoever the peer says it is: nobody else is disturbed.
        word = UD_SEND_ONLY << 24 | request.source
        if not path.alive or not path.respond(word, header + octets, request.partition):
            self.device.count("management_dropped")

    @property
    def _form(self) -> DatagramForm:
        form: DatagramForm = self.device.datagramForm
        return form

    @property
    def _linkLayer(self) -> LinkLayer:
        linkLayer: LinkLayer = self.device.port.linkLayer
        return linkLayer

    @property
    def partition(self) -> int:
        """
        The P_Key of its datagrams.
        """
        return int(self.device.partitions.key(0))

    def addressOf(self, path: Any) -> int:
        """
        @return: the address of the peer of a path, see
            L{AddressVector.key<twisted_ib.hca.services.address.AddressVector.key>}.
        """
        return self._form.peerKey(path.peer)

    def hold(self, target: Target) -> Any:
        """
        @return: the way to a target, until C{device.paths.release}.
        """
        return self.device.paths.hold(target.key, target.word & QPN_MASK)

    def _header(self, number: int, vector: AddressVector, queueKey: int = QUEUE_KEY) -> bytes:
        # Queue pair 0 has no Q_Key to check (Linux mad.c posts SMPs with 0).
        return self._form.pack(self, vector, MAD_BYTES) + DETH.pack(queueKey if number else 0, number)

    def _target(self, number: int, to: Redirection) -> Target:
        vector = evolve(
            self._form.vector(to.key, HOP_LIMIT), trafficClass=to.trafficClass, flowLabel=to.flowLabel
        )
        return Target(to.key, UD_SEND_ONLY << 24 | to.number, self._header(number, vector, to.queueKey))

    def send(
        self,
        agent: Agent,
        address: AddressVector,
        mad: Mad,
        answered: Answered | None,
        timeout: float,
        retries: int,
    ) -> Request | None:
        device = self.device
        device.check()
        # IBTA vol. 1 14.2.2: a directed route is all in the MAD, and its LIDs are permissive.
        if agent.managementClass != SUBNET_DIRECTED:
            address.check(self._linkLayer)
        checkPatience(timeout, retries)
        if len(self._requests) >= MAD_REQUESTS:
            raise ResourceLimitError(f"{MAD_REQUESTS} requests wait for their responses")
        key = self._draw(agent)
        number, class_, transaction = key
        mad = evolve(mad, managementClass=class_, classVersion=agent.version, transaction=transaction)
        data = self._table(mad) if agent.hasRMPP else None
        octets = (mad if data is None else evolve(mad, data=b"")).pack()
        to = address.key(self._linkLayer)
        found = self.redirections.find((to, class_))
        if found is None:
            target = Target(to, UD_SEND_ONLY << 24 | number, self._header(number, address))
        else:
            target = self._target(number, found)
        if answered is None and data is None:
            self._post(target, octets)
            return None
        request = self._requests[key] = Request(self, key, to, target, answered)
        if data is None:
            request.begin(octets, timeout, retries)
            return request
        try:
            request.beginTransfer(agent.version, octets, data, timeout, retries)
        except (LengthError, ResourceLimitError):
            request.cancel()
            raise
        return request

    def _draw(self, agent: Agent) -> tuple[int, int, int]:
        while True:
            key = agent.number, agent.managementClass, self._prefix | self.device.randomBits(self._bits)
            if key not in self._requests:
                return key

    def forget(self, request: Request) -> None:
        """
        A request ended.
        """
        self._requests.pop(request.key, None)

    def close(self) -> None:
        try:
            notifyAll(partial(request.end, None) for request in list(self._requests.values()))
        finally:
            self.transfers.close()
