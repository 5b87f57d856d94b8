"""
Run directories: where the processes of one host find each other.

With C{TWISTED_IB_RUN_DIR} set it is that directory alone.  Otherwise C{/run/user/UID/twisted_ib}, then
C{twisted_ib-UID} in C{/tmp}, C{/var/tmp} or C{/dev/shm}: a service has no login session and often no
C{/run/user/UID}, but must meet a client that has one; and in C{/tmp} another user may have made what has our
name.  A server uses the first that is acceptable, a client searches all.

A directory is acceptable if it is a real directory, ours, and closed to others (mode 0700); otherwise
others could pose as a server there.  With C{TWISTED_IB_ALLOW_UIDS} set the one of C{TWISTED_IB_RUN_DIR} may
instead belong to root or us and be sticky (mode 1770 or 1777): then nobody can remove or replace entries of
others, and each entry's owner is checked.  With 1777 any local user can still deny service, by making many
entries or those that others want; 1770, with a group of the allowed users, is better.

In such a directory each user has a lock of its own, since nobody may be able to hold another's.  Between
users a service is therefore exclusive only as far as a name can be made once: a wildcard and an address
conflict only if the second comes after the first.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from itertools import chain

from twisted_ib import limits
from twisted_ib.drive.process import Descriptor, sleep
from twisted_ib.errors import EXHAUSTED, RunDirectoryError
from twisted_ib.hca.host import libc
from twisted_ib.settings import ALLOW_UIDS, RUN_DIR

#: How long a process waits for the lock of a run directory before it gives up, in seconds, not counting the
#: attempts.  Its holder has it for less than a millisecond of CPU time, but hundreds of processes may
#: start at once, on a machine that gives each a share of a processor.
LOCK_SECONDS = 10.0
#: The sleep after the first attempt, in seconds, and the longest: each is longer than the one before, or
#: hundreds of waiting processes would use up the processors that the holder needs.
LOCK_PAUSE_SECONDS = 0.001
LOCK_PAUSE_MOST_SECONDS = 0.1

SESSION_BASE = "/run/user"
TEMPORARY_BASES = "/tmp", "/var/tmp", "/dev/shm"

#: How the entry of a service begins, with its id (L{twisted_ib.hca.host.entries}).
SERVICE_START = "svc-%016x-"

_NOBODY = -1
_LOCK_NAME = "lock"
# Linux include/linux/net.h, __SO_ACCEPTCON: the socket listens.
_ACCEPTCON = 1 << 16
# unix(7): sun_path has 108 bytes, of which the last is NUL.
_SUN_PATH_BYTES = 107


def allowedUids(environment: Mapping[str, str]) -> frozenset[int]:
    """
    Parse C{TWISTED_IB_ALLOW_UIDS}: the users that are allowed besides our own.

    @raise RunDirectoryError: it is not a list of numbers.
    """
    text = environment.get(ALLOW_UIDS, "")
    words = text.replace(",", " ").split()
    if not all(word.isascii() and word.isdigit() for word in words):
        raise RunDirectoryError(
            f"{ALLOW_UIDS}={text!r} is not a list of user numbers; write them as 1000,1001"
        )
    return frozenset(int(word) for word in words)


def candidates(environment: Mapping[str, str], uid: int) -> list[tuple[str, str]]:
    """
    List the possible directories, best first, each with advice for when it is not acceptable.

    @raise RunDirectoryError: C{TWISTED_IB_RUN_DIR} is not an absolute path.
    """
    chosen = environment.get(RUN_DIR, "")
    if chosen:
        if not os.path.isabs(chosen):
            raise RunDirectoryError(f"{RUN_DIR}={chosen!r} is not an absolute path; set it to one")
        # path_resolution(7): "link/" would be followed in spite of O_NOFOLLOW.
        chosen = os.path.normpath(chosen)
        return [(chosen, f"set {RUN_DIR} to a directory of your own with mode 0700")]
    advice = f"remove it or set {RUN_DIR} to a directory of your own with mode 0700"
    return [
        (os.path.join(SESSION_BASE, str(uid), "twisted_ib"), advice),
        *((os.path.join(base, f"twisted_ib-{uid}"), advice) for base in TEMPORARY_BASES),
    ]


def _pauses() -> Iterator[float]:
    left, pause = LOCK_SECONDS, LOCK_PAUSE_SECONDS
    while left > 0:
        yield min(pause, left)
        left -= pause
        pause = min(pause * 2, LOCK_PAUSE_MOST_SECONDS)


class RunDirectory(Descriptor):
    """
    An acceptable directory, open.

    @ivar path: its name.
    @ivar fd: its descriptor.
    @ivar shared: whether several users write there.
    @ivar allowed: if so, the users whose entries count, besides our own.
    """

    __slots__ = ("_lockName", "_uid", "allowed", "path", "shared")

    def __init__(self, path: str, fd: int, shared: bool) -> None:
        """
        Take over C{fd}; use L{openDirectory}.
        """
        # All later names are resolved by the descriptor (openat(2) and its kin), so that they stay in the
        # directory that was checked, whatever becomes of the path.
        super().__init__(fd)
        self.path = path
        self.shared = shared
        self.allowed: frozenset[int] = frozenset()
        self._uid = os.geteuid()
        self._lockName = f"{_LOCK_NAME}-{self._uid}" if shared else _LOCK_NAME

    def _ownerOf(self, entry: os.DirEntry[str]) -> int:
        if not self.shared:
            return self._uid
        try:
            owner = entry.stat(follow_symlinks=False).st_uid
        except OSError:
            # Removed since scandir.
            return _NOBODY
        return self._uid if owner == os.geteuid() else owner

    def names(self) -> list[str]:
        """
        @return: The names of all entries; in a shared directory those of allowed users, of each other user no
            more than L{limits.RUN_DIRECTORY_ENTRIES_PER_USER}.
        @raise RunDirectoryError: there are too many of our own, or they cannot be read.
        """
        found: list[str] = []
        counts = dict.fromkeys((self._uid, *self.allowed), 0)
        try:
            with os.scandir(self.fd) as entries:
                for entry in entries:
                    owner = self._ownerOf(entry)
                    # A stranger's entries do not count; an allowed user's must not use up what others need.
                    if owner not in counts:
                        continue
                    counts[owner] += 1
                    if owner != self._uid:
                        if counts[owner] > limits.RUN_DIRECTORY_ENTRIES_PER_USER:
                            continue
                    elif counts[owner] > limits.RUN_DIRECTORY_ENTRIES:
                        raise RunDirectoryError(
                            f"{self.path} has more than {limits.RUN_DIRECTORY_ENTRIES} entries; remove those "
                            "that are stale"
                        )
                    found.append(entry.name)
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be read: {error.strerror}") from error
        return found

    def status(self, name: str) -> os.stat_result | None:
        """
        @return: The status of an entry itself, not of a link's target; L{None} if it is not there.
        """
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None

    def readLink(self, name: str) -> str | None:
        """
        @return: A symbolic link's target, L{None} if there is no such link.
        """
        try:
            return os.readlink(name, dir_fd=self.fd)
        except OSError:
            return None

    def remove(self, name: str) -> bool:
        """
        Remove an entry.

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
        @return: A path of entry C{name} that fits into a socket address.
        """
        path = os.path.join(self.path, name)
        if len(os.fsencode(path)) <= _SUN_PATH_BYTES:
            return path
        # proc(5): a magic link to the open directory, short whatever the real path.  There is no bindat(2)
        # or connectat(2) on Linux.
        return f"/proc/self/fd/{self.fd}/{name}"

    def stamp(self) -> int:
        """
        @return: When an entry was made or removed last, in nanoseconds.
        """
        return os.fstat(self.fd).st_mtime_ns

    def orphans(self, known: Set[str]) -> set[str]:
        """
        @param known: Names of sockets that do not count.
        @return: The names of the sockets that processes listen on, by the path of this directory, and that
            are not in it: it was removed or replaced since they were made.
        """
        if self.shared:
            return set()  # Another user could pretend it.
        start = os.fsencode(os.path.join(self.path, ""))
        found = set()
        # proc(5), /proc/net/unix: the path is that of bind(2), whatever has become of the file.  It has the
        # sockets of this network namespace, as have the ports that the services are of.
        with suppress(OSError), open("/proc/net/unix", "rb") as lines:
            for line in lines:
                words = line.split(maxsplit=7)
                if len(words) == 8 and words[7].startswith(start) and int(words[3], 16) & _ACCEPTCON:
                    found.add(os.fsdecode(words[7].rstrip(b"\n")[len(start) :]))
        return {name for name in found if name not in known and self.status(name) is None}

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
    def locked(self, pause: Callable[[float], object] = sleep) -> Iterator[None]:
        """
        Hold the directory's lock.

        @param pause: sleeps between two attempts.
        @raise RunDirectoryError: another process holds it for too long.
        """
        fd = self._lock(pause)
        try:
            yield
        finally:
            # Closing it would not do: another thread may have forked.
            libc.unlock(fd)
            os.close(fd)

    def _lock(self, pause: Callable[[float], object]) -> int:
        for seconds in chain((0.0,), _pauses()):
            if seconds:
                pause(seconds)
            fd = self._openLock()
            try:
                if libc.tryLock(fd):
                    there = self.status(self._lockName)
                    # The file may have been removed and made anew between open and flock: then this lock is
                    # on an inode that others will never open.
                    if there is not None and os.path.samestat(there, os.fstat(fd)):
                        held, fd = fd, -1
                        return held
            finally:
                if fd >= 0:
                    os.close(fd)
        raise RunDirectoryError(
            f"{self.path}/{self._lockName} was locked by another process for {LOCK_SECONDS:g} seconds; "
            "end that process"
        )

    def _openLock(self) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        # Without O_CREAT first: in a sticky directory Linux forbids O_CREAT on files of others (proc(5),
        # fs.protected_regular).
        for extra in (0, os.O_CREAT | os.O_EXCL, 0):
            try:
                fd = os.open(self._lockName, flags | extra, 0o600, dir_fd=self.fd)
            except (FileNotFoundError, FileExistsError):
                continue
            except OSError as error:
                raise RunDirectoryError(
                    f"{self.path}/{self._lockName} cannot be opened: {error.strerror}"
                    f"{'' if error.errno in EXHAUSTED else '; remove it'}"
                ) from error
            status = os.fstat(fd)
            # A lock file of another user's could be held by him for ever; a FIFO would not be a file to
            # lock (hence O_NONBLOCK, which keeps the open from hanging).
            if stat.S_ISREG(status.st_mode) and status.st_uid == self._uid:
                return fd
            os.close(fd)
            raise RunDirectoryError(
                f"{self.path}/{self._lockName} cannot be used: it is no file of user {self._uid}; remove it"
            )
        raise RunDirectoryError(f"{self.path} is gone; start this program again")


def openDirectory(path: str, advice: str, uid: int, share: bool, create: bool) -> RunDirectory | None:
    """
    Open and check one directory.

    @param advice: the end of the error text.
    @param uid: the user that must own it.
    @param share: whether it may be a sticky one of several users.
    @param create: whether to make it if it is not there.
    @return: L{None} if it is not there.
    @raise RunDirectoryError: it is not acceptable; the text names it.
    """
    try:
        if create:
            _make(path)
        # Open first, then check the descriptor: a check of the path could be of another directory.
        # O_NOFOLLOW: a link in /tmp may be anybody's.
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDirectoryError(f"{_whatIsWrong(path, error)}; {advice}") from error
    try:
        shared = _check(path, os.fstat(fd), uid, share, advice)
        # tmpfiles.d(5): systemd-tmpfiles does not clean a directory by age while a lock on it is held.
        libc.tryLock(fd, shared=True)
    except BaseException:
        os.close(fd)
        raise
    return RunDirectory(path, fd, shared)


def _make(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    # umask(2) may have taken bits from the mode of mkdir(2).
    os.chmod(path, 0o700)


def _whatIsWrong(path: str, error: OSError) -> str:
    if os.path.islink(path):
        return f"{path} is a symbolic link"
    if isinstance(error, NotADirectoryError):
        return f"{path} is not a directory"
    return f"{path} cannot be used ({error.strerror})"


def _check(path: str, status: os.stat_result, uid: int, share: bool, advice: str) -> bool:
    mode = stat.S_IMODE(status.st_mode)
    # A set-group-ID bit, inherited from the parent on some systems, does no harm.
    if status.st_uid == uid and mode & 0o777 == 0o700:
        return False
    sticky = status.st_uid in (0, uid) and mode in (0o1770, 0o1777)
    if share and sticky:
        return True
    if sticky:
        advice += f", or to one that you share with others, and name them in {ALLOW_UIDS}"
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
    Open all directories that are there and acceptable, best first.

    @param create: whether to make the first possible one if it is not there.
    @return: the directories, and the errors of the others; of those that are not there only if there is none.
    @raise RunDirectoryError: the environment is wrong.
    """
    share = bool(environment.get(RUN_DIR)) and bool(allowedUids(environment))
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
                    f"set {RUN_DIR} to a directory of your own with mode 0700"
                )
            )
    return found, refused if found else refused or missing
