"""
The software host channel adapter (HCA), in the words of somebody who knows TCP.

An I{HCA} is the network card of RDMA, here in software: L{device<twisted_ib.hca.device.device>}.
A I{fabric} is the network behind it: shared memory (C{shm0}), this process (C{lo0}), or packets
over UDP to other hosts (C{roce0}).

A I{queue pair} is one end of a connection, as a socket is: a queue of sends and one of
receives.  It goes through states that a program sets: RESET, INIT, RTR (ready to
receive), RTS (ready to send); ERR when it is broken.  It delivers all messages in order,
or fails.  There is no buffer in between as a socket has: a message needs a I{receive} that
the peer has posted before, else it is refused (I{RNR}, receiver not ready) and sent again.
Protocols above count each other's receives, I{credits}, and send no more than fits: what
TCP's window is in bytes.

A I{memory region} is memory that is registered, so that a peer may read and write it (RDMA
READ and WRITE) without the program there; its I{rkey} is the number that lets the peer in.
A I{completion} says that a request is done, and how it ended.

The I{communication manager} connects queue pairs.  A I{service id} is what one listens on:
a port, with the protocol in front.  REQ, REP and RTU are SYN, SYN+ACK and ACK; REJ is RST to
a SYN; DREQ and DREP are the FINs, but for both directions at once.

On packets a I{PSN}, packet sequence number, counts packets as TCP's sequence number counts bytes; an
I{ACK} acknowledges all up to a PSN; a I{NAK} says at once what is missing or forbidden, for which TCP
has duplicate ACKs and RST.  The I{BTH}, base transport header, is what TCP's header is; the
I{invariant CRC} covers all that no router changes.  On the other fabrics nothing is lost, so there is
none of this.

Begin with L{twisted_ib.hca.device.device}, then L{twisted_ib.hca.queues.streamqueuepair}.

Besides:

  - C{base}: vocabulary that every layer of the HCA shares
  - C{capture}: capture files of what HCAs send and receive, as packets for Wireshark
  - C{cm}: the InfiniBand communication manager (IBTA vol. 1 chapter 12), without I/O
  - C{connection}: connection management as users see it, whatever carries it
  - C{fabric}: they carry operations from one HCA to another
  - C{host}: how processes of one host find and authenticate each other
  - C{mad}: management datagrams (MADs) and the agents that serve them (IBTA vol. 1 chapter 13), without I/O
  - C{memory}: protection domains, memory regions and memory windows (IBTA vol. 1 10.6), and the random
    numbers of their keys
  - C{queues}: queue pairs, completion queues, shared receive queues, and the work requests posted to them
    (IBTA vol. 1 10.2 to 10.8)
  - C{services}: the transport services RC, UC and UD over a fabric of operations (IBTA vol. 1 9.7 to 9.8)
  - C{transport}: reliable and unreliable connections over a medium that loses packets (IBTA vol. 1 9.7,
    9.8.2)
  - C{wire}: codecs of the InfiniBand wire formats
"""

from __future__ import annotations

# Not typing's, as in twisted_ib.settings: the first start of C{ib-run} imports this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.device.registry import addDevice, removeDevice

__all__ = [
    "Device",
    "addDevice",
    "removeDevice",
]


def __getattr__(name: str) -> object:
    # Imported when used: whoever takes a codec or a machine from here does not load ports and reactors.
    if name == "Device":
        from twisted_ib.hca.device import device

        return getattr(device, name)
    if name in ("addDevice", "removeDevice"):
        from twisted_ib.hca.device import registry

        return getattr(registry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
