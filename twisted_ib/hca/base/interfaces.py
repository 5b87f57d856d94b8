"""
The seams of the HCA: what a fabric is to a device, and a device to its users.

A fabric is found through L{IFabric}; what it gives for each peer, the path, is
the other half of the seam: L{twisted_ib.hca.fabric.base.path}.
"""

from __future__ import annotations

from zope.interface import Attribute, Interface


class IFabric(Interface):
    """
    What carries operations from one HCA to others.
    """

    name = Attribute("The kind of fabric, a word.")
    attributes = Attribute("A dict: largestOperation (bytes), zeroCopy (bool).")

    def allocate(size):  # type: ignore[no-untyped-def]
        """
        Allocate memory that peers can map (C{map}, a buffer of at least that
        size; C{close()}), if there is such.

        @return: The memory, or L{None}.
        """

    def publish(serviceID, address, inode=0):  # type: ignore[no-untyped-def]
        """
        Let others find this HCA for a service at an address.

        @param inode: That of the TCP socket which listens there too, for the same server: then
            those who mean that socket may come here.
        @raise ServiceInUseError: somebody has it.
        @raise NoRouteError: this fabric does not serve the address.
        """

    def publishAny(prefix, address):  # type: ignore[no-untyped-def]
        """
        The same for any port that is free.

        @return: The port; the service id is C{prefix + port}.
        """

    def withdraw(serviceID, address):  # type: ignore[no-untyped-def]
        """
        Take back what C{publish} or C{publishAny} did.
        """

    def resolve(serviceID, address, user):  # type: ignore[no-untyped-def]
        """
        Find the path to whoever serves a service at an address.

        @param user: Gets C{pathReady(path)}, perhaps before this returns, or
            C{connectFailed(error)} later.
        @return: Something with C{cancel()}.
        @raise NoRouteError: this fabric does not reach the address.
        @raise NoListenerError: nobody serves it.
        """

    def serving(serviceID, address):  # type: ignore[no-untyped-def]
        """
        Find who serves a service without going there.

        @return: The GUIDs of the HCAs, whom to ask first at the front; some may be dead.  None where
            peers are IP addresses.
        @raise ValueError: the address is none.
        """

    def reach(guid, user):  # type: ignore[no-untyped-def]
        """
        Find the path to the HCA of a GUID: the one that this side has dialled, or a new
        one.  A path to this HCA itself has its other end as C{twin}.

        @param user: As for C{resolve}.
        @return: Something with C{cancel()}.
        @raise NoListenerError: there is no such HCA.
        """

    def proves(path, guid):  # type: ignore[no-untyped-def]
        """
        Whether the HCA at the other end of a path has a GUID.  What a caller says of
        itself is no proof.

        @return: L{None} if that cannot be found out now.
        """

    def join(group):  # type: ignore[no-untyped-def]
        """
        Let others find this HCA as a member of a multicast group.

        @param group: A multicast GID, an integer of 128 bits.
        @raise HCAError: they would not find it.
        """

    def leave(group):  # type: ignore[no-untyped-def]
        """
        Take back what C{join} did; harmless if it is not a member.
        """

    def members(group):  # type: ignore[no-untyped-def]
        """
        @return: The GUIDs of the HCAs in a multicast group, this one perhaps among
            them; not to be changed.  The same object while nothing has changed.
        """

    def progress(budget):  # type: ignore[no-untyped-def]
        """
        Take what has arrived.

        @param budget: Records per path at most.
        @return: How many were taken.
        """

    def ringBells():  # type: ignore[no-untyped-def]
        """
        The batch ends: wake peers that must hear of what was published.
        """

    def pending():  # type: ignore[no-untyped-def]
        """
        @return: Whether C{progress} has something to do.
        """

    def arm():  # type: ignore[no-untyped-def]
        """
        Ask to be woken through the descriptor from now on.

        @return: False if there is work after all.
        """

    def look():  # type: ignore[no-untyped-def]
        """
        After waking: find out which paths have work.

        @return: Whether any path is looked at each turn now.
        """

    def attend():  # type: ignore[no-untyped-def]
        """
        Serve the descriptors: peers that call, handshakes, deaths.
        """

    def fileno():  # type: ignore[no-untyped-def]
        """
        @return: A descriptor that is readable when C{attend} has work.
        """

    def signal():  # type: ignore[no-untyped-def]
        """
        Make C{fileno} readable: somebody outside of C{progress} made work.
        """

    def registerWith(poller):  # type: ignore[no-untyped-def]
        """
        Put the doorbells into a reactor's C{select.epoll}, where they are
        never read, instead of behind C{fileno}.
        """

    def deadline():  # type: ignore[no-untyped-def]
        """
        @return: When C{tick} should be called, or L{None}.
        """

    def tick(now):  # type: ignore[no-untyped-def]
        """
        Do what is due.
        """

    def unsent():  # type: ignore[no-untyped-def]
        """
        @return: Whether connection management waits for room anywhere.
        """

    def paths():  # type: ignore[no-untyped-def]
        """
        @return: The paths to living peers.
        """

    def forked():  # type: ignore[no-untyped-def]
        """
        In a forked child: make every use an error.
        """

    def close():  # type: ignore[no-untyped-def]
        """
        Withdraw everything and give everything back.
        """


