"""
Results that were not measured.
"""

from __future__ import annotations

from twisted_ib.tools.compare.results import Results, compared
from twisted_ib.tools.compare.subjects import MEASURES, PLACEMENTS, Row

#: Two subjects in two rows, of which the second has one of them only.
RESULTS = Results(
    machine={
        "CPU": "Some CPU",
        "CPUs": "2",
        "kernel": "Linux 6",
        "Python": "CPython <3> & more",
        "Twisted": "26.10.0",
        "uvloop": "",
        "twisted_ib": "0.1.0",
        "form": "pure Python",
        "load": "0.1",
    },
    rounds=5,
    seconds=0.03,
    titles={"tcp-nodelay": "TCP, NODELAY", "sdp": "sdp:"},
    ours=frozenset({"sdp"}),
    baseline="tcp-nodelay",
    rows={
        Row(PLACEMENTS[0], MEASURES[0], 64): compared(
            {"tcp-nodelay": [60.0, 50.0, 70.0, 60.0, 60.0], "sdp": [6.0, 5.0, 900.0, 6.0, 6.0]},
            "tcp-nodelay",
            True,
        ),
        Row(PLACEMENTS[1], MEASURES[1], 65536): compared(
            {"tcp-nodelay": [1000.0, 1100.0, 1200.0, 1100.0, 1100.0]}, "tcp-nodelay", False
        ),
    },
    absent={"uvloop": "uvloop is not installed"},
)
