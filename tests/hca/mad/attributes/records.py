"""
The records of subnet administration.
"""

from __future__ import annotations

from typing import Final

from twisted_ib.hca.mad.attributes.administration import (
    GUIDInfoRecord,
    InformInfoRecord,
    LinearForwardingTableRecord,
    LinkRecord,
    MCMemberRecord,
    MulticastForwardingTableRecord,
    NodeRecord,
    PathRecord,
    PKeyTableRecord,
    PortInfoRecord,
    ServiceRecord,
    SLtoVLMappingTableRecord,
    SMInfoRecord,
    SwitchInfoRecord,
    VLArbitrationTableRecord,
)
from twisted_ib.hca.mad.attributes.layouts import Attribute

#: Those that can be asked for, by attribute id.
RECORDS: Final[dict[int, type[Attribute]]] = {
    each.ID: each
    for each in (
        *(NodeRecord, PortInfoRecord, SLtoVLMappingTableRecord, SwitchInfoRecord),
        *(LinearForwardingTableRecord, MulticastForwardingTableRecord, SMInfoRecord, LinkRecord),
        *(GUIDInfoRecord, ServiceRecord, PKeyTableRecord, PathRecord, VLArbitrationTableRecord),
        *(MCMemberRecord, InformInfoRecord),
    )
}
