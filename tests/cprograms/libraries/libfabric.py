"""
libfabric: C{fi_pingpong} on each provider over verbs, with data that it checks.
"""

from __future__ import annotations

from tests.cprograms.programs import Program


def _pingpong(name: str, provider: str, endpoint: str) -> Program:
    command = f"fi_pingpong -p {provider} -e {endpoint} -c"
    server, client = f"{command} -B {{port}}", f"{command} -P {{port}} {{server}}"
    return Program(name, server, client, "libfabric-bin", "MB/sec", isOverTCP=True)


#: Connections: the provider leaves the loopback interface out, so that addresses of others are needed.
CONNECTED = (_pingpong("msg", "verbs", "msg"), _pingpong("rxm", "verbs;ofi_rxm", "rdm"))
#: Datagrams, which iWARP has not.
DATAGRAMS = (_pingpong("dgram", "verbs", "dgram"), _pingpong("rxd", "verbs;ofi_rxd", "rdm"))

__all__ = ["CONNECTED", "DATAGRAMS"]
