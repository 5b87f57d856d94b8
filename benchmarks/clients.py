"""
Times, buffers and limits that every kind of process here has alike.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

from twisted_ib.tools.compare.measuring import ContentError, Figures, pattern, percentile

#: Distinct buffers of the cold source.
COLD_BUFFERS = 128
#: The pause before each round trip that finds both ends asleep.
SPACE_SECONDS = 0.003


def chunksOf(size: int, isCold: bool) -> list[bytes]:
    """
    The buffers that a stream writes in turn: one buffer, or so many that no cache holds them.

    @param size: Bytes of each.
    """
    chunk = pattern(size)
    if not isCold:
        return [chunk]
    return [number.to_bytes(4, "big") + chunk[4:] for number in range(COLD_BUFFERS)]


def latencies(times: list[int]) -> Figures:
    """
    Percentiles in microseconds.

    @param times: Nanoseconds, in any order.
    """
    times.sort()
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    figures = {name: percentile(times, share) / 1e3 for name, share in shares.items()}
    return figures | {"count": float(len(times))}


def manyDescriptors() -> None:
    """
    Let this process open as many files as it may: 10,000 connections of TCP are as many.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def answerRows(run: Callable[[dict[str, Any]], Mapping[str, object]]) -> None:
    """
    A client without Twisted: run the rows that come on standard input, a JSON object a line, and answer each
    on standard output.

    @param run: gives the figures of a row.
    """
    print('{"ready": true}', flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            figures: dict[str, object] = dict(run(command))
        except (OSError, ValueError, ContentError) as error:
            figures = {"error": str(error)}
        print(json.dumps(figures), flush=True)
