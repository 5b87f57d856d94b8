"""
The interfaces between a path and the connections that carry its messages.

A I{carrier} is one connection: a TCP byte stream, or an RC queue pair with its fragments.  A I{path}
(L{twisted_ib.rds.paths.path.RDSPath}) outlives its carriers: it keeps unacknowledged messages and gives
them to the next one.  A I{medium} makes carriers, when a peer connects or a path asks for one.

No method calls back: what a carrier has to report during C{send}, it reports later.
"""

from __future__ import annotations

from zope.interface import Attribute, Interface


class IRDSCarrier(Interface):
    """
    A connection that carries the messages of a path, in order and unchanged.
    """

    def send(message):  # type: ignore[no-untyped-def]
        """
        Send a message.

        @param message: an L{RDSMessage<twisted_ib.rds.protocol.machine.RDSMessage>}; the carrier writes
            its header.
        @return: whether it was accepted.  If not, C{path.resume()} is called when there is room.
        """

    def flush():  # type: ignore[no-untyped-def]
        """
        No more messages follow for now: send those that were held back to be sent together.
        """

    def pauseReading():  # type: ignore[no-untyped-def]
        """
        Receive nothing until C{resumeReading}, as there is no memory left.
        """

    def resumeReading():  # type: ignore[no-untyped-def]
        """
        Receive again.
        """

    def drain():  # type: ignore[no-untyped-def]
        """
        The connection is about to be replaced: give the path everything that was received, and all
        acknowledgements, whether reading is paused or not.
        """

    def close():  # type: ignore[no-untyped-def]
        """
        Close the connection at once; the path gets no further calls.
        """


class IRDSBundlingCarrier(IRDSCarrier):
    """
    A carrier whose peers understand bundles (L{twisted_ib.rds.protocol.bundle}): its medium shares
    addresses.
    """

    def gathers():  # type: ignore[no-untyped-def]
        """
        @return: whether a message sent now would leave at the end of the turn, or wait.
        """

    def bundleOpened():  # type: ignore[no-untyped-def]
        """
        Have C{path.closeBundle()} called at the end of the turn.
        """


class IRDSCarrierUser(Interface):
    """
    The notifications of a carrier, which a path implements.
    """

    def messageReceived(carrier, fields, payload):  # type: ignore[no-untyped-def]
        """
        A whole message was received.

        @param fields: its header as L{HEADER<twisted_ib.rds.protocol.wire.HEADER>} unpacks it; the
            carrier has verified the checksum, if its kind has one.
        @param payload: C{bytes}, of the length in the header.
        """

    def acknowledged(carrier, sequence):  # type: ignore[no-untyped-def]
        """
        The peer has received everything up to a sequence number.
        """

    def operationDone(carrier, message):  # type: ignore[no-untyped-def]
        """
        A silent RDMA operation, one without a message, has completed.
        """

    def resume(carrier):  # type: ignore[no-untyped-def]
        """
        There is room again after C{send} had none.
        """

    def carrierUp(carrier, sequence=0):  # type: ignore[no-untyped-def]
        """
        A connection is up.  The path closes its previous carrier: the new one replaces it.

        @param sequence: the last number that the peer had received, if it was given at connecting; else
            0.
        """

    def carrierFailed(reason):  # type: ignore[no-untyped-def]
        """
        The attempt of C{medium.connect} failed.

        @param reason: an exception.
        """

    def lost(carrier, reason):  # type: ignore[no-untyped-def]
        """
        The connection was lost.

        @param reason: an exception.
        """


class IRDSMedium(Interface):
    """
    A factory of carriers between addresses of this host and of peers.
    """

    name = Attribute("The device's name: C{tcp}, C{shm0} ...")
    acknowledges = Attribute("Whether its carriers want C{ACK_REQUIRED} in headers (RC).")

    sharesAddresses = Attribute("Whether other processes have the same addresses.")

    def localAddresses():  # type: ignore[no-untyped-def]
        """
        @return: the addresses that C{interface=""} stands for, as text; at least one.
        """

    def sourceFor(host):  # type: ignore[no-untyped-def]
        """
        @return: the address from which to send to a host, as text.
        @raise twisted_ib.errors.NoRouteError: there is no route.
        """

    def hostNamed(name):  # type: ignore[no-untyped-def]
        """
        @return: the address of a host with a name that the reactor's resolver need not know; C{""} if there
            is none.
        """

    def locate(host, found):  # type: ignore[no-untyped-def]
        """
        Find the address by which a host is named in messages.

        @param found: called once, perhaps before this returns, with the address: the GID of an address of
            IPoIB, any other itself; or with an L{HCAError<twisted_ib.errors.HCAError>}.
        """

    def unknownHost(name):  # type: ignore[no-untyped-def]
        """
        @return: the reason why no host has a name that neither this nor the resolver knows; C{""} where names
            are the resolver's alone.
        """

    def bind(address, port):  # type: ignore[no-untyped-def]
        """
        A socket binds a port: accept connections from peers that send to it.

        @raise OSError: the address is not local, or cannot be bound.
        @raise twisted_ib.errors.HCAError: the port is in use
            (L{ServiceInUseError<twisted_ib.errors.ServiceInUseError>}), or there is no device.
        """

    def unbind(address, port):  # type: ignore[no-untyped-def]
        """
        The socket is closed.  The address's paths stay until C{network} closes them.
        """

    def pathTo(address, host, port):  # type: ignore[no-untyped-def]
        """
        Find the path to a socket, or make one (C{network.path}).

        @param address: the sender's address.
        @param host: the receiver's address.
        @param port: the receiver's RDS port.
        """

    def connect(path):  # type: ignore[no-untyped-def]
        """
        Start connecting a path.  C{path.carrierUp} or C{path.carrierFailed} reports the result, after
        this has returned.

        @return: an object with C{cancel()}, which has no effect once the result was reported or
            C{path.carrierUp} is about to be called.
        """

    def reconnects(path):  # type: ignore[no-untyped-def]
        """
        @return: whether this end connects again after a loss; if not, it waits for the peer and connects
            only when it has something to send.
        """

    def whenQuiet():  # type: ignore[no-untyped-def]
        """
        Called when no socket is open and all paths are closed.

        @return: a Deferred that fires with L{None} when nothing of the medium is in the reactor.
        """
