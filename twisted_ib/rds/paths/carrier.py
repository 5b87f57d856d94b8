"""
The seam between a path and what carries its messages.

A I{carrier} is one connection: TCP's byte stream, or an RC queue pair with its fragments.  A
I{path} (L{twisted_ib.rds.paths.path.RDSPath}) outlives its carriers: it keeps what was not acknowledged
and gives it to the next.  A I{medium} makes carriers, of its own accord when a peer connects, or
when a path asks.

Nobody calls back within a call: what a carrier has to say while it is in C{send} it says later.
"""

from __future__ import annotations

from zope.interface import Attribute, Interface


class IRDSCarrier(Interface):
    """
    One connection that carries the messages of a path, in order and as they are.
    """

    def send(message):  # type: ignore[no-untyped-def]
        """
        Take a message.

        @param message: A L{Message<twisted_ib.rds.protocol.machine.RDSMessage>}; its header is the carrier's
            to write.
        @return: Whether it was taken.  If not, C{path.resume()} is called when there is room.
        """

    def flush():  # type: ignore[no-untyped-def]
        """
        No more messages come for the moment: let go what is held back to go together.
        """

    def pauseReading():  # type: ignore[no-untyped-def]
        """
        Take nothing from the peer until C{resumeReading}: there is no memory left for it.
        """

    def resumeReading():  # type: ignore[no-untyped-def]
        """
        Take from the peer again.
        """

    def drain():  # type: ignore[no-untyped-def]
        """
        The connection is about to be replaced: give the path what has come on it and what the
        peer takes for acknowledged, however much it is, whether reading is paused or not.
        """

    def close():  # type: ignore[no-untyped-def]
        """
        End the connection at once; the path hears nothing more of it.
        """


class IRDSBundlingCarrier(IRDSCarrier):
    """
    A carrier of a medium whose peers understand bundles (L{twisted_ib.rds.protocol.bundle}): one that shares
    addresses.
    """

    def gathers():  # type: ignore[no-untyped-def]
        """
        @return: Whether what is sent now would leave at the end of the turn, or wait.
        """

    def bundleOpened():  # type: ignore[no-untyped-def]
        """
        Have C{path.closeBundle()} called at the end of the turn.
        """


class IRDSCarrierUser(Interface):
    """
    What a carrier tells: a path does this.
    """

    def messageReceived(carrier, fields, payload):  # type: ignore[no-untyped-def]
        """
        A whole message came.

        @param carrier: Where.
        @param fields: Its header as L{HEADER<twisted_ib.rds.protocol.wire.HEADER>} unpacks it.  The
            carrier has looked at the checksum, if its kind has one.
        @param payload: Its C{bytes}, as many as the header says.
        """

    def acknowledged(carrier, sequence):  # type: ignore[no-untyped-def]
        """
        The peer has everything up to a sequence number.
        """

    def operationDone(carrier, message):  # type: ignore[no-untyped-def]
        """
        An operation that has no message behind it was done.
        """

    def resume(carrier):  # type: ignore[no-untyped-def]
        """
        There is room after C{send} had none.
        """

    def carrierUp(carrier, sequence=0):  # type: ignore[no-untyped-def]
        """
        A connection is there.  One that the path had before is closed by the path: the new one
        takes its place.

        @param sequence: The number up to which the peer has everything, if it said so when it
            connected.
        """

    def carrierFailed(reason):  # type: ignore[no-untyped-def]
        """
        What C{medium.connect} began came to nothing.

        @param reason: An exception.
        """

    def lost(carrier, reason):  # type: ignore[no-untyped-def]
        """
        The connection is gone.

        @param reason: An exception.
        """


class IRDSMedium(Interface):
    """
    Makes carriers between addresses of this host and of peers.
    """

    name = Attribute("The device's name: C{tcp}, C{shm0} ...")
    acknowledges = Attribute("Whether its carriers want C{ACK_REQUIRED} in headers (RC).")

    sharesAddresses = Attribute("Whether other processes have the same addresses.")

    def localAddresses():  # type: ignore[no-untyped-def]
        """
        @return: The addresses that C{interface=""} means: text, at least one.
        """

    def bind(address, port):  # type: ignore[no-untyped-def]
        """
        A socket takes a port: listen for peers who have messages for it.

        @raise OSError: The address is not of this host, or cannot be had.
        @raise twisted_ib.errors.HCAError: The port is somebody else's
            (L{ServiceInUseError<twisted_ib.errors.ServiceInUseError>}), or there is no device.
        """

    def unbind(address, port):  # type: ignore[no-untyped-def]
        """
        The socket is gone.  The paths of the address stay until C{network} closes them.
        """

    def pathTo(address, host, port):  # type: ignore[no-untyped-def]
        """
        Find the path that leads to a socket, or make one (C{network.path}).

        @param address: The sender's.
        @param host: The receiver's address.
        @param port: The receiver's port.
        """

    def connect(path):  # type: ignore[no-untyped-def]
        """
        Begin to connect a path; C{path.carrierUp} or C{path.carrierFailed} tells the end, not
        before this has returned.

        @return: What has C{cancel()}, which does nothing once the end was told or is about to be by
            C{path.carrierUp}.
        """

    def reconnects(path):  # type: ignore[no-untyped-def]
        """
        @return: Whether this end connects again when the path's connection is lost; if not it
            waits for the peer, and connects only when it has something to say.
        """

    def whenQuiet():  # type: ignore[no-untyped-def]
        """
        There is no socket any more, and all paths are closed.

        @return: A Deferred that fires with L{None} when nothing of the medium is in the reactor.
        """
