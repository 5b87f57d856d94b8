"""
The row of C{ib}: the fabric of a subnet's ports, which adds itself to those of the adapter.

C{ib0}, C{ib1} and so on are attached to the subnet that their thread hosts
(L{twisted_ib.subnet.hosting.ofthread}), or to that of the run directory.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted_ib.errors import DeviceError
from twisted_ib.hca.base.traits import SUBNET
from twisted_ib.hca.device.registry import FABRICS, FabricKind, addFabric, numbered
from twisted_ib.hca.fabric.base.neighbours import ofThisThread as neighboursOf

if TYPE_CHECKING:
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.fabric.base.neighbours import Neighbours
    from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
    from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
    from twisted_ib.subnet.hosting.attached import AttachedPort
    from twisted_ib.subnet.port.fabric import SubnetFabric


def _ofThread(
    owner: Device, guid: int, clock: Callable[[], float], neighbours: Neighbours | None = None
) -> SubnetFabric:
    # Imported on demand: a program pays for the fabrics that it uses.
    from twisted_ib.subnet.hosting.ofthread import ofThisThread
    from twisted_ib.subnet.port.fabric import SubnetFabric

    subnet = ofThisThread()
    if subnet is None:
        return _ofHost(owner, guid, clock)

    def attach(fabric: SubnetFabric, own: int) -> AttachedPort:
        return subnet.attach(fabric, own, owner.name)

    def records(owner: Device, guid: int, clock: Callable[[], float]) -> LoopbackFabric:
        open: Callable[..., LoopbackFabric] = FABRICS["loopback"].open
        return open(owner, guid, clock, neighboursOf("ib") if neighbours is None else neighbours)

    return SubnetFabric(owner, guid, clock, attach, records)


def _ofHost(owner: Device, guid: int, clock: Callable[[], float]) -> SubnetFabric:
    if not hasattr(select, "epoll"):
        raise DeviceError(f"device {owner.name} needs Linux, but where its thread hosts the subnet")
    from twisted_ib.subnet.hosting.link import attached
    from twisted_ib.subnet.port.fabric import SubnetFabric

    def records(owner: Device, guid: int, clock: Callable[[], float]) -> SharedMemoryFabric:
        # An HCA is below IP, so that network namespaces share the subnet: 0 stands for all.
        open: Callable[..., SharedMemoryFabric] = FABRICS["shm"].open
        return open(owner, guid, clock, namespace=0)

    description = f"{socket.gethostname()} {owner.name} {os.getpid()}"
    return SubnetFabric(owner, guid, clock, attached(description), records)


#: They are used by name alone: who listens on all devices does not listen on them.
KIND = FabricKind("ib", _ofThread, SUBNET, implicit=numbered("ib"), hasInterfaces=True)
addFabric(KIND)
