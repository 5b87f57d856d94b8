"""
Services that accompany TCP listeners, found without opening a device.

A server of the offload protocol switch listens on TCP and, with an HCA, on the same address and port; the
HCA's service entry then has the inode of the TCP socket (L{twisted_ib.hca.host.entries}).
"""

from __future__ import annotations

import os

from twisted_ib.hca.fabric.base.neighbours import ofThisThread
from twisted_ib.hca.host.addresses import normalise, servedBy
from twisted_ib.hca.host.search import Search, shared
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen
from twisted_ib.settings import ALLOW_UIDS, RUN_DIR


@frozen(repr=False)
class Counterpart(Shown):
    """
    The service that accompanies a TCP listener.
    """

    #: The HCA's GUID.
    guid: int
    #: The address that the service is bound to.
    address: str
    #: The inode of the TCP socket.
    inode: int
    #: The user whose process published the entry.
    uid: int


class TCPCounterparts:
    """
    Finds such services; keeps the run directories open between lookups.
    """

    def __init__(self) -> None:
        self._search: Search | None = None
        self._key: tuple[object, ...] = ()

    def inProcesses(self, serviceID: int, address: str) -> list[Counterpart]:
        """
        Search the run directories: for the fabrics between the processes of this host.

        @param address: the destination, an address of this host.
        @return: in order of preference, those of one address at random; some may be dead.
        @raise RunDirectoryError: there are run directories, and none is usable.
        """
        environ = os.environ
        # The search depends on all of these; a fork or setuid makes the open directories useless or unsafe.
        key = (os.getpid(), os.geteuid(), environ.get(RUN_DIR), environ.get(ALLOW_UIDS))
        if key != self._key or self._search is None:
            self.close()
            self._search = Search(environ)
            self._key = key
        return [
            Counterpart(entry.guid, entry.address, entry.inode, entry.uid)
            for entry in shared(self._search.lookup(serviceID, address))
            # Entries without an inode were published without a TCP socket: no TCP connection may be diverted
            # to them.
            if entry.inode
        ]

    def inThread(self, serviceID: int, address: str) -> list[Counterpart]:
        """
        Search the devices of this thread: for the loopback fabric.

        @param address: the destination, an address of this host.
        """
        neighbours, uid = ofThisThread(), os.geteuid()
        found = []
        for where in servedBy(normalise(address)):
            fabric = neighbours.services.get((serviceID, where))
            inode = neighbours.inodes.get((serviceID, where), 0)
            if fabric is not None and inode:
                found.append(Counterpart(fabric.guid, where, inode, uid))
        return found

    def isOurs(self, counterpart: Counterpart) -> bool:
        """
        Whether a process of our own user published the entry.
        """
        # Any user may publish an entry with any inode; only our own user's claim is as good as ours.
        return counterpart.uid == os.geteuid()

    def __del__(self) -> None:
        # The switch of a loop that was dropped, which nobody has closed.
        self.close()

    def close(self) -> None:
        """
        Close the directories.
        """
        search, self._search = self._search, None
        if search is not None:
            search.close()
