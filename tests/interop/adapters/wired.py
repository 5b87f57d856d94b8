"""
Two adapters of the guest, both ends in one process: what goes between them is on the network of the lab.
"""

from __future__ import annotations

from tests.interop.adapters import rxe
from tests.interop.adapters.rxe import GUESTS, NAMESPACE
from tests.interop.adapters.siw import SIWMixin

#: The device of the second adapter, and that by its kind.
OTHERS, OTHER = "hw1", "{kind}1"
#: Where its card counts frames; and of how many each way there are more.
_COUNTED, FRAMES = "/sys/class/net/eth1/statistics", 1000
#: Each card asks for the address of the other, and answers for its own; the kernel, which has both, takes
#: what it sends from one to the other for no loopback, and looks for a connection's card there, too.
_APART = f"""
    set -e
    if [ -e /run/netns/{NAMESPACE} ]; then
        ip -n {NAMESPACE} link set eth1 netns 1
        ip netns del {NAMESPACE}
    fi
    ip addr replace {{other}}/24 dev eth1
    ip link set eth1 mtu {{mtu}} up
    for each in all eth0 eth1; do
        cd /proc/sys/net/ipv4/conf/$each
        echo 1 > accept_local; echo 0 > rp_filter; echo 1 > arp_ignore; echo 2 > arp_announce
    done
    ip route replace table 100 {{other}} dev eth0
    ip route replace table 101 {{own}} dev eth1
    for each in lo eth0; do ip rule add pref 5 iif $each from {{own}} to {{other}} lookup 100; done
    for each in lo eth1; do ip rule add pref 5 iif $each from {{other}} to {{own}} lookup 101; done
    ip rule add pref 10 lookup local
    ip rule del pref 0
    rdma link add {{adapter}} type {{kind}} netdev eth1
"""
#: As it was.
_TOGETHER = """
    rdma link del {adapter}
    ip rule add pref 0 lookup local
    ip rule del pref 10
    while ip rule del pref 5 2> /dev/null; do :; done
    for each in all eth0 eth1; do
        cd /proc/sys/net/ipv4/conf/$each
        echo 0 > accept_local; echo 0 > arp_ignore; echo 0 > arp_announce
    done
    ip addr flush dev eth1
    ip link set eth1 down
"""


class WiredStreamsTests(rxe.StreamsTests):
    """
    The second adapter asks.
    """

    def setUp(self) -> None:
        """
        The guest has it.
        """
        super().setUp()
        kind = self.peer.value[1]
        self.adapter = OTHER.format(kind=kind)
        self.addCleanup(self.guest.run, _TOGETHER.format(adapter=self.adapter))
        addresses = {"own": self.there, "other": self.other}
        self.guest.must(_APART.format(adapter=self.adapter, kind=kind, mtu=self.mtu, **addresses))

    def frames(self) -> list[int]:
        """
        @return: how many the second card has got, and how many it has sent.
        """
        return [int(each) for each in self.guest.must(f"cd {_COUNTED} && cat rx_packets tx_packets").split()]

    def test_contract(self) -> None:
        """
        All pass, and none is left out that is not elsewhere; and what they exchange goes from card to card.
        """
        before = self.frames()
        self.contract(GUESTS, self.there, OTHERS, f"hardware:{self.adapter}")
        counts = [after - each for each, after in zip(before, self.frames(), strict=True)]
        self.assertGreater(min(counts), FRAMES, counts)


class SIWWiredStreamsTests(SIWMixin, WiredStreamsTests):
    """
    The same over siw.
    """
