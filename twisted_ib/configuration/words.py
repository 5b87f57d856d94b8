"""
The words of rules that all ask for who follow them.
"""

from __future__ import annotations

SDP, TCP, BOTH = VERDICTS = ("sdp", "tcp", "both")
LISTEN, CONNECT = ROLES = ("listen", "connect")
#: The words for the two roles.
ROLE_WORDS = {"listen": LISTEN, "server": LISTEN, "connect": CONNECT, "client": CONNECT}
