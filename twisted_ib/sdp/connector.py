"""
The active side of SDP.
"""

from __future__ import annotations

from twisted_ib.hca.endpoints.connector import Connector
from twisted_ib.sdp import handshake
from twisted_ib.sdp.ends import SDPClient


class SDPConnector(Connector):
    """
    What C{connectSDP} gives.
    """

    handshake = handshake
    protocolName = "SDP"
    transportClass = SDPClient
