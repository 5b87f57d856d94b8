"""
The cost of a C program's call: the functions of Python that its handler runs.

No library is built: cffi reads the declarations, and the handlers that C's table names are called with its
structures.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.counting import steps
from tests.gates.falling import mayOnlyFall
from tests.support.calls import PACKAGE, called
from tests.support.waiting import waitUntil
from tests.test_costs import requireBytecodes
from tests.verbs.c.posting.declared import record, useDeclared
from tests.verbs.pyverbs.pair import End, VerbsTestCase
from twisted_ib.verbs.core import hub as hubs
from twisted_ib.verbs.core import progress
from twisted_ib.verbs.pyverbs import CQ, QP, SGE, CompChannel, QPCap, QPInitAttr, RecvWR, SendWR, enums

#: A message's bytes.
DATA = bytes(64)


class CallTests(VerbsTestCase):
    """
    One call each, of 64 bytes with one element; both ends are on one HCA.
    """

    #: Of a signalled request, of a receive; of polling for two completions that are there, which puts those
    #: of the other end into its ring, too, for those, and for none.
    recorded = {"post_send": 12, "post_recv": 6, "poll_cq, other": 7, "poll_cq": 6, "poll_cq, none": 9}
    #: Of taking an event that is there.
    events = 27

    def setUp(self) -> None:
        """
        Load the handlers, for this test.
        """
        super().setUp()
        useDeclared(self)
        import_module("twisted_ib.verbs.c.verbs.work")
        import_module("twisted_ib.verbs.c.verbs.completion")
        self.structures = import_module("twisted_ib.verbs.c.verbs.structures")
        self.calls = import_module("twisted_ib.verbs.c.functions")._handlers["verbs"]
        self.ffi = self.structures.ffi

    def ran(self, act: Callable[[], object]) -> int:
        """
        @return: How many functions of the package something calls.
        """
        return called(act, PACKAGE).total()

    def structure(self, kind: str, value: Any) -> Any:
        """
        @return: The structure of an object, until the test ends.
        """
        made = self.structures.new(kind, value)
        handles = import_module("twisted_ib.verbs.c.handles").handles
        address = import_module("twisted_ib.verbs.c.pointers").addressOf(made)
        self.addCleanup(handles.remove, address, kind)
        return made

    def test_calls(self) -> None:
        """
        The functions that each call runs, and it succeeds.
        """
        one, two = End(self), End(self)
        one.connect(two)
        new = self.ffi.new
        postings = import_module("twisted_ib.verbs.c.postings")
        structures = new("struct twisted_ib_qp[2]")
        sends = postings.SendQueue(one.qp, self.ffi.addressof(structures[0], "sends"))
        receives = postings.ReceiveQueue(two.qp, self.ffi.addressof(structures[1], "receives"))
        for posted in (sends, receives):
            posted.open()
            self.addCleanup(posted.close)

        def recordOne(name: str) -> None:
            """
            A request of 64 bytes is posted, as C records it.
            """
            end, queue = (one, sends) if name == "post_send" else (two, receives)
            piece = SGE(end.mr.buf, len(DATA), end.mr.lkey)
            record(postings.posting, queue._structure, piece, whole=int(queue is sends))

        completions = new("struct ibv_wc[2]")

        def count(name: str, *arguments: Any) -> tuple[int, int]:
            """
            @return: The functions of a call, and its result.
            """
            results: list[int] = []
            ran = self.ran(lambda: results.append(self.calls[name](*arguments)))
            return ran, results[0]

        def post(name: str) -> tuple[int, int]:
            """
            @return: The same of a post whose request C has recorded.
            """
            recordOne(name)
            return count(name, *[self.ffi.NULL] * 3)

        # The first message finds the path.
        for name in ("post_recv", "post_send"):
            self.assertEqual(post(name)[1], 0)
        for each in (one, two):
            self.wait(each.cq)
        # No look at descriptors and timers comes between, as one does every now and then.
        for name in ("_ATTENTION", "_BUSY_ATTENTION"):
            self.patch(progress, name, float("inf"))
        # As C programs have them, which take the completions from rings.
        owns = [new("struct twisted_ib_cq *") for _ in range(2)]
        for each, structure in zip((one, two), owns, strict=True):
            cq, rings = each.cq, import_module("twisted_ib.verbs.c.rings")
            ring = rings.CompletionRing(cq._device, cq._core, structure)
            self.addCleanup(ring.close)
        found = {}
        found["poll_cq, none"], none = count("poll_cq", owns[0], 2, completions)
        for _ in range(2):
            found["post_recv"], received = post("post_recv")
            found["post_send"], sent = post("post_send")
            self.assertEqual((none, received, sent), (0, 0, 0))
        # The messages are taken before, with which the requests complete.
        path: Any = two.qp._core.path
        path.progress(2)
        for name, own in zip(("poll_cq", "poll_cq, other"), owns[::-1], strict=True):
            found[name], polled = count("poll_cq", own, 2, completions)
            self.assertEqual((polled, own.ring.head, own.ring.tail), (0, 0, 2))
            self.assertEqual([each.status for each in own.ring.entries[0:2]], [0, 0])
        mayOnlyFall(self, found, self.recorded)

    def test_events(self) -> None:
        """
        The functions that taking an event runs, with one drive and one question for the descriptor's flags.
        """
        one, two = End(self), End(self)
        channel = CompChannel(two.ctx)
        two.cq = CQ(two.ctx, 8, None, channel, 0)
        cap = QPCap(8, 8, 1, 1, 0)
        two.qp = QP(two.pd, QPInitAttr(enums.IBV_QPT_RC, None, two.cq, two.cq, None, cap, 0))
        one.connect(two)
        structure = self.structure("ibv_comp_channel", channel)
        self.structure("ibv_cq", two.cq)
        taken, context = self.ffi.new("struct ibv_cq **"), self.ffi.new("void **")
        flags: list[int] = []
        waiting = import_module("twisted_ib.verbs.c.waiting")
        isNonBlocking = waiting.isNonBlocking

        def asked(fd: int) -> bool:
            flags.append(fd)
            return bool(isNonBlocking(fd))

        self.patch(waiting, "isNonBlocking", asked)
        os.set_blocking(channel.event_fd, True)

        def turn() -> None:
            with hubs.hub:
                hubs.hub.drive()

        def event(isThere: bool) -> int:
            """
            @return: The functions of the call.
            """
            two.qp.post_recv(RecvWR(1, 1, [SGE(two.mr.buf, len(DATA), two.mr.lkey)]))
            two.cq.req_notify(False)
            one.qp.post_send(SendWR(1, num_sge=1, sg=[SGE(one.mr.buf, len(DATA), one.mr.lkey)]))
            if isThere:
                waitUntil(lambda: bool(channel._notices.waiting), turn)
            before = hubs.hub.drives
            results: list[int] = []
            call = self.calls["ibv_get_cq_event"]
            ran = self.ran(lambda: results.append(call(structure, taken, context)))
            self.assertEqual((results, hubs.hub.drives - before), ([0], 1))
            self.calls["ibv_ack_cq_events"](taken[0], 1)
            self.wait(two.cq)
            return ran

        # The first message finds the path, and looks at descriptors and timers come now and then.
        event(True)
        for name in ("_ATTENTION", "_BUSY_ATTENTION"):
            self.patch(progress, name, float("inf"))
        flags.clear()
        # A timer may be due in one of them, if this process has waited long for a processor.
        least = min(event(True) for _ in range(3))
        mayOnlyFall(self, {"ibv_get_cq_event": least}, {"ibv_get_cq_event": self.events})
        # One that comes with the peer's message.
        event(False)
        self.assertEqual(flags, [channel.event_fd] * 4)


class LoopbackCallTests(CallTests):
    """
    The same without rings.
    """

    device = "lo0"
    recorded = {"post_send": 12, "post_recv": 6, "poll_cq, other": 7, "poll_cq": 6, "poll_cq, none": 11}
    events = 29


class CallBytecodeTests(CallTests):
    """
    The same in bytecodes.
    """

    recorded = {
        "post_send": 755,
        "post_recv": 348,
        "poll_cq, other": 281,
        "poll_cq": 555,
        "poll_cq, none": 366,
    }
    events = 936

    def ran(self, act: Callable[[], object]) -> int:
        requireBytecodes()
        return steps(act)["bytecodes"]
