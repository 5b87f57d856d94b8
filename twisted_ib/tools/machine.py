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
    @return: what the kernel tells of the adapter that a device stands for; C{""} if it stands for none.
    """
    kind, adapter, _ = DEVICES.get(device, (None, None, None))
    if kind is None or kind.locate is None or adapter is None:
        return ""
    from twisted_ib.hca.fabric.hardware.adapters import factsOf

    return factsOf(adapter)


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
