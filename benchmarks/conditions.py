"""
The source of the figures: the machine, its software, and its other load.
"""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from twisted_ib.tools.machine import describe as describeMachine
from twisted_ib.tools.machine import ofFile, versionOf

_ROOT = Path(__file__).resolve().parent.parent
#: Packages whose versions matter.
_PACKAGES = ("twisted", "isal", "uvloop", "pyzmq", "iceoryx2")


def describe() -> dict[str, object]:
    """
    @return: facts of this machine, by name.
    """
    found = describeMachine()
    return {
        "CPU": found["CPU"],
        "CPUs": int(found["CPUs"]),
        "caches": _caches(),
        "memory": ofFile("/proc/meminfo", "MemTotal"),
        "kernel": found["kernel"],
        "virtual": "hypervisor" in ofFile("/proc/cpuinfo", "flags").split(),
        "python": found["Python"],
        **{name: versionOf(name) for name in _PACKAGES},
        "commit": _commit(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load average": round(os.getloadavg()[0], 2),
    }


def inWords(machine: dict[str, object]) -> str:
    """
    One line of what L{describe} has found.
    """
    virtual = ", virtual" if machine["virtual"] else ""
    caches = f", {machine['caches']}" if machine["caches"] else ""
    packages = "".join(f", {name} {machine[name]}" for name in _PACKAGES if machine[name])
    return (
        f"{machine['CPU']}, {machine['CPUs']} CPUs{virtual}{caches}, {machine['memory']};"
        f" {machine['kernel']};"
        f" {machine['python']}{packages}; commit {machine['commit'] or 'unknown'}; {machine['time']};"
        f" load average {machine['load average']} before"
    )


def _caches() -> str:
    """
    The sizes of a CPU's second and third level: they decide whether two copies of a message are one read of
    memory or two.
    """
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, size = ((index / name).read_text().strip() for name in ("level", "size"))
        except OSError:
            # Some virtual machines have the folder without them.
            continue
        if level in ("2", "3"):
            found.append(f"L{level} {size}")
    return ", ".join(found)


def _commit() -> str:
    """
    The commit that is measured, C{+} if files differ from it; nothing without git.
    """
    git = ["git", "-C", str(_ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True
        )
    except OSError:
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
