"""
The common parts of the tests that kill processes, here and in C{tests/soak}.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.processes.processes import SCHEME, Child, ChildError, ProcessTestCase
from tests.support.waiting import HANG_SECONDS, PATIENCE

#: The survivor must know within this time: at once, so on a machine that lets it run.
DEATH_SECONDS = 2.0 * PATIENCE

#: The steps of a connection, in order; the last two are
#: alternatives.
PHASES = ("connect", "send", "reply", "closeByClient", "closeByServer")

#: Bytes that each phase sends.
MESSAGE_BYTES = 200_000


class KillTestCase(ProcessTestCase):
    """
    Somebody dies, somebody lives on.
    """

    def setUp(self) -> None:
        """
        TCP does not tell death from an orderly close.
        """
        if SCHEME != "sdp":
            self.skipTest("about SDP")
        super().setUp()

    def settled(self, survivor: Child) -> dict[str, int]:
        """
        Let a survivor make and lose a first connection, so that what it opens
        once is open.

        @param survivor: who.

        @return: what it holds.
        """
        other = self.spawn()
        wire = survivor.ask("connect", endpoint=self.listen(other))
        survivor.ask("close", wire=wire)
        other.ask("ends", limit=HANG_SECONDS)
        self.assertEqual(survivor.ask("ends", limit=HANG_SECONDS), ["ConnectionDone"])
        other.end()
        usage: dict[str, int] = survivor.ask("usage")
        return usage

    def assertWorks(self, client: Child, server: Child, endpoint: str) -> None:
        """
        A new connection must work.

        @param client: connects.
        @param server: listens.
        @param endpoint: where.
        """
        ends = [self.converse("closeByClient", client, server, endpoint, None)]
        ends += [child.ask("ends", limit=HANG_SECONDS) for child in (client, server)]
        self.assertEqual(ends, [False, ["ConnectionDone"], ["ConnectionDone"]])

    # -- at the Nth store

    def converse(
        self, phase: str, client: Child, server: Child, endpoint: str, victim: Child | None, store: int = 0
    ) -> bool:
        """
        Connect, send, reply and close, as far as a given phase, which somebody
        may not survive.

        @param phase: the last phase.
        @param client: connects.
        @param server: listens.
        @param endpoint: where.
        @param victim: the process that may die in that phase.
        @param store: at which store.

        @return: whether it died.
        """
        steps = [*PHASES[: min(PHASES.index(phase), 3)], phase]
        wires: dict[Child, int] = {}
        for step in steps:
            pair = [client, server]
            if step == phase and victim is not None:
                victim.ask("doom", store=store)
                pair.sort(key=lambda child: child is not victim)
            self.begin(step, client, server, endpoint, wires)
            died = False
            for child in pair:
                try:
                    self.finish(step, child, client, server, wires)
                except ChildError as error:
                    if child is victim and not error.kind:
                        died = True
                    elif not died:
                        raise
            if died:
                return True
        if victim is not None:
            try:
                victim.ask("doom", store=0)
            except ChildError:
                return True  # By a store after all that we wait for, as it went to sleep.
        return False

    def begin(self, step: str, client: Child, server: Child, endpoint: str, wires: dict[Child, int]) -> None:
        """
        Begin a phase on both sides.

        @param step: the phase.
        @param client: connects.
        @param server: listens.
        @param endpoint: where.
        @param wires: the connection's number on each side.
        """
        if step == "connect":
            client.begin("connect", endpoint=endpoint)
        elif step in ("send", "reply"):
            writer, reader = (client, server) if step == "send" else (server, client)
            reader.begin("received", wire=wires[reader], count=MESSAGE_BYTES)
            writer.begin("write", wire=wires[writer], length=MESSAGE_BYTES)
        else:
            closer = client if step == "closeByClient" else server
            closer.begin("close", wire=wires[closer])

    def finish(self, step: str, child: Child, client: Child, server: Child, wires: dict[Child, int]) -> None:
        """
        Wait until one side has done its part of a phase.

        @param step: the phase.
        @param child: which side.
        @param client: connects.
        @param server: listens.
        @param wires: the connection's number on each side.
        """
        if step == "connect":
            wires[child] = child.answer() if child is client else child.event("made")["wire"]
        elif step in ("send", "reply"):
            child.answer()
        else:
            if child is (client if step == "closeByClient" else server):
                child.answer()
            child.event("lost", wire=wires[child])


class StoreTestCase(KillTestCase):
    """
    One process dies at each store of each phase, another one sees it all.
    """

    doomed = "tests.processes.programs.doomed.Doomed"

    def throughStores(self, phase: str, victimIsClient: bool, stores: Iterable[int]) -> None:
        """
        Have a process die at stores of a phase until there are no more.

        @param phase: the phase.
        @param victimIsClient: else it is the server.
        @param stores: the numbers of the stores.
        """
        survivor = self.spawn()
        endpoint = "" if not victimIsClient else self.listen(survivor)
        usage = self.settled(survivor)
        survived = 0
        for store in stores:
            victim = self.spawn(program=self.doomed)
            if victimIsClient:
                client, server, where = victim, survivor, endpoint
            else:
                client, server, where = survivor, victim, self.listen(victim)
            died = self.converse(phase, client, server, where, victim, store)
            if not died:
                victim.end()
            ends = survivor.ask("ends", limit=DEATH_SECONDS)
            self.check(phase, victimIsClient, store, died, ends)
            self.assertSettles(survivor, usage)
            survived = 0 if died else survived + 1
            # How many stores there are depends a little on who sleeps when.
            if survived == 2:
                break
        other = self.spawn()
        if victimIsClient:
            self.assertWorks(other, survivor, endpoint)
        else:
            self.assertWorks(survivor, other, self.listen(other))

    def check(self, phase: str, victimIsClient: bool, store: int, died: bool, ends: list[Any]) -> None:
        """
        Compare how the survivor's connection ended with what happened.

        @param phase: the phase.
        @param victimIsClient: else it is the server.
        @param store: the store at which the victim died.
        @param died: if it did.
        @param ends: how the survivor's connections ended.
        """
        what = f"{phase}, store {store}, died: {died}"
        # The death of one that has read all, and sent what it wrote, is an end in order.
        allowed = [["ConnectionDone"], ["ConnectionLost"]]
        if phase == "connect":
            allowed.append([])
        self.assertIn(ends, allowed, what)


def addStoreTests(case: type[StoreTestCase], stores: range, name: str) -> None:
    """
    Make one test per phase and victim.

    @param case: the class that gets them.
    @param stores: the numbers of the stores.
    @param name: how the tests' names begin.
    """
    for phase in PHASES:
        for victimIsClient in (True, False):
            victim = "Client" if victimIsClient else "Server"

            def test(self: StoreTestCase, phase: str = phase, victimIsClient: bool = victimIsClient) -> None:
                self.throughStores(phase, victimIsClient, stores)

            test.__doc__ = f"The {victim.lower()} dies in the phase {phase}."
            setattr(case, f"{name}_{phase}{victim}", test)
