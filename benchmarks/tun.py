"""
TCP of any program over IPoIB, beside TCP over the loopback interface: iperf3 in both, in interleaved rounds.

C{python -m benchmarks.tun [--device shm0] [--rounds 5] [--seconds 3] [--tun NODE]}; it needs iperf3 and ping.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from twisted_ib.ipoib.tun import NODE

SERVER, CLIENT = "10.9.0.1", "10.9.0.2"
#: How long a round may take besides its seconds.
PATIENCE_SECONDS = 30.0
#: The ratios that are aimed at, of the rate over the loopback interface.
TARGETS = {"connected": 0.4, "datagram": 0.25}


@contextmanager
def serving(prefix: Sequence[str]) -> Iterator[None]:
    """
    Have iperf3 serve one client.

    @param prefix: the command that runs it.
    """
    server = subprocess.Popen([*prefix, "iperf3", "--server", "--one-off"], stdout=subprocess.DEVNULL)
    try:
        yield
        server.wait(PATIENCE_SECONDS)
    finally:
        server.kill()
        server.wait()


def rate(prefixes: Sequence[Sequence[str]], address: str, seconds: float) -> float:
    """
    @param prefixes: the commands that run the server's and the client's iperf3.
    @return: MB/s that arrived.
    """
    # The server may just be starting, and so may its host.
    script = f"for i in $(seq 100); do iperf3 -c {address} -t {seconds:g} -J > $0 && break; sleep 0.1; done"
    with tempfile.NamedTemporaryFile() as result, serving(prefixes[0]):
        subprocess.run(
            [*prefixes[1], "sh", "-c", script, result.name], check=True, timeout=seconds + PATIENCE_SECONDS
        )
        received = json.load(result)["end"]["sum_received"]
    return float(received["bits_per_second"]) / 8e6


def hosts(options: argparse.Namespace, mode: str) -> list[list[str]]:
    """
    @return: the commands that run programs in the server's and in the client's network.
    """
    tool = [sys.executable, "-m", "twisted_ib.tools.ipoib", "run", options.device, f"--tun={options.tun}"]
    return [[*tool, f"--mode={mode}", f"{address}/24", "--"] for address in (SERVER, CLIENT)]


def main() -> None:
    """
    Measure, and print a table.
    """
    parser = argparse.ArgumentParser(description="iperf3 over IPoIB and over the loopback interface.")
    parser.add_argument("--device", default="shm0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--tun", default=NODE, metavar="NODE")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {"loopback": [], **{mode: [] for mode in TARGETS}}
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TWISTED_IB_RUN_DIR"] = directory
        for _ in range(options.rounds):
            rates["loopback"].append(rate(([], []), "127.0.0.1", options.seconds))
            for mode in TARGETS:
                rates[mode].append(rate(hosts(options, mode), SERVER, options.seconds))
    print(f"iperf3, one TCP connection, median of {options.rounds} rounds; load {os.getloadavg()[0]:.1f}")
    for name, found in rates.items():
        ratios = [one / other for one, other in zip(found, rates["loopback"], strict=True)]
        aimed = f", aimed at {TARGETS[name]:g}" if name in TARGETS else ""
        print(f"  {name:<10}{median(found):8.0f} MB/s{median(ratios):8.2f} of loopback{aimed}")


if __name__ == "__main__":
    main()
