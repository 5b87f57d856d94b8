"""
The ways to a peer over SDP, with a host and a kernel of the tests' own.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import RunDirectoryError
from twisted_ib.hca.device.tcpcounterparts import Counterpart
from twisted_ib.switch import candidates, sockdiag
from twisted_ib.switch.candidates import Candidate, Candidates, Failures
from twisted_ib.switch.reason import Fallback
from twisted_ib.switch.sockdiag import TCPListener, Unreadable

OURS, THEIRS = 1000, 1001
SERVER = Counterpart(1, "127.0.0.1", 4711, OURS)
SOCKET = TCPListener("127.0.0.1", False, 4711, OURS)


class FakeBeside:
    """
    The SDP listeners of a host.

    @ivar processes: Those of other processes.
    @ivar thread: Those of this thread.
    @ivar error: The exception that a search raises.
    @ivar asked: The searches.
    """

    def __init__(self) -> None:
        """
        Nobody.
        """
        self.processes: list[Counterpart] = []
        self.thread: list[Counterpart] = []
        self.error: Exception | None = None
        self.asked: list[tuple[int, str]] = []

    def inProcesses(self, serviceID: int, address: str) -> list[Counterpart]:
        """
        As told.
        """
        self.asked.append((serviceID, address))
        if self.error is not None:
            raise self.error
        return self.processes

    def inThread(self, serviceID: int, address: str) -> list[Counterpart]:
        """
        As told.
        """
        return self.thread

    def isOurs(self, counterpart: Counterpart) -> bool:
        """
        Ours are those of one user.
        """
        return counterpart.uid == OURS


class WaysTests(SynchronousTestCase):
    """
    L{Candidates.here}.
    """

    def setUp(self) -> None:
        """
        A host with one server that offers SDP beside TCP.
        """
        self.beside: Any = FakeBeside()
        self.beside.processes = [SERVER]
        self.sockets: list[TCPListener] | Exception = [SOCKET]
        self.asked: list[int] = []
        self.patch(sockdiag, "listeners", self.listeners)
        self.patch(candidates, "isLocalAddress", lambda address: not address.startswith("10."))
        candidates._isLocal.cache_clear()
        self.addCleanup(candidates._isLocal.cache_clear)
        self.candidates = Candidates()
        self.candidates._beside = self.beside

    def listeners(self, port: int) -> list[TCPListener]:
        """
        The kernel's answer.
        """
        self.asked.append(port)
        if isinstance(self.sockets, Exception):
            raise self.sockets
        return self.sockets

    def here(
        self, host: str = "127.0.0.1", port: int = 80, devices: tuple[str, ...] = ("shm0",), now: float = 0.0
    ) -> Any:
        """
        @return: The ways, or the kind of reason why there is none.
        """
        found = self.candidates.here(devices, host, port, now, 60.0)
        return found.kind if isinstance(found, Fallback) else found

    def test_found(self) -> None:
        """
        An SDP listener beside the socket that TCP would reach is a candidate.
        """
        self.assertEqual(self.here(), [Candidate("shm0", SERVER)])
        self.assertEqual((self.beside.asked, self.asked), ([(0x10050, "127.0.0.1")], [80]))
        self.assertEqual(self.here("0.0.0.0"), [Candidate("shm0", SERVER)])

    def test_unasked(self) -> None:
        """
        For other addresses nothing is searched.
        """
        self.assertEqual(self.here("10.1.2.3"), "remote")
        self.assertEqual(self.here("::ffff:127.0.0.1"), "mapped")
        self.assertEqual(self.here(port=0), "no_port")
        self.assertEqual((self.beside.asked, self.asked), ([], []))

    def test_nobody(self) -> None:
        """
        Without an SDP listener the kernel is not asked.
        """
        self.beside.processes = []
        self.assertEqual(self.here(), "no_listener")
        self.assertEqual(self.here(devices=()), "no_listener")
        self.assertEqual(self.asked, [])

    def test_another(self) -> None:
        """
        An SDP listener beside a socket that TCP would not reach is none.
        """
        for sockets in (
            [TCPListener("127.0.0.1", False, 4712, OURS)],
            [TCPListener("127.0.0.1", False, 4712, OURS), TCPListener("0.0.0.0", False, 4711, OURS)],
            [TCPListener("127.0.0.1", False, 4711, OURS, 3)],
        ):
            self.sockets = sockets
            self.assertEqual(self.here(), "other_listener")

    def test_listensNext(self) -> None:
        """
        A server of our own user, whose socket does not listen yet, is a candidate: it would listen before
        TCP's SYN came.  Another user's is none, and neither is one beside a socket of another address.
        """
        for sockets in [], [TCPListener("127.0.0.2", False, 4712, OURS)]:
            self.sockets = sockets
            self.assertEqual(self.here(), [Candidate("shm0", SERVER)])
        self.sockets = [TCPListener("127.0.0.1", False, 4712, OURS, 3)]
        self.assertEqual(self.here(), "other_listener")
        self.sockets = []
        self.beside.processes = [Counterpart(2, "127.0.0.1", 4711, THEIRS)]
        self.assertEqual(self.here(), "other_listener")

    def test_anyOfShared(self) -> None:
        """
        Of those that share a number any is the right one.
        """
        self.sockets = [TCPListener("127.0.0.1", False, 4712, OURS), SOCKET]
        self.assertEqual(self.here(), [Candidate("shm0", SERVER)])

    def test_otherUser(self) -> None:
        """
        That a socket is his another user must not only say: it has to be.
        """
        liar = Counterpart(2, "127.0.0.1", 4711, THEIRS)
        self.beside.processes = [liar]
        self.assertEqual(self.here(), "other_listener")
        self.sockets = [TCPListener("127.0.0.1", False, 4711, THEIRS)]
        self.assertEqual(self.here(), [Candidate("shm0", liar)])

    def test_ourRoot(self) -> None:
        """
        One of our own user may have made its socket as another: before it gave up root's rights.
        """
        self.sockets = [TCPListener("127.0.0.1", False, 4711, 0)]
        self.assertEqual(self.here(), [Candidate("shm0", SERVER)])

    def test_unreadable(self) -> None:
        """
        If it cannot be known TCP has it.
        """
        self.sockets = Unreadable("no")
        self.assertEqual(self.here(), "unknown_listener")
        for error in (RunDirectoryError("no"), OSError("no")):
            self.beside.error = error
            self.assertEqual(self.here(), "run_directory")

    def test_devices(self) -> None:
        """
        Each is reached by the first device that leads there.
        """
        near = Counterpart(3, "127.0.0.1", 4711, OURS)
        self.beside.thread = [near]
        found = self.here(devices=("nothing", "lo0", "shm0"))
        self.assertEqual(found, [Candidate("lo0", near), Candidate("shm0", SERVER)])

    def test_remembered(self) -> None:
        """
        A listener that SDP did not reach is not tried for a while; a new server on the same port is.
        """
        self.candidates.failures.add("127.0.0.1", 80, SERVER, 10.0)
        self.assertEqual(self.here(now=69.9), "remembered")
        self.assertEqual(self.here("0.0.0.0", now=69.9), "remembered")
        self.sockets = [SOCKET, TCPListener("127.0.0.1", False, 4712, OURS)]
        other = Counterpart(1, "127.0.0.1", 4712, OURS)
        self.beside.processes = [SERVER, other]
        self.assertEqual(self.here(now=69.9), [Candidate("shm0", other)])
        self.beside.processes = [SERVER]
        self.assertEqual(self.here(now=70.0), [Candidate("shm0", SERVER)])

    def test_stands(self) -> None:
        """
        Whether a listener that was found still stands.
        """
        stands = lambda: self.candidates.stands("shm0", "127.0.0.1", 80, SERVER)  # noqa: E731
        self.assertTrue(stands())
        self.beside.processes = [Counterpart(1, "127.0.0.1", 4712, OURS)]
        self.assertFalse(stands())
        self.beside.error = RunDirectoryError("no")
        self.assertFalse(stands())

    def test_anywhere(self) -> None:
        """
        Where TCP does not matter each device is a way.
        """
        expected = [Candidate("shm0", None), Candidate("lo0", None)]
        self.assertEqual(self.candidates.anywhere(("shm0", "lo0"), 80), expected)
        found: Any = self.candidates.anywhere((), 80)
        self.assertEqual(found.kind, "no_device")


class FailuresTests(SynchronousTestCase):
    """
    L{Failures}.
    """

    def test_bound(self) -> None:
        """
        The oldest are forgotten; what fails again is young again.
        """
        self.patch(candidates, "OFFLOADS_REMEMBERED", 2)
        failures = Failures()
        for port in (1, 2, 1, 3):
            failures.add("127.0.0.1", port, SERVER, 0.0)
        held = [failures.holds("127.0.0.1", port, SERVER, 1.0, 60.0) for port in (1, 2, 3)]
        self.assertEqual(held, [True, False, True])

    def test_off(self) -> None:
        """
        No time to remember, or a clock that was set back, and no listener counts as failed.
        """
        failures = Failures()
        failures.add("127.0.0.1", 1, SERVER, 5.0)
        self.assertFalse(failures.holds("127.0.0.1", 1, SERVER, 5.0, 0.0))
        failures.add("127.0.0.1", 1, SERVER, 5.0)
        self.assertFalse(failures.holds("127.0.0.1", 1, SERVER, 4.0, 60.0))
