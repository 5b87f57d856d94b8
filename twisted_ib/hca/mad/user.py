"""
The MADs of a program at a port: what Linux's C{user_mad.c} does for C{/dev/infiniband/umadN}.

A program registers agents, by number, and sends and takes octets: of a plain MAD all 256, of a transfer the
headers of its first MAD and the data of all.  Responses have the transaction ids that the program gave its
requests.  C{management_overrun} counts MADs that are dropped as the program does not read.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from twisted_ib.errors import HeaderError, LengthError, ResourceLimitError
from twisted_ib.hca.mad.dispatch import MAD_RETRIES, MAD_TIMEOUT_SECONDS, Agent
from twisted_ib.hca.mad.rmpp.receiver import RMPP_TABLE_BYTES
from twisted_ib.hca.mad.rmpp.segments import TABLE, dataAt, isSegment
from twisted_ib.hca.mad.takers import isResponse
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.headers import MAD_BYTES, QPN_MASK, QUEUE_KEY
from twisted_ib.hca.wire.mad.classes import ORGANIZATION_CLASSES, TRANSFER_HEADERS, OrganizationHeader
from twisted_ib.hca.wire.mad.mad import (
    BASE_VERSION,
    CLASS_AT,
    HEADER_BYTES,
    METHOD_AT,
    UNSUPPORTED_METHOD_ATTRIBUTE,
    Mad,
    decodeMAD,
)

if TYPE_CHECKING:
    from twisted_ib.hca.mad.agents import IManagedDevice
    from twisted_ib.hca.mad.requests import ReceivedMAD, Request

#: Agents of one program at a port (Linux user_mad.c, IB_UMAD_MAX_AGENTS).
USER_AGENTS = 32
#: MADs, and octets of them, that wait for a program to read.  OpenSM has up to 4096 requests under way.
USER_MADS = 8192
USER_BYTES = 64 << 20

_TRANSACTION: Final = slice(8, 16)
_MILLISECONDS: Final = 1000


@frozen
class UserMAD:
    """
    A MAD for a program, as C{struct ib_user_mad} has it.

    @ivar agent: the number of the agent.
    @ivar octets: see the module.
    @ivar source: the address of its sender; of a request that failed that of its receiver.
    @ivar queuePair: the sender's, or that of the receiver.
    @ivar status: 0, or an errno: the program's own request was not answered.
    """

    agent: int
    octets: bytes
    source: AddressVector
    queuePair: int
    status: int = 0


class _UserAgent:
    def __init__(self, port: UserPort, number: int, organization: int | None) -> None:
        self.port = port
        self.number = number
        self.organization = organization
        self.agent: Agent | None = None
        self.requests: set[Request] = set()

    def received(self, received: ReceivedMAD) -> None:
        header = received.mad.header
        isOther = isinstance(header, OrganizationHeader) and header.organization != self.organization
        # Linux mad.c find_mad_agent: agents of these classes are registered for an OUI.
        if self.organization is not None and isOther and self.agent is not None:
            self.agent.reply(received, evolve(received.mad, status=UNSUPPORTED_METHOD_ATTRIBUTE))
            return
        self.port.took(self.number, received)


class UserPort:
    """
    One program's agents at a port, and what they have received.
    """

    def __init__(self, device: IManagedDevice, readable: Callable[[bool], object]) -> None:
        """
        @param device: has C{count}, C{datagramForm}, C{mads}.
        @param readable: called with whether there is something to L{receive}, when that changes.
        """
        self.device = device
        self._readable = readable
        self._agents: dict[int, _UserAgent] = {}
        self._received: deque[UserMAD] = deque()
        self._octets = 0

    def __len__(self) -> int:
        return len(self._received)

    # -- agents

    def register(
        self,
        managementClass: int,
        version: int,
        methods: Iterable[int],
        rmppVersion: int = 0,
        organization: int = 0,
    ) -> int:
        """
        See L{Agents.register<twisted_ib.hca.mad.dispatch.Agents.register>}.

        @param organization: the OUI, for a vendor class of range 2.
        @return: the number of the new agent.
        @raise ResourceLimitError: there are L{USER_AGENTS}.
        """
        number = next((each for each in range(USER_AGENTS) if each not in self._agents), None)
        if number is None:
            raise ResourceLimitError(f"a program has {USER_AGENTS} agents at a port, at most")
        isVendor = managementClass in ORGANIZATION_CLASSES
        made = _UserAgent(self, number, organization if isVendor else None)
        made.agent = self.device.mads.register(managementClass, version, methods, made.received, rmppVersion)
        self._agents[number] = made
        return number

    def unregister(self, number: int) -> None:
        """
        Take no more MADs for an agent; its requests are cancelled.

        @raise ValueError: there is no such agent.
        """
        found = self._agentOf(number)
        del self._agents[number]
        for request in found.requests:
            request.cancel()
        if found.agent is not None:
            found.agent.close()

    def close(self) -> None:
        """
        Unregister all.  Idempotent.
        """
        for number in list(self._agents):
            self.unregister(number)
        self._received.clear()
        self._octets = 0

    def _agentOf(self, number: int) -> _UserAgent:
        found = self._agents.get(number)
        if found is None:
            raise ValueError(f"the program has no agent {number} at this port")
        return found

    # -- sending

    def send(
        self,
        number: int,
        address: AddressVector,
        queuePair: int,
        octets: bytes,
        timeout: int = 0,
        retries: int = 0,
        queueKey: int = QUEUE_KEY,
    ) -> None:
        """
        Send a MAD, which may be lost.  A request whose time is over is received again, with an errno.

        @param number: of the agent.
        @param queuePair: the destination's, and C{queueKey} its Q_Key.
        @param octets: see the module.
        @param timeout: milliseconds that each attempt waits for a response, at most L{MAD_TIMEOUT_SECONDS};
            negative for as long as that, 0 if no response is expected.
        @param retries: how often it is repeated, at most L{MAD_RETRIES}.
        @raise ValueError: there is no such agent, or the class of the MAD is on another queue pair.
        @raise LengthError: it is too short or too long.
        @raise HeaderError: it has another base version.
        @raise ResourceLimitError: too many wait for their responses.
        @raise QueuePairError: the address is not valid.
        """
        found = self._agentOf(number)
        agent = self._sender(found, octets)
        mad = self._parse(agent, octets)
        if isResponse(octets[METHOD_AT]) or not timeout:
            agent.post(address, queuePair, mad, queueKey)
            return
        if queuePair & QPN_MASK != agent.number:
            raise ValueError(f"class {agent.managementClass:#04x} is asked on queue pair {agent.number}")
        most = int(MAD_TIMEOUT_SECONDS * _MILLISECONDS)
        seconds = (timeout if 0 < timeout < most else most) / _MILLISECONDS
        sent: list[Request] = []

        def answered(received: ReceivedMAD | None) -> None:
            found.requests.difference_update(sent)
            if received is not None:
                self.took(number, received, octets[_TRANSACTION])
            else:
                # Linux user_mad.c send_handler: the common header alone.
                head = octets[:HEADER_BYTES]
                self._put(UserMAD(number, head, address, queuePair, errno.ETIMEDOUT))

        request = agent.send(address, mad, answered, seconds, min(max(retries, 0), MAD_RETRIES))
        if request is not None:
            sent.append(request)
            found.requests.add(request)

    def _sender(self, found: _UserAgent, octets: bytes) -> Agent:
        if not HEADER_BYTES <= len(octets) <= MAD_BYTES + RMPP_TABLE_BYTES:
            raise LengthError(f"a MAD has no {len(octets)} octets")
        if octets[0] != BASE_VERSION:
            raise HeaderError(f"a MAD has base version {octets[0]}, not {BASE_VERSION}")
        class_, version = octets[CLASS_AT:METHOD_AT]
        agent = found.agent
        assert agent is not None
        if (class_, version) == (agent.managementClass, agent.version):
            return agent
        # OpenSM sends SMPs of both classes by one agent: Linux compares queue pairs only.
        sender = Agent(self.device.mads, class_, version, frozenset(), found.received)
        if sender.number != agent.number:
            raise ValueError(f"class {class_:#04x} is not on queue pair {agent.number}, the agent's")
        return sender

    def _parse(self, agent: Agent, octets: bytes) -> Mad:
        first = octets[:MAD_BYTES].ljust(MAD_BYTES, b"\0")
        mad = decodeMAD(first)
        at = dataAt(agent.managementClass)
        if at is not None and agent.hasRMPP and isSegment(first):
            # Whole, and with an incomplete header, as Linux user_mad.c takes it from programs.
            assert isinstance(mad.header, TRANSFER_HEADERS)
            return evolve(mad, header=mad.header._replace(transfer=TABLE), data=octets[at:])
        if len(octets) > MAD_BYTES:
            raise LengthError(f"a MAD has {MAD_BYTES} octets, not {len(octets)}")
        return mad

    # -- receiving

    def took(self, number: int, received: ReceivedMAD, transaction: bytes = b"") -> None:
        """
        An agent got a MAD.

        @param number: of the agent.
        @param transaction: the id that the program has given its request; none for one of a peer.
        """
        octets = received.data
        if received.table is not None:
            octets = octets[: dataAt(octets[CLASS_AT])] + received.table
        if transaction:
            octets = octets[: _TRANSACTION.start] + transaction + octets[_TRANSACTION.stop :]
        device = self.device
        form = device.datagramForm
        source = form.vector(form.peerKey(received.path.peer), 0)
        self._put(UserMAD(number, octets, source, received.source))

    def _put(self, mad: UserMAD) -> None:
        octets = self._octets + len(mad.octets)
        if len(self._received) >= USER_MADS or octets > USER_BYTES:
            self.device.count("management_overrun")
            return
        self._octets = octets
        self._received.append(mad)
        if len(self._received) == 1:
            self._readable(True)

    def receive(self, room: int) -> UserMAD | None:
        """
        Take the oldest MAD that was received.

        @param room: octets that the program has room for: a longer one stays.
        @return: it; L{None} if there is none.
        """
        if not self._received:
            return None
        mad = self._received[0]
        if len(mad.octets) <= room:
            self._received.popleft()
            self._octets -= len(mad.octets)
            if not self._received:
                self._readable(False)
        return mad
