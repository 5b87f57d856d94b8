"""
The files of devices, as Linux has them in C{/sys/class/infiniband}, C{/sys/class/infiniband_verbs} and
C{/dev/infiniband}.

Values that a device has only when a process has opened it, its GUID and the GIDs with that, are not there.

Source: Linux 6.12 C{drivers/infiniband/core/sysfs.c}, C{Documentation/ABI/stable/sysfs-class-infiniband}.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

from twisted_ib.hca.base.attributes import FIRMWARE_VERSION, PORT
from twisted_ib.hca.base.port import Port, linkGigabits
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.device.registry import addressOf, deviceNames, traitsOf
from twisted_ib.hca.host.addresses import interfaceOf

#: The name of a link layer, and the type of its GIDs, which verbs say of them, too.
_LINK_LAYERS = {
    LinkLayer.INFINIBAND: ("InfiniBand", "IB/RoCE v1"),
    LinkLayer.ETHERNET: ("Ethernet", "RoCE v2"),
}
#: The version of the kernel's interface, which rdma-core checks.
_ABI = "6"


def _interface(address: str | None) -> str:
    number = interfaceOf(address) if address else 0
    with suppress(OSError):
        if number:
            return socket.if_indextoname(number)
    # 127.0.0.2 is one that no interface has; and processes of a host meet at its addresses.
    return "lo"


def _gid(address: str) -> str:
    # ip_address() takes a zone, which a GID has not.
    found = ip_address(address.partition("%")[0])
    whole = found if isinstance(found, IPv6Address) else IPv6Address(f"::ffff:{found}")
    # Not its text: since Python 3.13 that of an IPv4 address has dots.
    return whole.packed.hex(":", 2)


def _ofPort(layer: LinkLayer, address: str | None, slots: int) -> dict[str, str]:
    port, (name, kind) = Port(linkLayer=layer), _LINK_LAYERS[layer]
    files = {
        "state": f"{port.state.value}: {port.state.name}",
        "phys_state": f"{port.physicalState.value}: LinkUp",
        "rate": f"{linkGigabits(port.width, port.speed):g} Gb/sec",
        "link_layer": name,
        "lid": "0x0",
        "lid_mask_count": "0",
        "sm_lid": "0x0",
        "sm_sl": "0",
        "pkeys/0": "0xffff",
    }
    for slot in range(slots):
        files[f"gid_attrs/types/{slot}"] = kind
        # One of a subnet has none.
        if layer is LinkLayer.ETHERNET:
            files[f"gid_attrs/ndevs/{slot}"] = _interface(address)
        if address:
            files[f"gids/{slot}"] = _gid(address)
    return files


def deviceFiles(chosen: str | None) -> dict[str, str]:
    """
    @param chosen: the only device that programs are shown; L{None} for all.
    @return: the text of each file, by its path from the root.
    """
    files = {"sys/class/infiniband_verbs/abi_version": _ABI}
    # As verbs number them.
    for number, name in enumerate(deviceNames()):
        if chosen not in (None, name):
            continue
        traits, verbs, own = traitsOf(name), f"uverbs{number}", f"sys/class/infiniband/{name}"
        node, layer, slots = traits.nodeType, traits.linkLayer, traits.gidSlots
        files[f"dev/infiniband/{verbs}"] = ""
        files[f"sys/class/infiniband_verbs/{verbs}/ibdev"] = name
        files[f"sys/class/infiniband_verbs/{verbs}/abi_version"] = "1"
        files[f"{own}/device/infiniband_verbs/{verbs}/ibdev"] = name
        files[f"{own}/device/numa_node"] = "-1"
        files[f"{own}/node_type"] = f"{node.value}: {node.name}"
        files[f"{own}/node_desc"] = name
        files[f"{own}/hca_type"] = "twisted_ib"
        files[f"{own}/fw_ver"] = FIRMWARE_VERSION
        for path, text in _ofPort(layer, addressOf(name), slots).items():
            files[f"{own}/ports/{PORT}/{path}"] = text
    return files
