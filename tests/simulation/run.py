"""
One run: two HCAs connect through the connection manager, work, disconnect and come to rest, while a
fault does what it does.  Everything follows from a seed and a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from tests.hca.fabric.faults import FaultyLink, Replay
from tests.simulation.kinds import KINDS
from tests.simulation.worker import RELIABLE, UNRELIABLE, DatagramWorker, Worker
from tests.simulation.world import Host, Link, World
from twisted_ib import limits
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.connection import PathRecord
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader, gidOf
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.wire.cm.messages import REP, REQ
from twisted_ib.hca.wire.opcodes import MTU_BYTES

ADDRESSES = (("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2"))
PORT = 7471
#: Timeout codes of messages of the connection manager, as the RDMA-CM has them, and its retries.
RESPONSE, RETRIES = 20, 15
#: The longest that anything may take, in virtual seconds.
CONNECT, WORK, QUIET = 150.0, 7200.0, 200.0


class Failure(AssertionError):
    """
    A run did not end as it must; the text has the line that makes it again.
    """


class Run:
    """
    One run.

    @ivar fatal: whether the connection may end with an error.
    @ivar mtu: the code of the path MTU.
    @ivar psns: the first sequence numbers, of both sides.
    @ivar window: the most packets on their way, if it is another.
    @ivar timeout: the code of the queue pairs.
    @ivar spread: over how many seconds requests are posted.
    @ivar earlier: whether there is an earlier connection of the same queue pairs.
    @ivar connectSeconds: about how long connecting takes.
    """

    def __init__(self, seed: int, kind: str) -> None:
        """
        Make everything, and connect nothing.
        """
        self.seed, self.kind = seed, kind
        dice = self.dice = Random(f"{seed} {kind}")
        self.world = World()
        self.type = QPType.UC if dice.random() < 0.15 else QPType.RC
        self.addresses = ADDRESSES[dice.randrange(2)]
        self.fatal = self.earlier = False
        self.mtu = dice.choice((1, 2, 3, 3, 5))
        self.psns: tuple[int, int] = (dice.getrandbits(24), dice.getrandbits(24))
        self.window: int | None = None
        self.timeout = 18
        self.spread = dice.choice((0.0, 0.01, 0.2))
        self.connectSeconds = 0.001
        self.onConnected: list[Callable[[], object]] = []
        self.links: list[FaultyLink] = []
        for address in self.addresses:
            link = Link(self.world.network, address, 4096)
            self.links.append(FaultyLink(link, [], self.world.seconds, self.world.later))
        for link_ in self.links:
            self.world.hosts.append(Host(self.world, link_, dice.getrandbits(32)))
        KINDS[kind](dice, self)
        self.workers = [
            Worker(host, name, Random(dice.getrandbits(32)), self.type)
            for host, name in zip(self.world.hosts, "ab", strict=True)
        ]
        a, b = self.workers
        a.peer, b.peer = b, a
        if self.type == QPType.RC and dice.random() < 0.1:
            a.huge = 0.3
            b.widen()
            a.widen()
        self.forbids = self.type == QPType.RC and dice.random() < 0.2
        self.datagrams: list[DatagramWorker] = []
        if dice.random() < 0.3:
            self.datagrams = [
                DatagramWorker(host, name, Random(dice.getrandbits(32)))
                for host, name in zip(self.world.hosts, "cd", strict=True)
            ]
            c, d = self.datagrams
            c.peer, d.peer = d, c
        for n, host in enumerate(self.world.hosts):
            host.pump = self._pump([self.workers[n], *self.datagrams[n : n + 1]])

    @staticmethod
    def _pump(workers: list[Worker]) -> Callable[[], bool]:
        """
        Return a function that polls the completions of one host.
        """
        return lambda: any([worker.pump() for worker in workers])

    def go(self) -> list[str]:
        """
        Do it all.

        @return: the log.
        @raise Failure: something is not as it must be.
        """
        try:
            with mock.patch.object(limits, "TRANSPORT_WINDOW", self.window or limits.TRANSPORT_WINDOW):
                self._go()
                self.world.close()
        except Exception as error:
            with suppress(Exception):
                self.world.close()
            line = f"python -m tests.simulation --runs 1 --seed {self.seed} --kind {self.kind}"
            raise Failure(f"{type(error).__name__}: {error}\n  {line}") from error
        return self.world.log

    def _go(self) -> None:
        """
        Connect, work, disconnect, rest.
        """
        self.passive = Passive(self)
        self.world.hosts[1].device.listen(PortSpace.TCP, self.addresses[1], PORT, self.passive)
        for worker in self.datagrams:
            worker.begin()
        self.round = 1
        if self.earlier:
            self._connect()
            self._work(3)
            self._disconnect()
            self.round = 2
            for worker in self.workers:
                worker.qp.modify(QPState.RESET)
                worker.inbox.clear()
                worker.disconnected = False
                worker.connection = None
            for link in self.links:
                for fault in link.faults:
                    if isinstance(fault, Replay):
                        fault.begin()
            self.psns = self.dice.getrandbits(24), self.dice.getrandbits(24)
        self._connect()
        for call in self.onConnected:
            call()
        self._work(self.dice.randrange(3, 16))
        self._disconnect()
        self._rest()

    @property
    def everybody(self) -> list[Worker]:
        """
        All queue pairs.
        """
        return [*self.workers, *self.datagrams]

    def _connect(self) -> None:
        """
        Connect through the connection manager.
        """
        a, b = self.workers
        device = a.device
        device.connect(PortSpace.TCP, self.addresses[1], PORT, Active(self))
        came = self.world.run(lambda: a.connection is not None and b.connection is not None, CONNECT)
        assert came, "no connection"
        assert a.qp.state == b.qp.state == QPState.RTS

    def _work(self, count: int) -> None:
        """
        Post requests at both sides, and wait for all of them.
        """
        opcodes = RELIABLE if self.type == QPType.RC else UNRELIABLE
        for worker in self.everybody:
            worker.plan(count, opcodes, MTU_BYTES[self.mtu])
            for _ in range(count):
                self.world.later(self.dice.random() * self.spread, partial(self._post, worker))
        done = self.world.run(lambda: all(self._isDone(worker) for worker in self.everybody), WORK)
        assert done, "requests do not complete: " + ", ".join(
            f"{worker.name} {worker.completed} of {len(worker.posted)}" for worker in self.everybody
        )

    def _post(self, worker: Worker) -> None:
        """
        Post one request, unless it is over.
        """
        if worker.ended:
            worker.waiting.clear()
        worker.post(1)

    def _isDone(self, worker: Worker) -> bool:
        """
        Whether a side has all its completions.
        """
        return worker.done or (worker.host.stopped and self.fatal)

    def _disconnect(self) -> None:
        """
        End the connection, and look at what is left.
        """
        a, b = self.workers
        if not self.fatal and self.type == QPType.RC:
            for worker in self.workers:
                failed = [work for work in worker.posted if work.status != WCStatus.SUCCESS]
                assert not failed, f"{worker.name}: {failed[0].opcode.name} ended with {failed[0].status!r}"
        if self.forbids and not (self.earlier and self.round == 1):
            self._forbidden(self.workers[self.dice.randrange(2)])
        self.world.hosts[0].device.disconnect(a.connection)
        ended = self.world.run(lambda: a.disconnected and b.disconnected, CONNECT)
        assert ended or self.fatal, "they are not disconnected"
        for worker in self.workers if self.earlier else self.everybody:
            worker.qp.modify(QPState.ERR)
        self.world.settle()
        for worker in self.workers:
            if not worker.host.stopped:
                assert worker.done, f"{worker.name}: {len(worker.posted) - worker.completed} are not flushed"
            assert worker.host.stopped or not worker.inbox, "receives are not flushed"

    def _forbidden(self, worker: Worker) -> None:
        """
        Ask for what is not granted: that ends the connection at both sides.
        """
        if worker.ended or worker.peer.ended or worker.peer.host.stopped or worker.host.stopped:
            return
        worker.forbidden()
        done = self.world.run(lambda: worker.done, WORK)
        assert done, "something forbidden does not complete"
        status = worker.posted[-1].status
        # If the refusal is lost there is no other one: its sender is in ERR.
        expected = WCStatus.REM_ACCESS_ERR, WCStatus.RETRY_EXC_ERR
        assert self.fatal or status in expected, f"something forbidden ended with {status!r}"
        self.world.run(lambda: worker.peer.ended, 1.0)
        assert self.fatal or worker.peer.ended, "the peer of what is forbidden goes on"

    def _rest(self) -> None:
        """
        Nothing is left.
        """
        for link in self.links:
            link.refusal = None
        assert self.world.quiet(QUIET), f"something is left to do: {self.world.next()}"
        for worker in self.everybody:
            worker.check()
            worker.close()
        assert self.world.quiet(QUIET), f"something is left to do: {self.world.next()}"


class Active:
    """
    The active side's user.
    """

    def __init__(self, run: Run) -> None:
        """
        Of a run.
        """
        self.run, self.worker = run, run.workers[0]

    def connectFailed(self, error: Exception) -> None:
        """
        There is no way.
        """
        raise AssertionError(f"there is no way: {error}")

    def pathReady(self, path: Any) -> None:
        """
        Send a REQ.
        """
        run = self.run
        here, there = run.addresses
        gids = gidOf(here), gidOf(there)
        request = REQ(
            serviceID=PortSpace.TCP << 16 | PORT,
            localQPN=self.worker.qp.number,
            responderResources=4,
            initiatorDepth=4,
            responseTimeout=RESPONSE,
            localCMResponseTimeout=RESPONSE,
            transportServiceType=0 if run.type == QPType.RC else 1,
            retryCount=7,
            rnrRetryCount=7,
            requestRetries=RETRIES,
            startingPSN=run.psns[0],
            pathMTU=run.mtu,
            primaryPath=PathRecord(localGID=gids[0], remoteGID=gids[1], hopLimit=64, localACKTimeout=17),
            privateData=RDMACMHeader(here, 4000, there).pack(),
        )
        device = self.worker.device
        device.cm.connect(path, request, self, device.clock())

    def replied(self, connection: Any, reply: Any) -> None:
        """
        The REP came.
        """
        run = self.run
        self.worker.climb(
            connection.destination, reply.localQPN, run.psns[0], reply.startingPSN, run.mtu, run.timeout
        )
        connection.ready(self.worker.device.clock())
        self.worker.connection = connection

    def rejected(self, connection: Any, message: Any) -> None:
        """
        The peer does not want.
        """
        raise AssertionError(f"refused: {message.reason}")

    def unreachable(self, connection: Any) -> None:
        """
        The peer does not answer.
        """
        raise AssertionError("no answer to a REQ")

    def peerDisconnected(self, connection: Any) -> None:
        """
        It is over.
        """
        self.worker.disconnected = True


class Passive:
    """
    The passive side's listener and user.
    """

    def __init__(self, run: Run) -> None:
        """
        Of a run.
        """
        self.run, self.worker = run, run.workers[1]

    def connectionRequested(self, connection: Any, request: Any) -> None:
        """
        The REQ came.
        """
        run, worker = self.run, self.worker
        worker.climb(
            connection.destination, request.localQPN, run.psns[1], request.startingPSN, run.mtu, run.timeout
        )
        reply = REP(
            localQPN=worker.qp.number,
            startingPSN=run.psns[1],
            responderResources=4,
            initiatorDepth=4,
            targetACKDelay=15,
            rnrRetryCount=7,
        )
        connection.user = self
        connection.accept(reply, worker.device.clock())

    def requestWithdrawn(self, connection: Any) -> None:
        """
        The peer has given up.
        """

    def established(self, connection: Any) -> None:
        """
        The RTU came.
        """
        self.worker.connection = connection

    def unreachable(self, connection: Any) -> None:
        """
        The RTU never came.
        """
        raise AssertionError("no RTU")

    def rejected(self, connection: Any, message: Any) -> None:
        """
        The peer does not want.
        """
        raise AssertionError("rejected after the REP")

    def peerDisconnected(self, connection: Any) -> None:
        """
        It is over.
        """
        self.worker.disconnected = True
