"""
Strangers: forged requests for what has an address of this host, from thousands of others of the host.
"""

from __future__ import annotations

import select
import sys
import time

from tests.processes.programs.flooded import PORT
from tests.soak.test_flooded import CLIENT, MADE, FloodedTestCase


class _Strangers(FloodedTestCase):
    # Only what makes and sends them is used.

    def __init__(self, address: str) -> None:
        super().__init__()
        self.addresses = CLIENT, address

    def runTest(self) -> None:
        raise NotImplementedError


def main() -> None:
    """
    Send them to the address and so many a second, of the command line, until the input ends; then print how
    many a second it were.
    """
    address, rate = sys.argv[1], int(sys.argv[2])
    strangers = _Strangers(address)
    # On Linux too each one for a port that a program listens to would be one of those that it waits for.
    forger = strangers.forger(PORT)
    packets = [forger.forged() for _ in range(MADE)]
    print("ready", flush=True)
    begin, sent = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], max(0.0, begin + sent / rate - time.monotonic()))[0]:
        sent = strangers.send(packets, sent)
    print(int(sent / (time.monotonic() - begin)))
