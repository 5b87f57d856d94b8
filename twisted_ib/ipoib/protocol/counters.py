"""
The counters of an IPoIB interface.
"""

from __future__ import annotations

from typing import Final

#: The counters of an interface, and what each counts: nearly all are packets that were dropped.
COUNTERS: Final = {
    "address_conflict": "ARP and ND by which another port has an address of this interface",
    "arp_malformed": "ARP packets with a hardware type other than 32, other lengths, or cut short",
    "bad_source": "packets from broadcast or loopback addresses",
    "connected_full": "packets for which a connection had no room",
    "connected_too_long": "packets longer than this end has announced; the connection was ended",
    "connections_refused": "requests for connections with wrong private data, or beyond their bound",
    "encapsulation": "frames whose EtherType is unknown, or whose reserved octets are not 0",
    "fragmentation_needed": "packets longer than the path takes, answered by ICMP",
    "group_failed": "packets for groups that could not be joined",
    "group_waiting": "packets for groups that are being joined, beyond those that wait",
    "icmp_suppressed": "ICMP errors that were not made because there were too many",
    "ip_malformed": "packets shorter than their header, or of another version than the EtherType says",
    "local_full": "packets of ports to their own interface, beyond those that wait for the next turn",
    "malformed": "packets of IP, UDP and ICMP with wrong lengths, checksums or fragments",
    "nd_malformed": "neighbour discovery that RFC 4861 says to discard",
    "nd_of_user": "neighbour discovery of the user's own: the interface does it",
    "neighbour_failed": "packets whose neighbour did not answer, answered by ICMP",
    "neighbour_waiting": "packets whose neighbour is being resolved, beyond those that wait",
    "no_port": "datagrams to a number that no port has, answered by ICMP",
    "no_route": "packets to addresses that are not on this link and have no gateway, answered by ICMP",
    "not_for_us": "packets to other addresses, or to groups that no port has joined",
    "not_up": "packets while the broadcast group is not joined",
    "other_protocol": "packets that are neither UDP nor ICMP",
    "own_source": "packets with this port or an address of it as their sender; ARP and ND with it as subject",
    "send_malformed": "frames of the user that are no IP packets",
    "source_mismatch": "ARP and ND whose hardware address is of another port than their sender",
    "stray_error": "ICMP errors about datagrams that no port has sent",
}
