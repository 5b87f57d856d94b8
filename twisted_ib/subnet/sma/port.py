"""
Attributes of a port (IBTA vol. 1 14.2.5.5 to 14.2.5.9).
"""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve

from twisted_ib.hca.base.port import LARGEST_UNICAST_LID, PhysicalState, PortState
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.notice import Notice, NoticeType
from twisted_ib.hca.mad.attributes.port import (
    EXTENDED_SPEEDS,
    GUIDS_PER_BLOCK,
    PARTITIONS_PER_BLOCK,
    GUIDInfo,
    LedInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    VLArbitrationTable,
)
from twisted_ib.subnet.network.graph import Change, Port
from twisted_ib.subnet.sma.node import PORT_NUMBER, Request, Row

#: The value of a field that stands for all that is supported (IBTA vol. 1 14.2.5.6).
_ALL_WIDTHS: Final = 0xFF
_ALL_SPEEDS: Final = 0xF
_ALL_EXTENDED: Final = 0x1F
#: LinkSpeedExtEnabled of none.
_NO_EXTENDED: Final = 0x1E
_PHYSICAL: Final = {each.value: each for each in (PhysicalState.SLEEP, PhysicalState.POLLING)}
_SETTABLE: Final = {**_PHYSICAL, PhysicalState.DISABLED.value: PhysicalState.DISABLED}
#: Fields that every Set of PortInfo writes to a port that can have a LID, and to every port (IBTA vol. 1
#: 14.2.5.6).
_END_FIELDS: Final = (
    *("mkey", "mkeyLeasePeriod", "protectBits", "smSL", "subnetTimeout", "localPhysErr", "overrunErr"),
)
_LINK_FIELDS: Final = ("vlHighLimit", "initType")
_SWITCH_FIELDS: Final = (
    *("vlStallCount", "hoqLife", "partEnforceInb", "partEnforceOutb", "filterRawInb", "filterRawOutb"),
)
_VIOLATIONS: Final = ("mkeyViolations", "pkeyViolations", "qkeyViolations")
#: Fields that the port has by the same name.
_COPIED: Final = (
    *_END_FIELDS,
    *_LINK_FIELDS,
    *_SWITCH_FIELDS,
    *_VIOLATIONS,
    *("lid", "lmc", "smLID", "capMask", "capabilityMask2", "respTimeVal", "neighborMTU", "mtuCap"),
    *("operVLs", "vlCap", "linkWidthSupported", "linkWidthEnabled", "linkWidthActive"),
    *("linkSpeedSupported", "linkSpeedEnabled", "linkSpeedActive"),
    *("linkSpeedExtSupported", "linkSpeedExtEnabled", "linkSpeedExtActive"),
)


def _portOf(request: Request) -> Port | None:
    # Bit 31 says that the manager knows extended speeds, the others are reserved.
    number = request.modifier & PORT_NUMBER
    if number == 0:
        return request.end
    return request.node.port(number)


def _getPortInfo(request: Request) -> Attribute | None:
    port = _portOf(request)
    if port is None:
        return None
    values = {name: getattr(port, name) for name in _COPIED}
    # IBTA vol. 1 14.2.4: with these protect bits the M_Key is read by who knows it, or has just set it.
    if port.protectBits and request.key != port.mkey and not request.isSet:
        values["mkey"] = 0
    # External ports of a switch have no prefix, nor what else belongs to a LID.
    if port.isEnd:
        values["gidPrefix"] = port.subnetPrefix
    tables = len(port.arbitration[0])
    return PortInfo(
        **values,
        localPort=request.arrival.number,
        linkState=port.state,
        physLinkState=port.physicalState,
        linkDownDefState=port.downDefault,
        vlArbHighCap=tables,
        vlArbLowCap=tables,
        guidCap=len(port.guids),
        clientReregister=request.reregister,
    )


def _setPortInfo(request: Request) -> None:
    port = _portOf(request)
    # A CA's port is managed through itself alone: its other ports may be on other subnets.
    if port is None or (port.isEnd and port is not request.end):
        request.invalid()
        return
    info = PortInfo.parse(request.data)
    fields = _fields(port, info, bool(request.modifier & EXTENDED_SPEEDS))
    # A refused Set has changed nothing: all is looked at before the first field is written.
    if fields is None or not _maySetStates(port, info):
        request.invalid()
        return
    before = port.settings() if port.isEnd else None
    for name, value in fields.items():
        setattr(port, name, value)
    request.reregister = bool(info.clientReregister) and port.isEnd
    if before is not None and (request.reregister or port.settings() != before):
        request.changes.append(Change(port, reregister=request.reregister))
    # These note their changes themselves.
    if info.physLinkState:
        request.changes += port.setPhysicalState(_SETTABLE[info.physLinkState])
    elif info.linkState:
        request.changes += port.setState(info.linkState) or ()


