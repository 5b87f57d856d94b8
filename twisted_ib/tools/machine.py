"""
The origin of a measurement's figures: the machine and its software.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from twisted_ib.hca.device.form import compiledModules
from twisted_ib.hca.device.registry import DEVICES

#: Where the kernel has adapters, and files with facts of one.
ADAPTERS = "/sys/class/infiniband"
_PORT = "ports/1"
_OF_PORT = (f"{_PORT}/{name}" for name in ("link_layer", "rate", "state"))
_FACTS = ("hca_type", "board_id", "fw_ver", "node_type", *_OF_PORT)


def describe() -> dict[str, str]:
    """
    @return: facts by name; those that cannot be found out are empty.
    """
    return {
        "CPU": ofFile("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "CPUs": str(len(os.sched_getaffinity(0))),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "Twisted": versionOf("twisted"),
        "uvloop": versionOf("uvloop"),
        "twisted_ib": versionOf("twisted-ib"),
        "form": form(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def adapterOf(device: str) -> str:
    """
    @return: what the kernel tells of the adapter that a device stands for: its name, the driver, the model,
        the board, the firmware and the kind, and of its port the link, the rate and the state; C{""} if it
        stands for none.
    """
    kind, adapter, _ = DEVICES.get(device, (None, None, None))
    if kind is None or kind.locate is None or adapter is None:
        return ""
    folder = Path(ADAPTERS) / adapter
    # An adapter of software has no driver of its own.
    driver = folder / "device/driver"
    said = [adapter, driver.resolve().name if driver.exists() else ""]
    for name in _FACTS:
        try:
            said.append((folder / name).read_text().strip())
        except OSError:
            pass
    return ", ".join(filter(None, said))


def form() -> str:
    """
    @return: how many of the modules that this process has imported are compiled, in words.
    """
    count = len(compiledModules())
    return f"{count} compiled modules" if count else "pure Python"


def ofFile(path: str, name: str) -> str:
    """
    @return: the first value of that name in a file of the kernel's; C{""} if there is none.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def versionOf(package: str) -> str:
    """
    @return: the version of a package; C{""} if it is not installed.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
