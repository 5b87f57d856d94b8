"""
TCP of programs that know nothing of InfiniBand: iperf3, ssh and scp.
"""

from __future__ import annotations

import json
from hashlib import sha256

from tests.support.waiting import HANG_SECONDS
from tests.tun.lab import TunTestCase

SECONDS = 30
COPIED_BYTES = 100_000_000


class StreamTests(TunTestCase):
    """
    Between two hosts.
    """

    def test_iperf(self) -> None:
        """
        iperf3 for 30 seconds, without an error.
        """
        first, second = self.pair()
        first.begin("iperf3 --server --one-off")
        # With -J the status of iperf3 3.12 is 0 when it is refused, too.
        client = f"iperf3 -c 10.9.0.1 -t {SECONDS} -J > result; ! grep -q '\"error\"' result"
        second.retry(f"{{ {client}; }}", 2 * HANG_SECONDS)
        first.outcome()
        received = json.loads(second.do("cat result"))["end"]["sum_received"]
        self.assertGreater(received["bytes"], 0)
        self.assertGreaterEqual(received["seconds"], SECONDS - 1)
        print(f"{self.device}: {received['bits_per_second'] / 8e6:.0f} MB/s", end=" ")

    def test_ssh(self) -> None:
        """
        A login by ssh, and 100 MB by scp: the hashes are equal.
        """
        first, second = self.pair()
        for name in ("host", "id"):
            second.do(f"ssh-keygen -q -t ed25519 -N '' -f {self.home}/{name}")
        second.do("cp id.pub authorized_keys; mkdir -m 700 .ssh; chmod 600 authorized_keys")
        options = (
            f"-o AuthorizedKeysFile={self.home}/authorized_keys -o UsePAM=no -o StrictModes=no"
            " -o PidFile=none -o 'Subsystem=sftp internal-sftp'"
        )
        first.begin(
            f"$(command -v sshd) -D -e -f /dev/null -p 2222 -h {self.home}/host {options} & "
            "while [ -e id -a ! -e done ]; do sleep 0.1; done; kill $!; wait"
        )
        known = "-i id -o StrictHostKeyChecking=no -o UserKnownHostsFile=known -o LogLevel=ERROR"
        said = second.retry(f"ssh {known} -p 2222 10.9.0.1 'echo $SSH_CONNECTION'")
        self.assertEqual(said.split()[-4::2], ["10.9.0.2", "10.9.0.1"])
        second.do(f"head -c {COPIED_BYTES} /dev/urandom > sent")
        second.do(f"scp {known} -P 2222 sent 10.9.0.1:received", 2 * HANG_SECONDS)
        sent, received = ((self.home / name).read_bytes() for name in ("sent", "received"))
        self.assertEqual(len(received), COPIED_BYTES)
        self.assertEqual(sha256(received).digest(), sha256(sent).digest())
        second.do("echo > done")
        # sshd is in a session of its own: its shell ends it.
        first.outcome()


class SubnetStreamTests(StreamTests):
    """
    The same on a subnet.
    """

    device = "ib0"