class IFabricOwner(Interface):
    """
    What a fabric tells the device that opened it.
    """

    wanted = Attribute(
        "L{None}, or called without arguments when something was published and"
        " nothing may follow that ends the batch."
    )

    def managementReceived(path, attribute, buffer, start, stop):  # type: ignore[no-untyped-def]
        """
        A connection management message came: 232 bytes of C{buffer}.
        """

    def datagramReceived(path, opcode, number, buffer, start, stop):  # type: ignore[no-untyped-def]
        """
        A datagram came: GRH, DETH, what follows.

        @param opcode: L{UD_SEND_ONLY<twisted_ib.hca.base.operation.UD_SEND_ONLY>} or the one
            with immediate, perhaps solicited.
        @param number: The queue pair number that it is for.
        """

    def pathAccepted(path):  # type: ignore[no-untyped-def]
        """
        A path that the other end has dialled is complete.  Nothing proves who that is.
        """

    def pathLost(path, reason):  # type: ignore[no-untyped-def]
        """
        A peer is gone.  Its queue pairs are failed next.
        """

    def count(name):  # type: ignore[no-untyped-def]
        """
        Add one to a counter.
        """

    def warn(text):  # type: ignore[no-untyped-def]
        """
        Tell whoever runs this process of something.
        """

    def describe():  # type: ignore[no-untyped-def]
        """
        @return: What to tell somebody who asks what is in use: a dict for JSON.
        """

    def describeSockets():  # type: ignore[no-untyped-def]
        """
        @return: What to tell somebody who asks for listeners and connections: an iterator of
            dicts for JSON, made one by one; C{more} in each says whether another one comes.
        """


class ILink(Interface):
    """
    What carries the datagrams of a fabric of packets: UDP, or something that stands for it.

    A datagram is what UDP carries: from the base transport header to the invariant CRC, which the
    fabric makes and checks.  Addresses are text as L{normalise
    <twisted_ib.hca.host.addresses.normalise>} gives it, without a scope.  Nothing is reliable.
    """

    address = Attribute("The IP address of this end.")
    pathMTU = Attribute("The most octets of a packet's payload: 256, 512, 1024, 2048 or 4096.")
    burst = Attribute(
        "How many datagrams of one size C{send} takes at a time.  Of IPv4 the first of them has"
        " identification 0, the next 1, and so on; all have Don't Fragment."
    )
    user = Attribute(
        "Who takes what arrives, set by that: C{user.arrived(source, port, destination, buffer,"
        " start, stop, size, trafficClass)}, where C{buffer} has from C{start} to C{stop} datagrams"
        " of C{size} octets each, the last perhaps shorter.  It is valid during the call only; its"
        " slices are bytes."
    )

    def pathMTUTo(destination):  # type: ignore[no-untyped-def]
        """
        @param destination: the IP address of a peer.
        @return: the most octets of a packet's payload on the way there, as far as is known.
        """

    def sourcePort(wanted):  # type: ignore[no-untyped-def]
        """
        @param wanted: the UDP source port that a flow should have.
        @return: the one that it can have.
        """

    def send(destination, port, pieces, size, trafficClass=0, hopLimit=64):  # type: ignore[no-untyped-def]
        """
        Send datagrams.

        @param port: the source port, one that C{sourcePort} has given.
        @param pieces: a list of bytes-like objects: joined they are datagrams of C{size} octets
            each, the last perhaps shorter.
        @return: False if nothing was sent, as there is no room now.  What cannot be sent for another
            reason is lost.
        """

    def receive(budget):  # type: ignore[no-untyped-def]
        """
        Give C{user} what has arrived.

        @param budget: datagrams at most, or a few more.
        @return: how many there were.
        """

    def pending():  # type: ignore[no-untyped-def]
        """
        @return: whether C{receive} has something to give.
        """

    def fileno():  # type: ignore[no-untyped-def]
        """
        @return: a descriptor that is readable while something has arrived; -1 if there is none: then
            C{user.signal()} is called when something arrives.
        """

    def join(group):  # type: ignore[no-untyped-def]
        """
        Take what is sent to a multicast address too.

        @raise HCAError: it cannot.
        """

    def leave(group):  # type: ignore[no-untyped-def]
        """
        Undo C{join}.
        """

    def close():  # type: ignore[no-untyped-def]
        """
        Give everything back.
        """


class IConsumer(Interface):
    """
    Who uses a queue pair.  It may post from within any of these.
    """

    def received(buffer, start, stop):  # type: ignore[no-untyped-def]
        """
        A message arrived.  C{buffer} is the medium's own: what is kept of it
        must be copied, which slicing does.
        """

    def resume():  # type: ignore[no-untyped-def]
        """
        The medium has taken everything that was posted.
        """

    def failed(reason):  # type: ignore[no-untyped-def]
        """
        The queue pair is in ERR.
        """

    def forked():  # type: ignore[no-untyped-def]
        """
        This is a forked child, and the queue pair is its parent's: whatever is
        asked of it is an error by name.
        """


class IServiceListener(Interface):
    """
    Who listens on a service.
    """

    def connectionRequested(connection, request):  # type: ignore[no-untyped-def]
        """
        A REQ came: answer with C{connection.accept}, C{reject} or C{ignore},
        now or later.
        """

    def requestWithdrawn(connection):  # type: ignore[no-untyped-def]
        """
        It is no longer to be answered.
        """

    # Who serves datagrams has lookupRequested(lookup, request) as well: a SIDR_REQ came; answer
    # with lookup.answer, reject or ignore, now or later.