def _fields(port: Port, info: PortInfo, isExtended: bool) -> dict[str, Any] | None:
    # The values that a Set writes, by the names of the port's fields; nothing if one is not allowed.
    ends = _endFields(port, info) if port.isEnd else {name: getattr(info, name) for name in _SWITCH_FIELDS}
    links = _linkFields(port, info, isExtended)
    if ends is None or links is None:
        return None
    return {**ends, **{name: getattr(info, name) for name in _LINK_FIELDS}, **links}


def _endFields(port: Port, info: PortInfo) -> dict[str, Any] | None:
    # IBTA vol. 1 14.2.5.6: a LID is assigned, never taken back; one with path bits is a multiple.
    if (info.lid, info.lmc) != (port.lid, port.lmc) and (
        not 0 < info.lid <= LARGEST_UNICAST_LID or info.lid & ((1 << info.lmc) - 1)
    ):
        return None
    if info.smLID != port.smLID and not 0 < info.smLID <= LARGEST_UNICAST_LID:
        return None
    return {
        **{name: getattr(info, name) for name in ("lid", "lmc", "smLID", *_END_FIELDS)},
        # 0 would be no prefix; managers that do not care send it.
        "subnetPrefix": info.gidPrefix or port.subnetPrefix,
        # Only 0 can be written.
        **{name: 0 for name in _VIOLATIONS if getattr(info, name) == 0},
    }


def _linkFields(port: Port, info: PortInfo, isExtended: bool) -> dict[str, Any] | None:
    fields: dict[str, Any] = {}
    speeds = [
        ("linkWidth", info.linkWidthEnabled, _ALL_WIDTHS),
        ("linkSpeed", info.linkSpeedEnabled, _ALL_SPEEDS),
    ]
    # Only of a manager that knows them.
    if isExtended and info.linkSpeedExtEnabled == _NO_EXTENDED:
        fields["linkSpeedExtEnabled"] = 0
    elif isExtended:
        speeds.append(("linkSpeedExt", info.linkSpeedExtEnabled, _ALL_EXTENDED))
    for name, value, everything in speeds:
        supported = getattr(port, f"{name}Supported")
        if value == everything:
            fields[f"{name}Enabled"] = supported
        elif value & ~supported:
            return None
        elif value:
            fields[f"{name}Enabled"] = value
    for name, value, most in (
        ("neighborMTU", info.neighborMTU, port.mtuCap),
        ("operVLs", info.operVLs, port.vlCap),
    ):
        if value > most:
            return None
        if value:
            fields[name] = value
    if info.linkDownDefState:
        fields["downDefault"] = _PHYSICAL.get(info.linkDownDefState)
    return None if fields.get("downDefault", port) is None else fields


def _maySetStates(port: Port, info: PortInfo) -> bool:
    if not info.physLinkState:
        return not info.linkState or port.maySetState(info.linkState)
    # IBTA vol. 1 14.2.5.6: PortPhysicalState is changed with PortState No Change or Down alone.
    return info.linkState <= PortState.DOWN and info.physLinkState in _SETTABLE and not port.isManagement


def _getGUIDInfo(request: Request) -> Attribute | None:
    guids, start = request.end.guids, request.modifier * GUIDS_PER_BLOCK
    if start >= len(guids):
        return None
    block = guids[start : start + GUIDS_PER_BLOCK]
    return GUIDInfo(guids=(*block, *(0,) * (GUIDS_PER_BLOCK - len(block))))


def _setGUIDInfo(request: Request) -> None:
    port, start = request.end, request.modifier * GUIDS_PER_BLOCK
    guids = port.guids
    if start >= len(guids):
        request.invalid()
        return
    block = list(GUIDInfo.parse(request.data).guids)
    if start == 0:
        # IBTA vol. 1 14.2.5.5: the port's own GUID cannot be written.
        block[0] = port.guid
    new = [*guids[:start], *block, *guids[start + len(block) :]][: len(guids)]
    if new != guids:
        port.guids = new
        request.changed(port)


