"""
Names of classes, methods, attributes and states of MADs (C{umad_str.h}).
"""

from __future__ import annotations

from socket import ntohs
from typing import Final

from twisted_ib.hca.wire.mad.classes import (
    COMMUNICATION,
    ORGANIZATION_CLASSES,
    SUBNET_ADMINISTRATION,
    SUBNET_CLASSES,
    VENDOR_CLASSES,
)
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, lasting

_UNKNOWN: Final = "<unknown>"
#: As libibumad has it, of methods alone.
_NO_METHOD: Final = "<unknown"
# The values are those of umad_types.h, umad_sm.h, umad_sa.h and umad_cm.h, and so are the names.
_CLASSES: Final = {
    0x01: "Subn",
    0x81: "Subn",
    0x03: "SubnAdm",
    0x04: "Perf",
    0x05: "BM",
    0x06: "DevMgt",
    0x07: "ComMgt",
    0x08: "SNMP",
    0x10: "DevAdm",
    0x11: "BootMgt",
    0x12: "BIS",
    0x21: "CongestionManagment",
    **dict.fromkeys((*VENDOR_CLASSES, *ORGANIZATION_CLASSES), "Vendor"),
    **dict.fromkeys((*range(0x13, 0x21), *range(0x22, 0x30)), "Application"),
}
_METHODS: Final = {
    0x01: "Get",
    0x02: "Set",
    0x81: "GetResp",
    0x03: "Send",
    0x05: "Trap",
    0x06: "Report",
    0x86: "ReportResp",
    0x07: "TrapRepress",
}
_SA_METHODS: Final = {
    **_METHODS,
    0x12: "GetTable",
    0x92: "GetTableResp",
    0x15: "Delete",
    0x95: "DeleteResp",
    0x14: "GetMulti",
    0x94: "GetMultiResp",
    0x13: "GetTraceTable",
}
_ATTRIBUTES: Final = {0x01: "Class Port Info", 0x02: "Notice", 0x03: "Inform Info"}
_SM_ATTRIBUTES: Final = {
    **_ATTRIBUTES,
    0x10: "NodeDescription",
    0x11: "NodeInfo",
    0x12: "SwitchInfo",
    0x14: "GUIDInfo",
    0x15: "PortInfo",
    0x16: "P_KeyTable",
    0x17: "SLtoVLMappingTable",
    0x18: "VLArbitrationTable",
    0x19: "LinearForwardingTable",
    0x1A: "RandomForwardingTable",
    0x1B: "MulticastForwardingTable",
    0x1C: "LinkSpeedWidthPairsTable",
    0x1D: "VendorSpecificMadsTable",
    0x1E: "HierarchyInfo",
    0x20: "SMInfo",
    0x30: "VendorDiag",
    0x31: "LedInfo",
    0x32: "CableInfo",
    0x33: "PortInfoExtended",
}
_SA_ATTRIBUTES: Final = {
    **_ATTRIBUTES,
    0x11: "NodeRecord",
    0x12: "PortInfoRecord",
    0x13: "SLtoVLMappingTableRecord",
    0x14: "SwitchInfoRecord",
    0x15: "LinearForwardingTableRecord",
    0x16: "RandomForwardingTableRecord",
    0x17: "MulticastForwardingTableRecord",
    0x18: "SMInfoRecord",
    0x19: "LinkSpeedWidthPairsTableRecord",
    0x20: "LinkRecord",
    0x30: "GuidInfoRecord",
    0x31: "ServiceRecord",
    0x33: "P_KeyTableRecord",
    0x35: "PathRecord",
    0x36: "VLArbitrationTableRecord",
    0x38: "MCMemberRecord",
    0x39: "TraceRecord",
    0x3A: "MultiPathRecord",
    0x3B: "ServiceAssociationRecord",
    0x3C: "HierarchyInfoRecord",
    0x3D: "CableInfoRecord",
    0x3E: "PortInfoExtendedRecord",
    0xF3: "InformInfoRecord",
}
_CM_ATTRIBUTES: Final = {
    **_ATTRIBUTES,
    0x10: "ConnectRequest",
    0x11: "MsgRcptAck",
    0x12: "ConnectReject",
    0x13: "ConnectReply",
    0x14: "ReadyToUse",
    0x15: "DisconnectRequest",
    0x16: "DisconnectReply",
    0x17: "ServiceIDResReq",
    0x18: "ServiceIDResReqResp",
    0x19: "LoadAlternatePath",
    0x1A: "AlternatePathResponse",
    0x1B: "SuggestAlternatePath",
    0x1C: "SuggestPathResponse",
}
#: Bits 4 to 2 (IBTA vol. 1 13.4.7).
_FIELD_MASK: Final = 0x1C
_STATES: Final = {
    0x04: "Bad Version",
    0x08: "Method not supported",
    0x0C: "Method/Attribute combo not supported",
    0x1C: "Invalid attribute/modifier field",
}
_BUSY, _REDIRECT = 0x01, 0x02
_SA_STATES: Final = (
    *("Success", "No Resources", "Request Invalid", "No Records", "Too Many Records", "Invalid GID"),
    *("Insufficient Components", "Request Denied", "Priority Suggested"),
)


@handler
def umad_class_str(mgmt_class: int) -> CData:
    return lasting(_CLASSES.get(mgmt_class, _UNKNOWN))


@handler
def umad_method_str(mgmt_class: int, method: int) -> CData:
    methods = _SA_METHODS if mgmt_class == SUBNET_ADMINISTRATION else _METHODS
    return lasting(methods.get(method, _NO_METHOD))


@handler
def umad_attribute_str(mgmt_class: int, attr_id: int) -> CData:
    attributes = _ATTRIBUTES
    if mgmt_class in SUBNET_CLASSES:
        attributes = _SM_ATTRIBUTES
    elif mgmt_class == SUBNET_ADMINISTRATION:
        attributes = _SA_ATTRIBUTES
    elif mgmt_class == COMMUNICATION:
        attributes = _CM_ATTRIBUTES
    return lasting(attributes.get(ntohs(attr_id), _UNKNOWN))


@handler
def umad_common_mad_status_str(status: int) -> CData:
    code = ntohs(status)
    if code & _BUSY:
        return lasting("Busy")
    if code & _REDIRECT:
        return lasting("Redirection required")
    return lasting(_STATES.get(code & _FIELD_MASK, "Success"))


@handler
def umad_sa_mad_status_str(status: int) -> CData:
    code = ntohs(status) >> 8
    return lasting(_SA_STATES[code] if code < len(_SA_STATES) else "Undefined Error")
