"""
The files C{/dev/infiniband/issmN}: a port has a subnet manager while one of them is open.

The file is one in memory; inotify(7) tells when the program opens and closes it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from threading import Thread
from typing import Final

from _twisted_ib_umad import ffi, lib

from twisted_ib.errors import HCAError
from twisted_ib.hca.base.traits import Peers
from twisted_ib.hca.device.device import Device
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.core.hub import hub

#: Octets of events that are read at once: inotify(7) C{struct inotify_event} without a name.
_EVENTS: Final = 64 * 16

#: By the device, and there is one thread for each.
_paths: dict[Device, str] = {}


def issmPath(device: Device) -> str:
    """
    @return: the path of a device's file, for this process.
    @raise HandleError: its port has no subnet manager (EINVAL).
    @raise OSError: no descriptor is free.
    """
    if device.traits.peers is not Peers.SUBNET:
        raise HandleError(f"{device.name} is in no subnet")
    with hub:
        if device not in _paths:
            file = os.memfd_create("issm")
            path = f"/proc/self/fd/{file}"
            watch = lib.inotify_init1(lib.IN_CLOEXEC)
            mask = lib.IN_OPEN | lib.IN_CLOSE_WRITE | lib.IN_CLOSE_NOWRITE
            if watch < 0 or lib.inotify_add_watch(watch, path.encode(), mask) < 0:
                number = ffi.errno
                os.close(file)
                if watch >= 0:
                    os.close(watch)
                raise OSError(number, "inotify")
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                Thread(target=_follow, args=(device, watch, file), name="issm", daemon=True).start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _paths[device] = path
        return _paths[device]


def _follow(device: Device, watch: int, file: int) -> None:
    while os.read(watch, _EVENTS):
        isOpen = _isOpen(file)
        # A host that ends just now: the next one is told.
        with hub, suppress(HCAError):
            device.fabric.setSM(isOpen)


def _isOpen(file: int) -> bool:
    # inotify(7): events that are the same may be one, so opens cannot be counted.
    its = os.fstat(file)
    for name in os.listdir("/proc/self/fd"):
        # Closed meanwhile.
        with suppress(OSError):
            if int(name) != file and os.path.samestat(os.stat(int(name)), its):
                return True
    return False
