"""
The forwarding tables of a switch (IBTA vol. 1 18.2).
"""

from __future__ import annotations

from typing import Final

#: In a linear forwarding table: no port leads to the LID (IBTA vol. 1 14.2.5.10).
NO_PORT: Final = 0xFF
#: The first multicast LID.
FIRST_MULTICAST_LID: Final = 0xC000
#: Entries of the tables of a switch, as ibsim's switches have them.
LINEAR_ENTRIES: Final = 0x7800
MULTICAST_ENTRIES: Final = 0x400


class Switch:
    """
    The forwarding tables of a switch, and its other settings.

    @ivar top: the highest LID that is forwarded (LinearFDBTop); C{multicastTop} likewise of multicast LIDs,
        0 for all.
    @ivar linear: egress port of each LID.
    @ivar multicast: the egress ports of each multicast LID, from L{FIRST_MULTICAST_LID}: bit I{n} is port
        I{n}.
    @ivar defaultPort: DefaultPort, for switches with other tables than linear ones.
    @ivar defaultPrimary: where multicast packets go whose LID has no ports, if they did not come from there;
        0 for nowhere.
    @ivar defaultNotPrimary: likewise, if they did.
    @ivar stateChange: whether a port changed its state by itself since this was cleared.
    @ivar lifeTime: how long a packet may stay, as a timeout code.
    @ivar mappings: (ingress port, egress port) -> virtual lane of each service level, where a subnet manager
        set them.
    """

    def __init__(
        self, linearEntries: int = LINEAR_ENTRIES, multicastEntries: int = MULTICAST_ENTRIES
    ) -> None:
        self.linear = bytearray([NO_PORT]) * linearEntries
        self.multicast = [0] * multicastEntries
        self.top = self.multicastTop = 0
        self.defaultPort = self.defaultPrimary = self.defaultNotPrimary = 0
        self.lifeTime = 0
        self.stateChange = False
        self.mappings: dict[tuple[int, int], tuple[int, ...]] = {}

    def lookup(self, lid: int) -> int:
        """
        @return: the port that a unicast LID is behind, 0 for the switch itself, or L{NO_PORT}.
        """
        return self.linear[lid] if lid <= self.top and lid < len(self.linear) else NO_PORT

    def replicated(self, lid: int, ingress: int) -> list[int]:
        """
        @param lid: a multicast LID.
        @param ingress: the port that its packet came in by.
        @return: the ports that it leaves by, never the one it came in by; 0 is the switch itself.
        """
        index, top = lid - FIRST_MULTICAST_LID, self.multicastTop
        known = 0 <= index < len(self.multicast) and not 0 < top < lid
        mask = self.multicast[index] if known else 0
        if not mask:
            # IBTA vol. 1 18.2.4.3.3: the default ports, of which 0 is none.
            default = self.defaultPrimary if ingress != self.defaultPrimary else self.defaultNotPrimary
            mask = 1 << default if default else 0
        return [port for port in range(mask.bit_length()) if mask >> port & 1 and port != ingress]
