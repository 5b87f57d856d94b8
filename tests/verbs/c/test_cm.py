"""
Tests of librdmacm by programs in C: wrong calls and orders are errno, and neither a crash nor a traceback.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase
from twisted_ib.verbs.c.cm.declarations import TABLE
from twisted_ib.verbs.c.functions import Failure

CALLS, ORDER, ADDRESSES = (
    Path(__file__).with_name(name) for name in ("cm_calls.c", "cm_order.c", "cm_addresses.c")
)
#: Functions for which null, or any number, is right.
HARMLESS = {
    "rdma_create_event_channel",
    "rdma_event_str",
    "rdma_get_devices",
    "rdma_freeaddrinfo",
    "rsocket",
    "rpoll",
    "repoll_create",
    "rselect",
}
#: Zeros in place of an address have no port space.
OTHER = {(how, "rdma_create_ep"): errno.EPROTONOSUPPORT for how in ("other", "freed")}

#: The handlers without their library: another thread has just destroyed what the first event is of.
_DESTROYED = """
import sys
from unittest.mock import MagicMock, Mock
sys.modules.update(_twisted_ib_cm=MagicMock(), _twisted_ib_verbs=MagicMock())
from twisted_ib.verbs.c.cm import channels

events, endpoint = [Mock(), Mock()], Mock()
channels.endpoints = Mock(eventTaken=Mock(side_effect=[None, endpoint]))
channels._structure = lambda event, its: (events.index(event), its is endpoint)
print(channels.takeEvent(Mock(), Mock(side_effect=events)), [each.close.call_count for each in events])
"""

#: A call of a program that does not wait makes progress, which brings an event.
_LATER = """
import sys
from unittest.mock import MagicMock, Mock
sys.modules.update(_twisted_ib_verbs=MagicMock())
from twisted_ib.verbs.c import waiting
from twisted_ib.verbs.c.errors import HandleError

events = []
def drive(take, *arguments):
    events.append("event")
    return take()
waiting.lib.twisted_ib_own_sleep = lambda: Mock(interrupted=0, slept=0)
waiting.isNonBlocking = lambda fd: True
waiting.hub = MagicMock(lieDown=drive)
left = [True]
for leave in None, lambda: False, lambda: bool(left) and left.pop():
    for _ in range(2):
        try:
            print(waiting.nextEvent(0, lambda: events.pop() if events else None, leave))
        except HandleError as error:
            print(error.number, len(events))
"""

#: The same of an event of a connection, and of one for datagrams.
_KINDS = """
import sys
from unittest.mock import MagicMock, Mock
sys.modules.update(_twisted_ib_cm=MagicMock(), _twisted_ib_verbs=MagicMock())
from twisted_ib.verbs.c.cm import channels

filled, endpoint = [], Mock()
channels.handles = channels.UDParam = Mock()
channels._fillDatagram = lambda *arguments: filled.append("datagrams")
channels._fillConnection = lambda *arguments: filled.append("connection")
for kind in channels.enums.IBV_QPT_RC, channels.enums.IBV_QPT_UD:
    endpoint.structure.qp_type = kind
    channels._structure(Mock(event_type=channels._E.RDMA_CM_EVENT_ESTABLISHED, private_data=b""), endpoint)
print(filled)
"""


class EventTests(SynchronousTestCase):
    """
    Events without the library.
    """

    def test_kinds(self) -> None:
        """
        An event has the parameters of its kind of queue pair.
        """
        done = subprocess.run([sys.executable, "-c", _KINDS], capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout, done.stderr), ("['connection', 'datagrams']\n", ""))

    def test_later(self) -> None:
        """
        An event that a call without waiting has brought itself is for the next one, where that is wanted, and
        one that is left to it.
        """
        done = subprocess.run([sys.executable, "-c", _LATER], capture_output=True, text=True, check=False)
        expected = ["event", "event", f"{errno.EAGAIN} 1", "event", f"{errno.EAGAIN} 1", "event"]
        self.assertEqual((done.stdout.splitlines(), done.stderr), (expected, ""))

    def test_destroyed(self) -> None:
        """
        An event of an identifier that another thread has destroyed is closed, and the next one is taken.
        """
        done = subprocess.run([sys.executable, "-c", _DESTROYED], capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout, done.stderr), ("(1, True) [1, 1]\n", ""))


class CallTests(ProgramTestCase):
    """
    C{cm_calls.c}: each function of the table.
    """

    def test_wrong(self) -> None:
        """
        With null pointers, with what was destroyed and with memory that is no object of the library.
        """
        names = [row.name for row in TABLE if row.name not in HARMLESS]
        result = run(self.compiled(CALLS, "librdmacm.so.1"), *names, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = [line.split() for line in result.stdout.splitlines()]
        self.assertEqual(len(lines), 3 * len(names))
        rows = {row.name: row for row in TABLE}
        wrong = []
        for how, name, answer, number in lines:
            # A void function says it by errno alone; descriptors here are none.
            isRSocket = not name.startswith("rdma_")
            failed = rows[name].failure is not Failure.MINUS_ONE or answer == "-1"
            expected = errno.EBADF if isRSocket else OTHER.get((how, name), errno.EINVAL)
            if not failed or int(number) != expected:
                wrong.append((how, name, answer, number))
        self.assertEqual(wrong, [])


class OrderTests(ProgramTestCase):
    """
    C{cm_order.c}.
    """

    def test_stories(self) -> None:
        """
        Commands that their stage does not permit; a channel that does not wait, and can be watched; threads
        that wait, and are cancelled; an identifier that is destroyed once its events are acknowledged; a
        thread that waits still has no event when another ends the process.
        """
        result = run(self.compiled(ORDER, "librdmacm.so.1"), TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))

    def test_forks(self) -> None:
        """
        A child is refused, though its parent has used libibverbs alone.
        """
        program = self.compiled(ORDER, "librdmacm.so.1")
        result = run(program, "forks", TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.returncode), ("", 0), result.stderr)
        self.assertIn("librdmacm.so.1: rdma_create_event_channel is refused", result.stderr)


class AddressTests(ProgramTestCase):
    """
    C{cm_addresses.c}.
    """

    def test_addresses(self) -> None:
        """
        The family of the hints counts without RAI_FAMILY; a bound identifier has its port, and by
        127.0.0.1 no device yet.  A program begins with errno 0.
        """
        result = run(self.compiled(ADDRESSES, "librdmacm.so.1"), TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))
