"""
The seams of the HCA: between a device and its fabric, and its users.

A device uses a fabric through L{IFabric}; the L{IPath} that a fabric gives for each peer is the other half of
the seam.

Modules:

  - C{fabric}: a fabric, and its directory
  - C{owner}: the device, as its fabric sees it
  - C{path}: the paths to a peer
  - C{roles}: what crosses the seams
"""

from twisted_ib.hca.base.interfaces.fabric import (
    IAddressDirectory,
    IDirectory,
    IFabric,
    IFabricConnections,
    IFabricProgress,
    IHostDirectory,
    IPacketFabric,
)
from twisted_ib.hca.base.interfaces.owner import IDevice, IFabricOwner
from twisted_ib.hca.base.interfaces.path import IPath, IPeerPath, ISharedMemoryPath, ITwinPath
from twisted_ib.hca.base.interfaces.roles import (
    Acknowledged,
    BoundQueuePair,
    Buffer,
    DatagramPath,
    PathUser,
    Search,
    Segment,
    Waiter,
)

__all__ = [
    "Acknowledged",
    "BoundQueuePair",
    "Buffer",
    "DatagramPath",
    "IAddressDirectory",
    "IDevice",
    "IDirectory",
    "IFabric",
    "IFabricConnections",
    "IFabricOwner",
    "IFabricProgress",
    "IHostDirectory",
    "IPacketFabric",
    "IPath",
    "IPeerPath",
    "ISharedMemoryPath",
    "ITwinPath",
    "PathUser",
    "Search",
    "Segment",
    "Waiter",
]
