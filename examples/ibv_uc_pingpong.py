"""
Ping-pong over an unreliable connection (UC), as rdma-core's C{ibv_uc_pingpong}.

    python ibv_uc_pingpong.py               the server, in one terminal
    python ibv_uc_pingpong.py localhost     the client, in another

The same as C{ibv_rc_pingpong.py}, but nothing is acknowledged and nothing is sent again: a message that
meets no receive is lost, and the two wait for each other for ever.  So the connection has no timeouts.
"""

from __future__ import annotations

from ibv_rc_pingpong import PingPong
from pingpong import MTUS, main, optionsOf
from rendezvous import Address

from twisted_ib.verbs.pyverbs import QPAttr, enums


class UnreliablePingPong(PingPong):
    """One side."""

    kind = enums.IBV_QPT_UC

    def attributes(self, mine: Address, theirs: Address) -> QPAttr:
        """What a queue pair has to know to be connected with another."""
        attr = QPAttr(port_num=self.options.ib_port, path_mtu=MTUS[self.options.mtu])
        attr.ah_attr, attr.dest_qp_num = theirs.route(self.options), theirs.qpn
        attr.rq_psn, attr.sq_psn = theirs.psn, mine.psn
        return attr


if __name__ == "__main__":
    main(UnreliablePingPong, optionsOf("Ping-pong over an unreliable connection."))
