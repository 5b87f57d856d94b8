"""
Tests for L{twisted_ib.ipoib.namespaces}: children without namespaces, so that no right is needed.
"""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import descriptorsBefore
from twisted_ib.errors import TunError
from twisted_ib.ipoib import namespaces
from twisted_ib.ipoib.namespaces import FAILED, NOT_FOUND, Command, named


class FakeTun:
    """
    The descriptors of a TUN.
    """

    def __init__(self) -> None:
        self.descriptors = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]

    def bringUpLoopback(self) -> None:
        """
        See L{Tun<twisted_ib.ipoib.tun.Tun>}.
        """

    def close(self) -> None:
        for each in self.descriptors:
            os.close(each)


class ReceivedTun:
    """
    A TUN as the parent has it.
    """

    def __init__(self, name: str, descriptors: list[int]) -> None:
        self.name, self.descriptors = name, descriptors

    @staticmethod
    def open(name: str, node: str) -> FakeTun:
        if node == "/missing":
            raise TunError("/missing does not exist")
        return FakeTun()


class CommandTests(SynchronousTestCase):
    """
    L{Command}.
    """

    def setUp(self) -> None:
        """
        The child stays in this process's namespaces.
        """
        for name, value in (("enterNew", lambda: None), ("allowPing", lambda: None), ("Tun", ReceivedTun)):
            self.patch(namespaces, name, value)

    def command(self, *arguments: str) -> Command:
        """
        @return: a child that waits.
        """
        command = Command(arguments, "ib0", "/node")
        for each in command.tun.descriptors:
            self.assertEqual(os.fstat(each), os.stat(os.devnull))
            os.close(each)
        return command

    def test_run(self) -> None:
        """
        The child becomes the command when it may: its status is the command's.
        """
        made = Path(self.mktemp()).resolve()
        command = self.command("sh", "-c", f"echo > {made}; exit 7")
        self.assertEqual(os.waitpid(command.pid, os.WNOHANG), (0, 0))
        self.assertFalse(made.exists())
        command.go()
        _, status = os.waitpid(command.pid, 0)
        self.assertEqual(os.WEXITSTATUS(status), 7)
        self.assertTrue(made.exists())

    def test_signal(self) -> None:
        """
        A command begins without the signals that Python ignores.
        """
        command = self.command("sh", "-c", "kill -PIPE $$")
        command.go()
        _, status = os.waitpid(command.pid, 0)
        self.assertEqual(os.WTERMSIG(status), 13)

    def test_abandoned(self) -> None:
        """
        A child that gets no network ends, also if its parent has ended.
        """
        command = self.command("sh", "-c", "exit 0")
        command.abandon()
        _, status = os.waitpid(command.pid, 0)
        self.assertEqual(os.WEXITSTATUS(status), FAILED)

    def test_noCommand(self) -> None:
        """
        A command that is not there has env(1)'s status.
        """
        # The child's complaint is not for the tests' output.
        self.patch(os, "write", lambda *arguments: 0)
        command = self.command("/missing/command")
        command.go()
        _, status = os.waitpid(command.pid, 0)
        self.assertEqual(os.WEXITSTATUS(status), NOT_FOUND)

    def test_error(self) -> None:
        """
        What the child lacks is the parent's error; no child is left.
        """
        fork, children = os.fork, []

        def forked() -> int:
            children.append(fork())
            return children[-1]

        self.patch(os, "fork", forked)
        error = self.assertRaises(TunError, Command, ["true"], "ib0", "/missing")
        self.assertEqual(str(error), "/missing does not exist")
        self.assertRaises(ChildProcessError, os.waitpid, children[0], os.WNOHANG)

    def test_ended(self) -> None:
        """
        A child that ends without a word is an error too.
        """
        self.patch(namespaces, "_prepare", lambda *arguments: os._exit(1))
        error = self.assertRaises(TunError, Command, ["true"], "ib0", "/node")
        self.assertEqual(str(error), "the child process ended")


class ForbiddenTests(SynchronousTestCase):
    """
    The reasons why there are no namespaces.
    """

    def refused(self, number: int) -> str:
        """
        @return: the error.
        """

        def call(*arguments: object) -> None:
            raise OSError(number, os.strerror(number))

        self.patch(namespaces, "_call", call)
        return str(self.assertRaises(TunError, namespaces.enterNew))

    def test_settings(self) -> None:
        """
        A setting that forbids them is named.
        """
        place = Path(self.mktemp())
        place.write_text("1\n")
        known = namespaces._SETTINGS
        for _, value, text in known:
            place.write_text(f"{value}\n")
            self.patch(namespaces, "_SETTINGS", ((str(place), value, text), ("/missing", "1", "other")))
            self.assertEqual(self.refused(errno.EPERM), text)
        self.assertEqual([path.rpartition("/")[2] in text for path, _, text in known], [True] * 3)

    def test_others(self) -> None:
        """
        Without such a setting the error tells.
        """
        self.patch(namespaces, "_SETTINGS", (("/missing", "1", "other"),))
        self.assertIn("seccomp", self.refused(errno.EPERM))
        self.assertIn("max_user_namespaces", self.refused(errno.ENOSPC))

    def test_maps(self) -> None:
        """
        Identifiers keep their numbers; a kernel that refuses the map, as AppArmor does, is an error.
        """
        written: dict[str, Any] = {}

        def opening(path: str, how: str) -> Any:
            written[path.rpartition("/")[2]] = file = Path(self.mktemp())
            return builtins.open(file, how)

        self.patch(namespaces, "_call", lambda *arguments: None)
        namespaces.open = opening  # type: ignore[attr-defined]
        self.addCleanup(namespaces.__dict__.pop, "open")
        namespaces.enterNew()
        namespaces.allowPing()
        user, group = os.geteuid(), os.getegid()
        self.assertEqual(
            {name: file.read_text() for name, file in written.items()},
            {
                "setgroups": "deny",
                "uid_map": f"{user} {user} 1",
                "gid_map": f"{group} {group} 1",
                "ping_group_range": f"{group} {group}",
            },
        )

    def test_readOnly(self) -> None:
        """
        Where C{/proc/sys} cannot be written, ping_group_range stays.
        """

        def opening(*arguments: object) -> Any:
            raise OSError(errno.EROFS, "read-only")

        namespaces.open = opening  # type: ignore[attr-defined]
        self.addCleanup(namespaces.__dict__.pop, "open")
        namespaces.allowPing()


class NamedTests(SynchronousTestCase):
    """
    L{named}.
    """

    def setUp(self) -> None:
        """
        A place of names, with one.
        """
        self.calls: list[Any] = []
        self.patch(namespaces, "_call", lambda *arguments: self.calls.append(arguments))
        directory = Path(self.mktemp())
        directory.mkdir()
        (directory / "blue").touch()
        self.patch(namespaces, "NAMED", str(directory))

    def test_entered(self) -> None:
        """
        It is entered, and left whatever happens.
        """
        before = descriptorsBefore()

        def fails() -> None:
            with named("blue"):
                raise TunError("no TUN")

        self.assertRaises(TunError, fails)
        self.assertEqual([name for name, *_ in self.calls], ["setns", "setns"])
        self.assertEqual(descriptorsBefore(), before)

    def test_refused(self) -> None:
        """
        One that is not there, or may not be entered, is an error.
        """
        self.assertIn("ip netns add red", str(self.assertRaises(TunError, named("red").__enter__)))

        def call(*arguments: object) -> None:
            raise PermissionError

        self.patch(namespaces, "_call", call)
        self.assertIn("CAP_SYS_ADMIN", str(self.assertRaises(TunError, named("blue").__enter__)))
