"""
The directories in which processes of one host find each other.

With C{TWISTED_IB_RUN_DIR} set it is that one alone.  Else it is
C{/run/user/UID/twisted_ib} and then C{/tmp/twisted_ib-UID}: a service has no
login session and thus often no C{/run/user/UID}, but must meet a client that
has one.  A server uses the first that will do, a client searches all.

A directory will do if it is a real directory, ours, and closed to everybody
else (mode 0700); otherwise whoever could write there could pose as a server.
With C{TWISTED_IB_ALLOW_UIDS} set the one of C{TWISTED_IB_RUN_DIR} may instead
belong to root or to us and be sticky (mode 1770 or 1777): then nobody can
remove or replace entries of others, and each entry's owner is looked at.  With
1777 any local user can still deny service there, by making many entries or those
that others want; 1770, with a group of those who are named, is better.

Each user of such a directory has a lock of his own: nobody can hold another's.
Between users a service is exclusive only as far as a name can be made once; that
one listens on a wildcard and another on an address is prevented if they do not come
at the same time.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from twisted_ib import limits
from twisted_ib.errors import RunDirectoryError
from twisted_ib.hca.host import libc

#: How often a process tries to lock a run directory before it gives up.
LOCK_ATTEMPTS = 200
#: How long it sleeps between two of those attempts.
LOCK_PAUSE_SECONDS = 0.005

RUN_DIRECTORY = "TWISTED_IB_RUN_DIR"
ALLOWED_UIDS = "TWISTED_IB_ALLOW_UIDS"

SESSION_BASE = "/run/user"
TEMPORARY_BASE = "/tmp"

_LOCK_NAME = "lock"
_SUN_PATH_BYTES = 107  # of 108, the last is NUL


def allowedUids(environment: Mapping[str, str]) -> frozenset[int]:
    """
    The users that C{TWISTED_IB_ALLOW_UIDS} lets in besides our own.

    @raise RunDirectoryError: it is not a list of numbers.
    """
    text = environment.get(ALLOWED_UIDS, "")
    words = text.replace(",", " ").split()
    if not all(word.isascii() and word.isdigit() for word in words):
        raise RunDirectoryError(
            f"{ALLOWED_UIDS}={text!r} is not a list of user numbers; write them as 1000,1001"
        )
    return frozenset(int(word) for word in words)


def candidates(environment: Mapping[str, str], uid: int) -> list[tuple[str, str]]:
    """
    Where to meet, best first: pairs of a directory and what to do about it
    when it will not do.

    @raise RunDirectoryError: C{TWISTED_IB_RUN_DIR} is not an absolute path.
    """
    chosen = environment.get(RUN_DIRECTORY, "")
    if chosen:
        if not os.path.isabs(chosen):
            raise RunDirectoryError(f"{RUN_DIRECTORY}={chosen!r} is not an absolute path; set it to one")
        chosen = os.path.normpath(chosen)  # "link/" would be followed
        return [(chosen, f"set {RUN_DIRECTORY} to a directory of your own with mode 0700")]
    advice = f"remove it or set {RUN_DIRECTORY} to a directory of your own with mode 0700"
    return [
        (os.path.join(SESSION_BASE, str(uid), "twisted_ib"), advice),
        (os.path.join(TEMPORARY_BASE, f"twisted_ib-{uid}"), advice),
    ]


class RunDirectory:
    """
    One directory that will do, open.

    All names go through the descriptor, so that they stay in the directory
    that was checked.

    @ivar path: its name.
    @ivar fd: its descriptor.
    @ivar shared: whether several users write there.
    @ivar allowed: if so, the users whose entries count, besides our own.
    """

    __slots__ = ("_lockName", "_uid", "allowed", "fd", "path", "shared")

    def __init__(self, path: str, fd: int, shared: bool) -> None:
        """
        Take over C{fd}; use L{openDirectory}.
        """
        self.path = path
        self.fd = fd
        self.shared = shared
        self.allowed: frozenset[int] = frozenset()
        self._uid = os.geteuid()
        self._lockName = f"{_LOCK_NAME}-{self._uid}" if shared else _LOCK_NAME

    def _isForeign(self, entry: os.DirEntry[str]) -> bool:
        """
        Whether an entry belongs to somebody whose entries do not count.
        """
        try:
            owner = entry.stat(follow_symlinks=False).st_uid
        except OSError:
            return True  # gone
        return owner not in (self._uid, os.geteuid()) and owner not in self.allowed

    def names(self) -> list[str]:
        """
        The names of all entries; in a shared directory, of those that count.

        @raise RunDirectoryError: there are too many, or they cannot be read.
        """
        found: list[str] = []
        try:
            with os.scandir(self.fd) as entries:
                for entry in entries:
                    if self.shared and self._isForeign(entry):
                        continue
                    if len(found) == limits.RUN_DIRECTORY_ENTRIES:
                        raise RunDirectoryError(
                            f"{self.path} has more than {len(found)} entries; remove those that are stale"
                        )
                    found.append(entry.name)
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be read: {error.strerror}") from error
        return found

    def status(self, name: str) -> os.stat_result | None:
        """
        What an entry itself is (no symbolic link is followed), None if it is
        not there.
        """
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None

    def readLink(self, name: str) -> str | None:
        """
        Where a symbolic link points, None if there is none of this name.
        """
        try:
            return os.readlink(name, dir_fd=self.fd)
        except OSError:
            return None

    def remove(self, name: str) -> bool:
        """
        Remove an entry, whether it is there or not.

        @return: False if it is there and not ours to remove.
        """
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def socketPath(self, name: str) -> str:
        """
        A name of entry C{name} that fits into a socket address.
        """
        path = os.path.join(self.path, name)
        if len(os.fsencode(path)) <= _SUN_PATH_BYTES:
            return path
        return f"/proc/self/fd/{self.fd}/{name}"

    def stamp(self) -> int:
        """
        When an entry was made or removed last, in nanoseconds.
        """
        return os.fstat(self.fd).st_mtime_ns

    def isCurrent(self) -> bool:
        """
        Whether the path still leads to this directory.
        """
        try:
            there = os.stat(self.path, follow_symlinks=False)
            return os.path.samestat(there, os.fstat(self.fd))
        except OSError:
            return False

    @contextmanager
    def locked(self, pause: Callable[[float], object] = time.sleep) -> Iterator[None]:
        """
        Hold the directory's lock.

        @param pause: sleeps between two attempts.
        @raise RunDirectoryError: somebody else holds it for too long.
        """
        fd = self._lock(pause)
        try:
            yield
        finally:
            os.close(fd)

    def _lock(self, pause: Callable[[float], object]) -> int:
        """
        A descriptor that holds the lock until it is closed.
        """
        for attempt in range(LOCK_ATTEMPTS):
            if attempt:
                pause(LOCK_PAUSE_SECONDS)
            fd = self._openLock()
            try:
                if libc.tryLock(fd):
                    there = self.status(self._lockName)
                    # Somebody may have removed it between the two steps.
                    if there is not None and os.path.samestat(there, os.fstat(fd)):
                        held, fd = fd, -1
                        return held
            finally:
                if fd >= 0:
                    os.close(fd)
        seconds = LOCK_ATTEMPTS * LOCK_PAUSE_SECONDS
        raise RunDirectoryError(
            f"{self.path}/{self._lockName} was locked by another process for {seconds:g} seconds; "
            "end that process"
        )

    def _openLock(self) -> int:
        """
        The lock file, made if it is not there, and only ours.

        It is opened without O_CREAT first: in a sticky directory Linux forbids
        that for files of others (fs.protected_regular).
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        for extra in (0, os.O_CREAT | os.O_EXCL, 0):
            try:
                fd = os.open(self._lockName, flags | extra, 0o600, dir_fd=self.fd)
            except (FileNotFoundError, FileExistsError):
                continue
            except OSError as error:
                raise RunDirectoryError(
                    f"{self.path}/{self._lockName} cannot be opened: {error.strerror}; remove it"
                ) from error
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_uid == self._uid:
                return fd
            os.close(fd)
            raise RunDirectoryError(
                f"{self.path}/{self._lockName} cannot be used: it is no file of user {self._uid}; remove it"
            )
        raise RunDirectoryError(f"{self.path} is gone; start this program again")

    def close(self) -> None:
        """
        Close the descriptor.
        """
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def openDirectory(path: str, advice: str, uid: int, share: bool, create: bool) -> RunDirectory | None:
    """
    Open and check one directory.

    @param advice: what to do if it will not do.
    @param uid: the user that must own it.
    @param share: whether it may be a sticky one of several users.
    @param create: whether to make it if it is not there.
    @return: None if it is not there.
    @raise RunDirectoryError: it will not do; the text names it.
    """
    try:
        if create:
            _make(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDirectoryError(f"{_whatIsWrong(path, error)}; {advice}") from error
    try:
        shared = _check(path, os.fstat(fd), uid, share, advice)
        # Held shared, it keeps systemd-tmpfiles from clearing entries by age.
        libc.tryLock(fd, shared=True)
    except BaseException:
        os.close(fd)
        raise
    return RunDirectory(path, fd, shared)


def _make(path: str) -> None:
    """
    Make a directory that only we can use, unless something is there already.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    os.chmod(path, 0o700)  # whatever the umask says


def _whatIsWrong(path: str, error: OSError) -> str:
    if os.path.islink(path):
        return f"{path} is a symbolic link"
    if isinstance(error, NotADirectoryError):
        return f"{path} is not a directory"
    return f"{path} cannot be used ({error.strerror})"


def _check(path: str, status: os.stat_result, uid: int, share: bool, advice: str) -> bool:
    """
    Whether a directory will do.

    @return: whether it is one of several users.
    @raise RunDirectoryError: it will not do.
    """
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == uid and mode & 0o777 == 0o700:
        return False
    sticky = status.st_uid in (0, uid) and mode in (0o1770, 0o1777)
    if share and sticky:
        return True
    if sticky:
        advice += f", or to one that you share with others, and name them in {ALLOWED_UIDS}"
    if share:
        wanted = "belong to root or to you and have mode 1770 or 1777"
        advice = f"it must {wanted}, or be your own with mode 0700"
    if status.st_uid != uid:
        raise RunDirectoryError(f"{path} belongs to user {status.st_uid} and not to {uid}; {advice}")
    raise RunDirectoryError(f"{path} has mode {mode:04o} and so is open to others; {advice}")


def openDirectories(
    environment: Mapping[str, str], uid: int, create: bool
) -> tuple[list[RunDirectory], list[RunDirectoryError]]:
    """
    Open all directories that are there and will do, best first.

    @param create: whether to make the first possible one if it is not there.
    @return: the directories, and why others will not do.
    @raise RunDirectoryError: the environment is wrong.
    """
    share = bool(environment.get(RUN_DIRECTORY)) and bool(allowedUids(environment))
    found: list[RunDirectory] = []
    refused: list[RunDirectoryError] = []
    missing: list[RunDirectoryError] = []
    for path, advice in candidates(environment, uid):
        try:
            directory = openDirectory(path, advice, uid, share, create and not found)
        except RunDirectoryError as error:
            refused.append(error)
            continue
        if directory is not None:
            directory.allowed = allowedUids(environment)
            found.append(directory)
        elif create and not found:
            missing.append(
                RunDirectoryError(
                    f"{path} cannot be made because {os.path.dirname(path)} does not exist; "
                    f"set {RUN_DIRECTORY} to a directory of your own with mode 0700"
                )
            )
    return found, refused or missing


__all__ = [
    "ALLOWED_UIDS",
    "RUN_DIRECTORY",
    "RunDirectory",
    "allowedUids",
    "candidates",
    "openDirectories",
    "openDirectory",
]
