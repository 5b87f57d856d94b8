"""
uDAPL: C{dtest} of libdapl2, both roles.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from attrs import evolve

from tests.cprograms.lab import Here, Lab
from tests.cprograms.programs import Program

#: Of dat.conf(5): the provider of librdmacm, at a side's address.
_ENTRY = 'ofa-v2-lo u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "{} 0" ""\n'
#: Lengths of the messages that L{tests.cprograms.repeat} tries: 1 octet to 1 MiB.
SIZES = tuple(1 << bits for bits in range(21))


def program(options: str = "-b 4096") -> Program:
    """
    @param options: C{-b} and the octets of a message; C{-D} for its check of the data, in which each side
        polls the last octet of an RDMA WRITE, and then looks at all of it.
    """
    command = f"dtest -P ofa-v2-lo -B 10 {options}"
    return Program(
        *("dtest", command, f"{command} -h {{server}}", "dapl2-utils"),
        said="DAPL Test Complete. PASSED",
        ready="Server is waiting",
    )


def runDAPL(*sides: Here, options: str = "-b 4096") -> None:
    """
    Messages, RDMA WRITEs and READs between endpoints.

    @param sides: where its server runs, and its client.
    @param options: as of L{program}.
    @raise LabError: it did not do what it should.
    """
    with tempfile.TemporaryDirectory() as directory:
        configured = []
        for side in sides:
            file = Path(directory) / f"{len(configured)}.conf"
            file.write_text(_ENTRY.format(side.address))
            prefix = *side.prefix, "env", f"DAT_OVERRIDE={file}"
            configured.append(evolve(side, prefix=prefix))
        Lab(*configured).run(program(options))
