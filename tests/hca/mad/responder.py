"""
A process with an HCA on shared memory and the agents of toy classes: C{python -m tests.hca.mad.responder}.

It prints its GUID, and serves until it is killed.
"""

from __future__ import annotations

import select

from tests.hca.hcas import turn
from tests.hca.mad.toys.echo import EchoAgent
from tests.hca.mad.toys.table import TableAgent
from twisted_ib.hca.device.device import Device


def main() -> None:
    """
    Serve.
    """
    device = Device("shm0")
    EchoAgent(device)
    TableAgent(device)
    print(device.guid, flush=True)
    while True:
        if not turn(device) and device.arm():
            select.select([device.fabric.fileno()], [], [], 1.0)


if __name__ == "__main__":
    main()