def _getPartitions(request: Request) -> Attribute | None:
    port = request.port(request.modifier >> 16)
    start = (request.modifier & 0xFFFF) * PARTITIONS_PER_BLOCK
    if port is None or start >= len(port.partitions):
        return None
    block = port.partitions.keys[start : start + PARTITIONS_PER_BLOCK]
    return PKeyTable(keys=(*block, *(0,) * (PARTITIONS_PER_BLOCK - len(block))))


def _setPartitions(request: Request) -> None:
    port = request.port(request.modifier >> 16)
    start = (request.modifier & 0xFFFF) * PARTITIONS_PER_BLOCK
    if port is None or start >= len(port.partitions):
        request.invalid()
        return
    keys = port.partitions.keys
    block = PKeyTable.parse(request.data).keys
    new = (*keys[:start], *block, *keys[start + len(block) :])[: len(keys)]
    if new != keys:
        port.partitions.replace(new)
        request.changed(port)


def _mappingOf(request: Request) -> tuple[int, int] | None:
    # A switch has a table for each pair of ports, a CA one.
    number, other = request.modifier >> 8 & PORT_NUMBER, request.modifier & PORT_NUMBER
    last = len(request.node.ports) - 1
    return (number, other) if max(number, other) <= last else None


def _getMapping(request: Request) -> Attribute | None:
    if request.node.switch is None:
        return SLtoVLMappingTable(vls=request.arrival.mapping)
    pair = _mappingOf(request)
    if pair is None:
        return None
    return SLtoVLMappingTable(vls=request.switch.mappings.get(pair, request.end.mapping))


def _setMapping(request: Request) -> None:
    lanes = SLtoVLMappingTable.parse(request.data).vls
    if request.node.switch is None:
        request.arrival.mapping = lanes
        return
    pair = _mappingOf(request)
    if pair is None:
        request.invalid()
    else:
        request.switch.mappings[pair] = lanes


def _arbitrationOf(request: Request) -> list[tuple[int, int]] | None:
    port = request.port(request.modifier & 0xFFFF)
    # 1 and 2 are halves of the table of low priority, 3 and 4 of that of high priority; with so few entries
    # there is no second half.
    index = {1: 0, 3: 1}.get(request.modifier >> 16)
    return None if port is None or index is None else port.arbitration[index]


def _getArbitration(request: Request) -> Attribute | None:
    table = _arbitrationOf(request)
    if table is None:
        return None
    rest = (0,) * (len(VLArbitrationTable().vls) - len(table))
    return VLArbitrationTable(
        vls=(*(lane for lane, _ in table), *rest), weights=(*(weight for _, weight in table), *rest)
    )


def _setArbitration(request: Request) -> None:
    table = _arbitrationOf(request)
    if table is None:
        request.invalid()
        return
    given = VLArbitrationTable.parse(request.data)
    table[:] = list(zip(given.vls, given.weights, strict=True))[: len(table)]


def _getLedInfo(request: Request) -> Attribute | None:
    return None if request.modifier else LedInfo(ledMask=request.arrival.isLit)


def _setLedInfo(request: Request) -> None:
    if request.modifier:
        request.invalid()
    else:
        request.arrival.isLit = bool(LedInfo.parse(request.data).ledMask)


def _getNotice(request: Request) -> Attribute | None:
    if request.modifier:
        return None
    port = request.end
    oldest = port.notices[0] if port.notices else Notice(noticeType=NoticeType.EMPTY)
    return evolve(oldest, noticeToggle=port.noticeToggle, noticeCount=len(port.notices))


def _setNotice(request: Request) -> None:
    if request.modifier:
        request.invalid()
        return
    port = request.end
    # IBTA vol. 1 13.4.10: the manager clears the notice that it has read, which it knows by the toggle; a
    # repeated Set clears no other one.
    if port.notices and Notice.parse(request.data).noticeToggle == port.noticeToggle:
        port.noteRead()


ROWS: Final = {
    Notice.ID: Row(_getNotice, _setNotice),
    LedInfo.ID: Row(_getLedInfo, _setLedInfo),
    GUIDInfo.ID: Row(_getGUIDInfo, _setGUIDInfo),
    PortInfo.ID: Row(_getPortInfo, _setPortInfo),
    PKeyTable.ID: Row(_getPartitions, _setPartitions),
    SLtoVLMappingTable.ID: Row(_getMapping, _setMapping),
    VLArbitrationTable.ID: Row(_getArbitration, _setArbitration),
}
