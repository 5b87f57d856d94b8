"""
Work requests of 64 bytes with the names of verbs, between two queue pairs of one process, as rows of the
comparison: C{python -m benchmarks.verbs}.

A server has nothing to do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from benchmarks.clients import answerRows, latencies
from benchmarks.verbssteps import Pair
from twisted_ib.tools.compare.measuring import Figures

#: Requests before those that count.
_WARM = 200


def _send(both: Pair) -> int:
    both.two.qp.post_recv(both.receive())
    begun = perf_counter_ns()
    both.one.qp.post_send(both.send())
    posted = perf_counter_ns()
    both.two.polled()
    taken = perf_counter_ns()
    both.one.polled()
    return posted - begun + perf_counter_ns() - taken


def _write(both: Pair) -> int:
    begun = perf_counter_ns()
    both.one.qp.post_send(both.write())
    posted = perf_counter_ns()
    both.two.cq.poll(1)
    taken = perf_counter_ns()
    both.one.polled()
    return posted - begun + perf_counter_ns() - taken


#: Each makes a request, posts it, has the other end take it, and polls for its completion.
WORKLOADS: dict[str, Callable[[Pair], int]] = {"send": _send, "write": _write}


def measure(device: str, command: dict[str, Any]) -> Figures:
    """
    One request after the other.

    @return: percentiles of the time that one takes without the other end's part.
    """
    one = WORKLOADS[command["workload"]]
    both = Pair(device)
    try:
        for _ in range(_WARM):
            one(both)
        end, times = perf_counter_ns() + round(command["seconds"] * 1e9), []
        while perf_counter_ns() < end:
            times.append(one(both))
        return latencies(times)
    finally:
        both.close()


def main(arguments: list[str]) -> None:
    """
    C{verbs (server|client) "" "verbs DEVICE" NODELAY}
    """
    role, _, words, _ = arguments
    if role == "server":
        print("{}", flush=True)
        sys.stdin.read()
    else:
        answerRows(lambda command: measure(words.split()[1], command))


if __name__ == "__main__":
    main(sys.argv[1:])
