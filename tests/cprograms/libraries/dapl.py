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
_COMMAND = "dtest -P ofa-v2-lo -B 10 -b 4096"
PROGRAM = Program(
    *("dtest", _COMMAND, f"{_COMMAND} -h {{server}}", "dapl2-utils"),
    said="DAPL Test Complete. PASSED",
    ready="Server is waiting",
)


def runDAPL(*sides: Here) -> None:
    """
    Messages, RDMA WRITEs and READs between endpoints.

    @param sides: where its server runs, and its client.
    @raise LabError: it did not do what it should.
    """
    with tempfile.TemporaryDirectory() as directory:
        configured = []
        for side in sides:
            file = Path(directory) / f"{len(configured)}.conf"
            file.write_text(_ENTRY.format(side.address))
            prefix = *side.prefix, "env", f"DAT_OVERRIDE={file}"
            configured.append(evolve(side, prefix=prefix))
        Lab(*configured).run(PROGRAM)


__all__ = ["PROGRAM", "runDAPL"]
