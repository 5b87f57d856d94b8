"""
UCX: C{ucx_perftest} over its two transports on verbs.
"""

from __future__ import annotations

from attrs import evolve

from tests.cprograms.lab import Here, Lab
from tests.cprograms.programs import Program

#: Of C{ucx_perftest}: all on its protocols.
_TESTS = (
    *(
        "tag_lat",
        "tag_bw",
        "tag_sync_lat",
        "tag_sync_bw",
        "stream_bw",
        "stream_lat",
        "ucp_am_lat",
        "ucp_am_bw",
    ),
    *("ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"),
)
_COMMAND = "ucx_perftest -p {port}"


def _program(test: str) -> Program:
    client = f"{_COMMAND} {{server}} -t {test} -n 100 -w 10 -s 8"
    return Program(test, _COMMAND, client, "ucx-utils", "Final:", isOverTCP=True)


PROGRAMS = tuple(_program(test) for test in _TESTS)
#: Each with UCX's own loopback: a connection is made by datagrams, and goes on by them in the second.
TRANSPORTS = ("rc,self", "ud,self")


def runUCX(program: Program, transport: str, *sides: Here) -> None:
    """
    Run a test once.

    @param transport: one of L{TRANSPORTS}.
    @param sides: where its server runs, and its client.
    @raise LabError: it did not do what it should.
    """
    told = (
        evolve(
            side,
            prefix=(*side.prefix, "env", f"UCX_TLS={transport}", f"UCX_NET_DEVICES={side.device}:1"),
        )
        for side in sides
    )
    Lab(*told).run(program)


__all__ = ["PROGRAMS", "TRANSPORTS", "runUCX"]
