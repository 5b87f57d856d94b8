"""
Services that stand beside TCP sockets, found without opening a device.

A server of the offload protocol switch listens on TCP, and beside that with an HCA on the same
address and number; the HCA's entry then has the inode of the TCP socket
(L{twisted_ib.hca.host.entries}).
"""

from __future__ import annotations

import os

import attrs

from twisted_ib.hca.fabric.base.neighbours import ofThisThread
from twisted_ib.hca.host.addresses import normalise, servedBy
from twisted_ib.hca.host.rundirectory import ALLOWED_UIDS, RUN_DIRECTORY
from twisted_ib.hca.host.search import Search


@attrs.frozen
class Counterpart:
    """
    A service beside a TCP socket.

    @ivar guid: the HCA's.
    @ivar address: what the service is bound to.
    @ivar inode: that of the TCP socket.
    @ivar uid: the user who says so.
    """

    guid: int
    address: str
    inode: int
    uid: int


class TCPCounterparts:
    """
    Looks for such services; keeps the run directories open between two looks.
    """

    def __init__(self) -> None:
        self._search: Search | None = None
        self._key: tuple[object, ...] = ()

    def inProcesses(self, serviceID: int, address: str) -> list[Counterpart]:
        """
        Look in the run directories: for the fabrics between the processes of this host.

        @param serviceID: The service.
        @param address: Where to, an address of this host.
        @return: The one to ask first at the front; some may be dead.
        @raise RunDirectoryError: there are run directories, and none will do.
        """
        environ = os.environ
        key = (os.getpid(), os.geteuid(), environ.get(RUN_DIRECTORY), environ.get(ALLOWED_UIDS))
        if key != self._key or self._search is None:
            self.close()
            self._search = Search(environ)
            self._key = key
        return [
            Counterpart(entry.guid, entry.address, entry.inode, entry.uid)
            for entry in self._search.lookup(serviceID, address)
            if entry.inode
        ]

    def inThread(self, serviceID: int, address: str) -> list[Counterpart]:
        """
        Look among the devices of this thread: for the fabric within one.

        @param serviceID: The service.
        @param address: Where to, an address of this host.
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
        @return: Whether one of our own user says so.
        """
        return counterpart.uid == os.geteuid()

    def close(self) -> None:
        """
        Close the directories.
        """
        search, self._search = self._search, None
        if search is not None:
            search.close()


__all__ = ["Counterpart", "TCPCounterparts"]
