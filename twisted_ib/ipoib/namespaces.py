"""
Commands in user and network namespaces of their own (namespaces(7)), and TUN devices in those of others.

No right is needed: the child has all capabilities in namespaces that it made itself, and so has the process
outside whose user made them (user_namespaces(7)).  The child opens the TUN and sends its descriptors by
SCM_RIGHTS, then waits, without capabilities to lose, until it may become the command.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from twisted_ib.errors import HCAError, TunError
from twisted_ib.hca.host.fdpassing import receiveWithDescriptors, sendWithDescriptors
from twisted_ib.ipoib.tun import NODE, Tun

#: env(1), timeout(1): the program itself failed, the command cannot be run, there is no such command.
FAILED, CANNOT_RUN, NOT_FOUND = 125, 126, 127
#: The longest error of a child, octets.
ERROR_BYTES = 4096
#: Where ip-netns(8) keeps namespaces with names.
NAMED = "/run/netns"

# linux/sched.h
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_READY, _GO = b"ready", b"go"
_MOST_DESCRIPTORS = 3
#: Settings that may forbid user namespaces, each with the value that does, and how to say it.
_SETTINGS = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor restricts user namespaces (Ubuntu, since 23.10): an administrator can set"
        " kernel.apparmor_restrict_unprivileged_userns=0, or give this Python a profile with userns",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "kernel.unprivileged_userns_clone is 0 here: an administrator can set it to 1",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "user.max_user_namespaces is 0 here: an administrator can raise it",
    ),
)


def _call(name: str, *arguments: int) -> None:
    # Python has os.unshare and os.setns since 3.12.
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _forbidden(error: OSError) -> TunError:
    for path, value, text in _SETTINGS:
        try:
            with open(path) as file:
                found = file.read().strip()
        except OSError:
            continue
        if found == value:
            return TunError(text)
    if error.errno == errno.ENOSPC:
        return TunError("there are as many user namespaces as user.max_user_namespaces allows")
    return TunError(f"user namespaces are forbidden here, as in many containers (seccomp): {error.strerror}")


def enterNew() -> None:
    """
    Move this process, which has one thread, into a user and a network namespace of its own.  Its user and
    group keep their numbers.

    @raise TunError: that is forbidden; the text says by what.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        # user_namespaces(7): without capabilities outside one may map oneself, and groups once setgroups(2)
        # is denied.
        for name, value in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(value)
    except OSError as error:
        raise _forbidden(error) from None


def allowPing() -> None:
    """
    Let the group of this process use ICMP sockets (icmp(7), C{ping_group_range}): a command that is not root
    has no capabilities in its namespace.

    The setting is left as it is where C{/proc/sys} cannot be written.
    """
    group = os.getegid()
    try:
        with open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
            file.write(f"{group} {group}")
    except OSError:
        pass


@contextmanager
def named(name: str) -> Iterator[None]:
    """
    Be in a network namespace of ip-netns(8), for as long as the context lasts.

    @raise TunError: there is none of that name, or it may not be entered.
    """
    path = os.path.join(NAMED, name)
    try:
        own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            other = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _call("setns", other, _CLONE_NEWNET)
            finally:
                os.close(other)
            try:
                yield
            finally:
                _call("setns", own, _CLONE_NEWNET)
        finally:
            os.close(own)
    except FileNotFoundError:
        raise TunError(f"there is no network namespace {name} (no {path}): ip netns add {name}") from None
    except PermissionError:
        raise TunError(f"the network namespace {name} cannot be entered: this needs CAP_SYS_ADMIN") from None


class Command:
    """
    A child process that becomes a command when its network works.

    @ivar pid: its process.
    @ivar tun: its TUN device, opened but down.
    """

    def __init__(self, arguments: Sequence[str], name: str, node: str = NODE) -> None:
        """
        Fork; this process has one thread.

        @param name: the TUN's.
        @raise TunError: the child could not have its namespaces or its TUN.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        self._pair, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            self._pair.close()
            _child(childs, arguments, name, node)
        childs.close()
        try:
            self.tun = Tun(name, self._received())
        except BaseException:
            self.abandon()
            os.waitpid(self.pid, 0)
            raise

    def _received(self) -> list[int]:
        select.select([self._pair], [], [])
        try:
            received = receiveWithDescriptors(self._pair, ERROR_BYTES, _MOST_DESCRIPTORS)
        except HCAError as error:
            raise TunError(str(error)) from None
        message, descriptors = received or (b"", [])
        if message != _READY:
            raise TunError(message.decode("utf-8", "replace") or "the child process ended")
        return descriptors

    def go(self) -> None:
        """
        Let the child become the command.
        """
        sendWithDescriptors(self._pair, _GO)
        self._pair.close()

    def abandon(self) -> None:
        """
        Let the child end without.
        """
        self._pair.close()


def _child(pair: socket.socket, arguments: Sequence[str], name: str, node: str) -> NoReturn:
    status = FAILED
    try:
        # A command begins with the signals of the parent's parent: Python ignores some, and SIGINT would be
        # an exception.
        for each in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        _prepare(pair, name, node)
        # The end of the connection means that there will be no network.
        if pair.recv(len(_GO)) == _GO:
            status = _become(arguments)
    finally:
        # Neither the parent's exit handlers nor its buffers.
        os._exit(status)


def _prepare(pair: socket.socket, name: str, node: str) -> None:
    try:
        enterNew()
        tun = Tun.open(name, node)
        tun.bringUpLoopback()
        allowPing()
    except TunError as error:
        sendWithDescriptors(pair, str(error).encode()[:ERROR_BYTES])
        return
    sendWithDescriptors(pair, _READY, tun.descriptors)
    # The device lives as long as the process outside, which serves it.
    tun.close()


def _become(arguments: Sequence[str]) -> int:
    try:
        os.execvp(arguments[0], [*arguments])
    except OSError as error:
        os.write(2, f"ib-ipoib: {arguments[0]}: {error.strerror}\n".encode())
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
