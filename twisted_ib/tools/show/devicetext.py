"""
The description of an HCA in C{ibv_devinfo}'s words and layout, and as JSON.

It comes from another process, perhaps of another version of this program: missing values are left out,
unknown ones are shown as they came, and nothing unprintable reaches a terminal.

Source: rdma-core 65 C{libibverbs/examples/devinfo.c}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

from twisted_ib.hca.base.attributes import COMPLETION_VECTORS, MTU_CODES, PORT
from twisted_ib.hca.base.port import LANE_GIGABITS, LANES
from twisted_ib.hca.base.traits import TransportType
from twisted_ib.tools.program import printable

#: Columns where the values of a device and of a port begin, with tabs of eight (devinfo.c writes the tabs
#: out).
_DEVICE_COLUMN, _PORT_COLUMN = 40, 48
_TAB = 8

_MTUS = {code: size for size, code in MTU_CODES.items()}
#: IBTA vol. 1 14.2.5.6, PortInfo: PortPhysicalState; the words are devinfo.c's, port_phy_state_str.
_PHYSICAL_STATES = {
    1: "SLEEP",
    2: "POLLING",
    3: "DISABLED",
    4: "PORT_CONFIGURATION_TRAINING",
    5: "LINK_UP",
    6: "LINK_ERROR_RECOVERY",
    7: "PHY_TEST",
}
#: libibverbs/verbs.h: IBV_LINK_LAYER_*.
LINK_LAYERS = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
#: The one of them whose GIDs have no type.
INFINIBAND = 1
#: The same: enum ibv_port_state and enum ibv_atomic_cap.
_STATES = dict(enumerate(f"PORT_{name}" for name in "NOP DOWN INIT ARMED ACTIVE ACTIVE_DEFER".split()))
_ATOMICS = dict(enumerate(("ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB")))
#: IBTA vol. 1 14.2.5.6: VLCap.
_VIRTUAL_LANES = {1: 1, 2: 2, 3: 4, 4: 8, 5: 15}


def guid(value: int) -> str:
    """
    @return: a GUID as C{ibv_devinfo} writes it: four groups of four hexadecimal digits.
    """
    return ":".join(f"{value >> shift & 0xFFFF:04x}" for shift in (48, 32, 16, 0))


def named(names: Mapping[int, object], unit: str = "") -> Callable[[int], Any]:
    """
    @param names: the meanings of codes.
    @param unit: is appended.
    @return: a function from a code to its meaning; with a unit, a text.
    """

    def meaning(code: int) -> Any:
        found = names.get(code, "invalid")
        return f"{found}{unit}" if unit and code in names else found

    return meaning


@frozen
class Field:
    """
    One attribute.

    @ivar key: its name in the answer.
    @ivar name: C{ibv_devinfo}'s name, if it differs.
    @ivar write: formats the number for people.
    @ivar meaning: translates a code; L{None} for a plain number.
    """

    key: str
    write: Callable[[int], str] = str
    meaning: Callable[[int], Any] | None = None
    name: str = ""

    @property
    def label(self) -> str:
        """
        Its name in the output.
        """
        return self.name or self.key

    def text(self, value: object) -> str:
        """
        @return: the value for people: a code follows its meaning.
        """
        # Another version may have sent a text or null where a number is expected: shown, not formatted.
        if not isinstance(value, int):
            return shown(value)
        if self.meaning is None:
            return self.write(value)
        return f"{self.meaning(value)} ({value})" if self.write is str else self.write(value)

    def plain(self, value: object) -> Any:
        """
        @return: the value for JSON, a code translated.
        """
        return self.meaning(value) if self.meaning is not None and isinstance(value, int) else value


def _fields(names: str, write: Callable[[int], str] = str) -> list[Field]:
    return [Field(name, write) for name in names.split()]


def _hex(digits: int) -> Callable[[int], str]:
    return lambda value: f"0x{value:0{digits}x}"


#: The fields of a device in devinfo.c's order (IBTA vol. 1 11.2.1.2, Query HCA): DEVICE always,
#: DEVICE_LIMITS with C{-v}.
DEVICE = (
    Field("fw_ver"),
    Field("node_guid", guid, guid),
    Field("sys_image_guid", guid, guid),
    Field("vendor_id", _hex(4)),
    Field("vendor_part_id"),
    Field("hw_ver", _hex(1)),
    Field("phys_port_cnt"),
)
DEVICE_LIMITS = (
    *_fields("max_mr_size page_size_cap", _hex(1)),
    *_fields("max_qp max_qp_wr"),
    Field("device_cap_flags", _hex(8)),
    *_fields("max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom"),
    *_fields("max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom"),
    Field("atomic_cap", str, named(_ATOMICS)),
    *_fields("max_ee max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach"),
    *_fields("max_total_mcast_qp_attach max_ah max_fmr max_srq max_srq_wr max_srq_sge max_pkeys"),
    *_fields("local_ca_ack_delay"),
    *_fields("completion_timestamp_mask", _hex(16)),
    *_fields("hca_core_clock"),
    *_fields("device_cap_flags_ex", _hex(1)),
    *_fields("max_wq_type_rq max_cq_count max_cq_period"),
)
#: The same for a port (IBTA vol. 1 14.2.5.6, PortInfo).
PORT_FIELDS = (
    Field("state", str, named(_STATES)),
    Field("max_mtu", str, named(_MTUS)),
    Field("active_mtu", str, named(_MTUS)),
    Field("sm_lid"),
    Field("lid", name="port_lid"),
    Field("lmc", _hex(2), name="port_lmc"),
    Field("link_layer", named(LINK_LAYERS), named(LINK_LAYERS)),
)
PORT_LIMITS = (
    Field("max_msg_sz", _hex(1)),
    Field("port_cap_flags", _hex(8)),
    Field("port_cap_flags2", _hex(4)),
    Field("max_vl_num", str, named(_VIRTUAL_LANES)),
    *_fields("bad_pkey_cntr qkey_viol_cntr", _hex(1)),
    *_fields("sm_sl pkey_tbl_len gid_tbl_len subnet_timeout init_type_reply"),
    Field("active_width", str, named(LANES, "X")),
    Field("active_speed", str, named(LANE_GIGABITS, " Gbps")),
    Field("phys_state", str, named(_PHYSICAL_STATES)),
)

#: devinfo.c prints these lines for each device.  Nothing here registers absent pages, so on-demand paging
#: is not supported for any transport.
_ON_DEMAND = (
    "\tgeneral_odp_caps:",
    *(text for kind in ("rc", "uc", "ud", "xrc") for text in (f"\t{kind}_odp_caps:", "\t\t\t\t\tNO SUPPORT")),
)

#: Keys of an answer that have their own place in the output.
_PLACED = ("hca_id", "transport", "compiled", "attributes", "port", "gids", "in_use", "counters")
#: Keys of an answer that only C{-v} shows.
_VERBOSE = ("c_libraries", "icrc")


def shown(value: object) -> str:
    """
    @return: a JSON value from an answer, for people.
    """
    return printable(value if isinstance(value, str) else json.dumps(value))


def part(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """
    @return: a part of an answer that should be an object; an empty one if it is not.
    """
    found = entry.get(name)
    return found if isinstance(found, dict) else {}


def gids(entry: Mapping[str, Any]) -> list[str]:
    """
    @return: the GID table of an answer.
    """
    found = entry.get("gids")
    if not isinstance(found, list):
        return []
    # The answer has addresses.  A GID has no zone, and that of IPv4 is mapped into IPv6 (IBTA vol. 1 annex
    # A17; RFC 4291 section 2.5.5.2).
    addresses = [str(gid).partition("%")[0] for gid in found]
    return [address if ":" in address else f"::ffff:{address}" for address in addresses]


# -- JSON


def transportOf(entry: Mapping[str, Any]) -> tuple[str, int]:
    """
    @return: the name of its transport, and its number in C{enum ibv_transport_type}.
    """
    return ("iWARP", 1) if entry.get("transport") == "IWARP" else ("InfiniBand", 0)


def present(entry: Mapping[str, Any]) -> dict[str, Any]:
    """
    @param entry: an answer.
    @return: the same with C{ibv_devinfo}'s names: codes translated, sizes in bytes, the port in the list
        C{ports} with its GIDs.
    """
    known: dict[str, Any] = {"hca_id": entry.get("hca_id")}
    attributes = part(entry, "attributes")
    if attributes:
        known["transport"] = transportOf(entry)[0]
        for field in (*DEVICE, *DEVICE_LIMITS):
            if field.key in attributes:
                known[field.label] = field.plain(attributes[field.key])
        known["num_comp_vectors"] = COMPLETION_VECTORS
    port = part(entry, "port")
    if port:
        values = {
            field.label: field.plain(port[field.key])
            for field in (*PORT_FIELDS, *PORT_LIMITS)
            if field.key in port
        }
        known["ports"] = [{"port": PORT, **values, "GID": gids(entry)}]
    # Keys that a newer version sends are passed through.
    known.update((name, value) for name, value in entry.items() if name not in _PLACED)
    known["in_use"] = entry.get("in_use")
    known["counters"] = entry.get("counters")
    return known


# -- text


def line(depth: int, name: str, value: str, column: int) -> str:
    """
    @param depth: tabs before the name.
    @param column: where the value begins.
    @return: a line of a name and its value.
    """
    at = depth * _TAB + len(name) + 1
    tabs = max(1, -((at - column) // _TAB))
    return "\t" * depth + f"{name}:" + "\t" * tabs + value


def lines(fields: tuple[Field, ...], values: Mapping[str, Any], depth: int, column: int) -> Iterator[str]:
    """
    @param fields: the fields to show, in order.
    @param depth: tabs before the names.
    @param column: where the values begin.
    @return: the lines of those fields that have values.
    """
    for field in fields:
        if field.key in values:
            yield line(depth, field.label, field.text(values[field.key]), column)
            if field.key == "device_cap_flags":
                yield from _capabilities(values[field.key])


def _capabilities(flags: object) -> Iterator[str]:
    from twisted_ib.verbs.pyverbs.enums.device import (
        ibv_device_cap_flags,  # Here: all of verbs comes with it.
    )

    if isinstance(flags, int):
        for flag in ibv_device_cap_flags:
            if flags & flag:
                yield "\t" * 5 + str(flag.name).removeprefix("IBV_DEVICE_")


def heading(entry: Mapping[str, Any], verbose: bool) -> list[str]:
    """
    @param entry: an answer.
    @param verbose: whether to include limits, GIDs, what is in use, and counters.
    @return: the lines that C{ibv_devinfo} would print.
    """
    found = [f"hca_id:\t{shown(entry.get('hca_id'))}"]
    attributes = part(entry, "attributes")
    if attributes:
        found.append(line(1, "transport", "{} ({})".format(*transportOf(entry)), _DEVICE_COLUMN))
        found += lines(DEVICE, attributes, 1, _DEVICE_COLUMN)
    for name, value in entry.items():
        if name not in _PLACED and (verbose or name not in _VERBOSE):
            found.append(line(1, printable(name), shown(value), _DEVICE_COLUMN))
    if verbose:
        found += _compiled(entry)
    if verbose and attributes:
        found += lines(DEVICE_LIMITS, attributes, 1, _DEVICE_COLUMN)
        found += _ON_DEMAND
        found.append(line(1, "num_comp_vectors", str(COMPLETION_VECTORS), _DEVICE_COLUMN))
    found += _port(entry, verbose)
    # silent() has None here: the process is alive, but hung or of a version that answers otherwise.
    if entry.get("in_use") is None:
        found.append(line(1, "in_use", "does not answer", _DEVICE_COLUMN))
    elif verbose:
        found += _counts(entry, "in_use")
        found += _counts(entry, "counters")
    return found


def _compiled(entry: Mapping[str, Any]) -> Iterator[str]:
    modules = entry.get("compiled")
    if isinstance(modules, list):
        yield line(1, "compiled", "" if modules else "no", _DEVICE_COLUMN).rstrip("\t")
        yield from ("\t" * (_DEVICE_COLUMN // _TAB) + shown(name) for name in modules)


def _port(entry: Mapping[str, Any], verbose: bool) -> Iterator[str]:
    port = part(entry, "port")
    if port:
        yield f"\t\tport:\t{PORT}"
        yield from lines(PORT_FIELDS, port, 3, _PORT_COLUMN)
        if verbose:
            yield from lines(PORT_LIMITS, port, 3, _PORT_COLUMN)
            isIB = entry.get("transport") != TransportType.IWARP.name
            isRoCE = isIB and port.get("link_layer") != INFINIBAND
            kind = ", RoCE v2" if isRoCE else ""
            for index, gid in enumerate(gids(entry)):
                yield line(3, f"GID[{index:3}]", printable(gid) + kind, _PORT_COLUMN)


def _counts(entry: Mapping[str, Any], name: str) -> Iterator[str]:
    counts = part(entry, name)
    if counts:
        yield f"\t{name}:"
        for each, count in counts.items():
            yield line(2, printable(each), shown(count), _DEVICE_COLUMN)
