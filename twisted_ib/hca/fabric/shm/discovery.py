"""
Where the processes of a host find an HCA, what they can believe of it, and how it finds
theirs.
"""

from __future__ import annotations

import os
from typing import Any

from twisted_ib.errors import HandshakeError, HCAError, NoListenerError
from twisted_ib.hca.fabric.base.fabric import Fabric
from twisted_ib.hca.fabric.shm.listeners import ListeningSockets
from twisted_ib.hca.fabric.shm.peersockets import PathRequest, PeerSockets
from twisted_ib.hca.host.addresses import checkLocal
from twisted_ib.hca.host.rendezvous import Rendezvous


class Discovery(Fabric):
    """
    The part of a fabric between processes that others find it by, and that finds others.

    @ivar rendezvous: Its place in the run directories.
    """

    rendezvous: Rendezvous
    _listeners: ListeningSockets
    _pairs: PeerSockets

    def _appear(self) -> None:
        """
        Take a place in the run directory.

        @raise RunDirectoryError: no directory to meet in can be used.
        """
        self._user = os.geteuid()
        self.rendezvous = Rendezvous(self.guid)
        try:
            self.rendezvous.bind()
        except BaseException:
            self.rendezvous.close()
            raise

    def _follow(self) -> None:
        """
        This process has changed its user (C{twistd --uid} does so when all
        ports are open): be found in the new user's directory too.  The old
        user's clients still come through the old door.
        """
        self._user = os.geteuid()
        try:
            rendezvous = self.rendezvous.successor()
        except HCAError as error:
            self.count("successor_failed")
            self.owner.warn(f"clients of user {self._user} cannot reach this process: {error}")
            return
        if rendezvous is not None:
            self._listeners.add(rendezvous)
            self.rendezvous = rendezvous

    # -- services

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        """
        Let others find this HCA for a service at an address.

        @param inode: See L{IFabric}.
        @raise ServiceInUseError: somebody has it.
        @raise NoRouteError: the address is not one of this host.
        """
        checkLocal(address, True)
        self.rendezvous.publish(serviceID, address, inode)

    def publishAny(self, prefix: int, address: str) -> int:
        """
        The same with a port that is free.

        @return: The port.
        """
        checkLocal(address, True)
        return self.rendezvous.publishAny(prefix, address)

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Take back what L{publish} did.
        """
        self.rendezvous.withdraw(serviceID, address)

    def serving(self, serviceID: int, address: str) -> list[int]:
        """
        @return: See L{IFabric}.
        """
        return [entry.guid for entry in self.rendezvous.lookup(serviceID, address)]

    def proves(self, path: Any, guid: int) -> bool | None:
        """
        See L{IFabric}: a caller's process must be the one that listens where others
        find the HCA.
        """
        peerSocket = path.peerSocket
        if not peerSocket.server:
            return bool(peerSocket.guid == guid)
        try:
            listener = self.rendezvous.listenerOf(guid)
        except (HCAError, OSError):
            return None
        if listener is None or not listener.pid:
            return False  # Processes outside of our process namespace all have the number 0.
        caller = peerSocket.credentials
        return bool((listener.pid, listener.uid) == (caller.pid, caller.uid))

    def join(self, group: int) -> None:
        """
        Let others find this HCA as a member of a multicast group.

        @raise RunDirectoryError: the directory cannot be written.
        """
        self.rendezvous.join(group)

    def leave(self, group: int) -> None:
        """
        Take back what L{join} did.
        """
        self.rendezvous.leave(group)

    def members(self, group: int) -> tuple[int, ...]:
        """
        @return: See L{IFabric}.
        """
        return self.rendezvous.members(group)

    # -- other HCAs

    def resolve(self, serviceID: int, address: str, user: Any) -> PathRequest:
        """
        Find the path to whoever serves C{serviceID} at C{address}.

        @param user: Gets C{pathReady(path)}, perhaps before this returns, or
            C{connectFailed(error)} later.
        @raise NoRouteError: the address is not one of this host.
        @raise NoListenerError: nobody serves it.
        """
        checkLocal(address)
        self.rendezvous.checkOwner()
        failure: HCAError = NoListenerError(f"nobody serves {address}")
        for entry in self.rendezvous.lookup(serviceID, address):
            try:
                self._reach(entry, user)
                return PathRequest(self._pairs, user)
            except (HCAError, OSError) as error:
                failure = error if isinstance(error, HCAError) else HandshakeError(str(error))
        raise failure

    def reach(self, guid: int, user: Any) -> PathRequest:
        """
        Find the path to the HCA of a GUID.

        @param user: See L{resolve}.
        @raise NoListenerError: there is no such HCA.
        """
        entry = self.rendezvous.find(guid)
        if entry is None:
            raise NoListenerError(f"there is no HCA {guid:016x}")
        try:
            self._reach(entry, user)
        except OSError as error:
            raise HandshakeError(str(error)) from error
        return PathRequest(self._pairs, user)

    def _reach(self, entry: Any, user: Any) -> None:
        """
        Give C{user} the path to an HCA, now or after the handshake.

        @param entry: Where it is in the run directory.
        """
        raise NotImplementedError


__all__ = ["Discovery"]
