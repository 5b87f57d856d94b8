"""
IP multicast: programs join groups with setsockopt(2), and get each datagram once.
"""

from __future__ import annotations

from tests.tun.lab import Host, TunTestCase

COUNT = 200
GROUPS = ("239.1.2.3", "ff15::1234")

#: Joins a group, says when its datagrams arrive, and counts them until the last: how many there were, and how
#: many different ones.
_RECEIVER = """
import socket, struct, sys
group, port = sys.argv[1], 5555
v6 = ":" in group
s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", port))
index = struct.pack("=I", socket.if_nametoindex(sys.argv[2]))
if v6:
    s.setsockopt(41, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, group) + index)
else:
    s.setsockopt(0, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + bytes(4))
s.settimeout(float(sys.argv[3]))
seen = []
try:
    while True:
        data = s.recv(2000)
        if data == b"end":
            break
        if data == b"probe":
            open(sys.argv[4], "w").close()
        else:
            seen.append(data)
except socket.timeout:
    pass
print(len(seen), len(set(seen)))
"""
#: Sends numbered datagrams, once all receivers have had some that only try whether the group is there, and
#: counts those that come back to this host.
_SENDER = """
import os, socket, struct, sys, time
group, name, count, *joined = sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
v6 = ":" in group
s, own = (socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
own.bind(("", 5555))
if v6:
    index = struct.pack("=I", socket.if_nametoindex(name))
    own.setsockopt(41, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, group) + index)
    s.setsockopt(41, socket.IPV6_MULTICAST_IF, index)
    s.setsockopt(41, socket.IPV6_MULTICAST_LOOP, 0)
else:
    own.setsockopt(0, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + bytes(4))
    s.setsockopt(0, socket.IP_MULTICAST_LOOP, 0)
to = (group, 5555)
while not all(map(os.path.exists, joined)):
    s.sendto(b"probe", to)
    time.sleep(0.2)
for number in range(count):
    s.sendto(b"%d" % number, to)
    time.sleep(0.001)
for _ in range(3):
    time.sleep(0.2)
    s.sendto(b"end", to)
own.settimeout(0.5)
try:
    print("came back:", own.recv(2000))
except socket.timeout:
    print("nothing")
"""


class MulticastTests(TunTestCase):
    """
    One sender, and 1, 3 and 10 receivers.
    """

    def check(self, number: int) -> None:
        """
        @param number: of receivers.
        """
        for name, text in (("receive.py", _RECEIVER), ("send.py", _SENDER)):
            (self.home / name).write_text(text)
        sender = self.host("10.9.0.1/24")
        receivers = [self.host(f"10.9.0.{n + 2}/24") for n in range(number)]
        for group in GROUPS:
            self._send(group, sender, receivers)

    def _send(self, group: str, sender: Host, receivers: list[Host]) -> None:
        common = f"{group} {self.device}"
        sender.do("rm -f joined*")
        for each, host in enumerate(receivers):
            host.begin(f"{self.python} receive.py {common} 60 joined{each}")
        joined = " ".join(f"joined{each}" for each in range(len(receivers)))
        self.assertEqual(sender.do(f"{self.python} send.py {common} {COUNT} {joined}"), "nothing\n")
        for host in receivers:
            self.assertEqual(host.outcome(), (0, f"{COUNT} {COUNT}\n"))

    def test_one(self) -> None:
        """
        One receiver has each datagram once, the sender none.
        """
        self.check(1)

    def test_three(self) -> None:
        """
        Three receivers.
        """
        self.check(3)

    def test_ten(self) -> None:
        """
        Ten receivers.
        """
        self.check(10)


class SubnetMulticastTests(MulticastTests):
    """
    The same on a subnet, whose switches copy.
    """

    device = "ib0"
