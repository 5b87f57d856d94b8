"""
Output of C{ib-perf}: a table like perftest's, or JSON.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from twisted_ib.hca.device.form import compiledModules
from twisted_ib.tools.machine import form
from twisted_ib.tools.perf.method import Test
from twisted_ib.tools.perf.parameters import Parameters
from twisted_ib.tools.perf.runs import Latency

# perftest's column names, in 80 columns.  Its MB/sec are 2^20 bytes (perftest_parameters.c format_factor);
# these are 10^6.
_COLUMNS = ("#bytes", "#iterations", "p50[usec]", "p99[usec]", "p99.9[usec]", "BW[MB/sec]", "MsgRate[/s]")
_LINE = "{:>8} {:>11} {:>10} {:>10} {:>11} {:>11} {:>12}"


@frozen
class Bandwidth:
    """
    The bandwidth measured.

    @ivar bytes: Payload of all C{messages}.
    @ivar seconds: From the first message sent to the last one received.
    """

    messages: int
    bytes: int
    seconds: float

    @property
    def megabytes(self) -> float:
        """
        Millions of bytes per second.
        """
        return self.bytes / self.seconds / 1e6

    @property
    def rate(self) -> float:
        """
        Messages per second.
        """
        return self.messages / self.seconds


@frozen
class Row:
    """
    The results of one message size.

    @ivar size: Bytes of a message.
    @ivar latency: Of messages sent one after the other.
    @ivar bandwidth: Of messages sent as fast as possible.
    """

    size: int
    latency: Latency
    bandwidth: Bandwidth

    def line(self) -> str:
        """
        Return the line of the table; times in microseconds.
        """
        times = [f"{time / 1e3:.2f}" for time in (self.latency.p50, self.latency.p99, self.latency.p999)]
        speed = self.bandwidth
        return _LINE.format(
            self.size, self.latency.count, *times, f"{speed.megabytes:.2f}", f"{speed.rate:.0f}"
        )

    def json(self) -> dict[str, Any]:
        """
        Return the results as JSON values; times in microseconds.
        """
        latency, speed = self.latency, self.bandwidth
        return {
            "bytes": self.size,
            "latency": {
                "messages": latency.count,
                "min_usec": latency.minimum / 1e3,
                "p50_usec": latency.p50 / 1e3,
                "p99_usec": latency.p99 / 1e3,
                "p99_9_usec": latency.p999 / 1e3,
                "max_usec": latency.maximum / 1e3,
            },
            "bandwidth": {
                "messages": speed.messages,
                "bytes": speed.bytes,
                "seconds": speed.seconds,
                "MB_per_sec": speed.megabytes,
                "messages_per_sec": speed.rate,
            },
        }


def heading(test: Test, terms: Parameters, device: str | None) -> str:
    """
    Return the lines above the table.

    @param device: The HCA's name; L{None} if the test uses none.
    """
    length = f"{terms.iterations} messages" if terms.seconds is None else f"{terms.seconds:g} s"
    what = "connections" if device is None else "queue pairs"
    where = "" if device is None else f"device {device}, "
    return "\n".join(
        (
            f"ib-perf {test.name}: {where}{what} {terms.queuePairs}, {length} for each number",
            f"latency is of {test.latencyOf}",
            f"this end runs {form()}",
            _LINE.format(*_COLUMNS),
        )
    )


def described(test: Test, terms: Parameters, device: str | None) -> dict[str, Any]:
    """
    Return the parameters as JSON values.

    @param device: The HCA's name; L{None} if the test uses none.
    """
    return {
        "test": test.name,
        "device": device,
        "queue_pairs": terms.queuePairs,
        "iterations": terms.iterations,
        "seconds": terms.seconds,
        "latency_of": test.latencyOf,
        "compiled": compiledModules(),
    }
