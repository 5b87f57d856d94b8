"""
The structures that C programs hold: which pointer is which object, and what may be destroyed.

One table for all libraries of the process: librdmacm's functions take libibverbs' pointers.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock, local
from typing import Any

import attrs

from twisted_ib.verbs.c.errors import HandleError

#: Structures of destroyed objects that are kept.  A program that uses one gets EINVAL, not the object that
#: would have its address now, and the inline functions of the headers read no freed memory.
FREED_STRUCTURES = 1024


@attrs.define(eq=False)
class Entry:
    """
    An object and its structure.

    @ivar kind: the structure's name in C.
    @ivar value: the object.
    @ivar structure: all that must live as long as it.
    @ivar parents: the addresses of the objects that it uses.
    @ivar users: how many use it.
    @ivar reported: how many of its events the program has and has not acknowledged.
    """

    kind: str
    value: Any
    structure: object
    parents: tuple[int, ...]
    users: int = 0
    reported: int = 0


def _never(address: int, entry: Entry) -> bool:
    return False


class _Thread(local):
    # Its present call has destroyed these, of which the program had events then.
    def __init__(self) -> None:
        self.destroyed: list[Entry] = []


class Handles:
    """
    The objects of a process by the addresses of their structures.

    The lock is for calls that look up and change; each method takes it.

    @ivar entries: by the addresses of the structures.
    @ivar again: in a forked child makes an object of its parent's anew, with L{renew}, and says whether it
        has; called without the lock.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.entries: dict[int, Entry] = {}
        self.again: Callable[[int, Entry], bool] = _never
        # By the objects' identities: the entries keep the objects.
        self._addresses: dict[int, int] = {}
        self._freed: deque[object] = deque(maxlen=FREED_STRUCTURES)
        # Destroyed, but the program still has events of them.
        self._awaited: dict[int, Entry] = {}
        self._thread = _Thread()
        self._parents: dict[int, Entry] = {}

    def forked(self) -> None:
        """
        Forget all objects but devices in a forked child: they are the parent's, who closes them.
        """
        for at, each in list(self.entries.items()):
            # In place: structures.py looks into it by itself.
            if each.kind != "ibv_device":
                self._parents[at] = self.entries.pop(at)
        self._addresses = {one: at for one, at in self._addresses.items() if at in self.entries}

    def renew(self, address: int, value: object) -> bool:
        """
        Give a structure of the parent's an object of this forked child.

        @return: whether it had none; else another thread was faster.
        """
        with self.lock:
            parent = self._parents.pop(address, None)
            if parent is None:
                return False
            self.add(address, parent.kind, value, parent.structure)
            return True

    def __len__(self) -> int:
        return len(self.entries)

    def add(
        self, address: int, kind: str, value: object, structure: object, parents: Iterable[int | None] = ()
    ) -> None:
        """
        Add an object.

        @param address: of its structure.
        @param kind: the structure's name in C, such as C{ibv_pd}.
        @param value: the Python object.
        @param structure: all that must live as long as it: cffi frees memory with the last reference.
        @param parents: the addresses of objects that it uses, which cannot be destroyed before it.
        @raise HandleError: one of these has been destroyed meanwhile, by another thread (EINVAL).
        """
        used = tuple(each for each in parents if each)
        with self.lock:
            for each in used:
                self.structure(each)
            for each in used:
                self.entries[each].users += 1
            self.entries[address] = Entry(kind, value, structure, used)
            self._addresses[id(value)] = address

    def get(self, address: int, *kinds: str) -> Any:
        """
        @param kinds: the kinds that it may be.
        @return: the object at an address.
        @raise HandleError: there is none, or it is of another kind (EINVAL).
        """
        entry = self.entries.get(address)
        if entry is None and (parent := self._parents.get(address)) and self.again(address, parent):
            entry = self.entries.get(address)
        if entry is None or entry.kind not in kinds:
            raise HandleError(f"There is no {' or '.join(kinds)} at {address:#x}")
        return entry.value

    def has(self, address: int) -> bool:
        """
        @return: whether there is an object at an address.
        """
        return address in self.entries

    def structure(self, address: int) -> object:
        """
        @return: what was given as the structure at an address.
        @raise HandleError: there is none (EINVAL).
        """
        entry = self.entries.get(address)
        if entry is None:
            raise HandleError(f"There is no object at {address:#x}")
        return entry.structure

    def report(self, value: object) -> int:
        """
        Give the program an event of an object.  A call that destroys the object ends when it is acknowledged.

        @return: the address of its structure; 0 if another thread has destroyed it in this moment.
        """
        with self.lock:
            address = self._addresses.get(id(value), 0)
            entry = self.entries.get(address)
            if entry is None:
                return 0
            entry.reported += 1
            return address

    def acknowledge(self, address: int, count: int = 1) -> None:
        """
        The program is done with events of an object.

        @raise HandleError: there is none (EINVAL).
        """
        with self.lock:
            entry = self.entries.get(address) or self._awaited.get(address)
            if entry is None:
                raise HandleError(f"There is no object at {address:#x}")
            entry.reported = max(0, entry.reported - count)
            if not entry.reported:
                self._awaited.pop(address, None)

    @contextmanager
    def destroying(self) -> Iterator[list[Entry]]:
        """
        Within it a call of this thread destroys.

        @return: what it has destroyed, for L{isOwed}.  It is the call's own: a signal's handler may destroy,
            too, while that waits.
        """
        before, self._thread.destroyed = self._thread.destroyed, []
        try:
            yield self._thread.destroyed
        finally:
            self._thread.destroyed = before

    @staticmethod
    def isOwed(destroyed: list[Entry]) -> bool:
        """
        @return: whether the program has events of what a call has destroyed.
        """
        return any(each.reported for each in destroyed)

    def move(self, address: int, old: int, new: int) -> None:
        """
        Make an object a user of another in place of the one that it used.

        @raise HandleError: there is no such object (EINVAL).
        """
        with self.lock:
            self.use(new)
            self.use(old, -1)
            entry = self.entries[address]
            entry.parents = tuple(new if each == old else each for each in entry.parents)

    def use(self, address: int, count: int = 1) -> None:
        """
        Count a further user of an object, or with -1 one less.

        @raise HandleError: there is no such object (EINVAL).
        """
        with self.lock:
            self.structure(address)
            self.entries[address].users += count

    def remove(self, address: int, kind: str) -> Any:
        """
        Destroy an object: close it, and forget its structure.  As L{isOwed} says, the call is not at its end
        then.

        @return: the object.
        @raise HandleError: there is none (EINVAL), or another uses it (EBUSY); nothing changes then, nor if
            its C{close} raises.
        """
        with self.lock:
            entry = self._present(address, kind)
            if entry.users:
                raise HandleError(f"{entry.users} objects use this {kind}", errno.EBUSY)
            # Out of the table first: a second destroy, in another thread, must not find it while close waits.
            self._awaited[address] = self.entries.pop(address)
        try:
            entry.value.close()
        except BaseException:
            with self.lock:
                self.entries[address] = entry
                self._awaited.pop(address, None)
            raise
        with self.lock:
            self._drop(entry)
            if entry.reported:
                self._thread.destroyed.append(entry)
            else:
                self._awaited.pop(address, None)
        return entry.value

    def removeAll(self, address: int, kind: str) -> None:
        """
        Destroy an object with all that use it, as the kernel does when a context's descriptor is closed.  If
        one's C{close} raises, the others are closed all the same, and it is raised then.  A parent's that a
        forked child has not made anew is only forgotten.

        @raise HandleError: there is none (EINVAL).
        """
        # It closes the last first, and all of them even if one raises.
        closing = ExitStack()
        with self.lock:
            parent = self._parents.get(address)
            if parent is not None and parent.kind == kind:
                self._freed.append(self._parents.pop(address).structure)
                return
            self._present(address, kind)
            order = [address]
            for each in order:
                order += [
                    other
                    for other, entry in self.entries.items()
                    if each in entry.parents and other not in order
                ]
            for entry in map(self.entries.pop, order):
                closing.callback(self._drop, entry)
                closing.callback(entry.value.close)
        closing.close()

    def _present(self, address: int, kind: str) -> Entry:
        # Unlike get(), not made anew in a forked child: that is done without the lock.
        entry = self.entries.get(address)
        if entry is None or entry.kind != kind:
            raise HandleError(f"There is no {kind} at {address:#x}")
        return entry

    def _drop(self, entry: Entry) -> None:
        with self.lock:
            for each in entry.parents:
                parent = self.entries.get(each)
                if parent is not None:
                    parent.users -= 1
            self._freed.append(entry.structure)
            self._addresses.pop(id(entry.value), None)


#: The table of this process.
handles = Handles()
