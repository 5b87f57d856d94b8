"""
An SMP that an agent answers, and what answers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from attrs import define, field

from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.wire.mad.mad import INVALID_ATTRIBUTE_VALUE
from twisted_ib.subnet.network.graph import Change, Node, Port
from twisted_ib.subnet.network.switch import Switch

#: Bits of a port number.
PORT_NUMBER: Final = 0xFF


@define
class Request:
    """
    @ivar arrival: the port that it came in by, and C{end} the one that has the LID.
    @ivar key: its M_Key.
    @ivar isSet: whether it is a Set.
    @ivar data: the octets of its attribute.
    @ivar status: of the response.
    @ivar rerouted: whether a forwarding table changed.
    @ivar reregister: whether clients of the port are asked to register again.
    """

    arrival: Port
    end: Port
    modifier: int
    key: int
    isSet: bool
    data: bytes
    status: int = 0
    rerouted: bool = False
    reregister: bool = False
    changes: list[Change] = field(factory=list)

    @property
    def node(self) -> Node:
        """
        The node that it is for.
        """
        return self.arrival.node

    @property
    def switch(self) -> Switch:
        """
        The tables of a switch, for attributes that other nodes do not have.
        """
        switch = self.node.switch
        assert switch is not None
        return switch

    def invalid(self) -> None:
        """
        Its modifier, or a field of its attribute, has an invalid value.
        """
        self.status = INVALID_ATTRIBUTE_VALUE

    def port(self, number: int) -> Port | None:
        """
        The port with a table.

        @param number: of a switch's port; a CA has one table, of the port of arrival.
        """
        return self.node.port(number) if self.node.switch is not None else self.arrival

    def changed(self, port: Port) -> None:
        """
        Note a change of a port.
        """
        self.changes.append(Change(port))


class Row(NamedTuple):
    """
    An attribute.

    @ivar get: the attribute as it is, or L{None} if the modifier is out of range.
    @ivar set: writes it; then it is got.
    @ivar onlySwitch: whether other nodes do not have it.
    """

    get: Callable[[Request], Attribute | None]
    set: Callable[[Request], None] | None = None
    onlySwitch: bool = False
