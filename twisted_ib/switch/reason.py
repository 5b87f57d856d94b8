"""
The decision about a connection or a listener, and its reason.
"""

from __future__ import annotations

import attrs

#: Fallbacks where nobody would expect SDP: neither error texts nor the log mention them.
UNASKED = frozenset(("mapped", "remote", "no_port"))

#: C{rule} of connections and ports that the program asked for by name: C{sdp:}, C{ib:} and C{direct:}.
EXPLICIT = "explicit"


@attrs.frozen
class Fallback:
    """
    The reason why SDP does not carry a connection that it could have carried.

    @ivar kind: One word, the counter's name.
    @ivar text: Details on one line.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


@attrs.define
class Reason:
    """
    The decision about one connection or listener; times are the reactor's, in seconds.

    @ivar rule: C{FILE:LINE} of the rule, C{default}, or C{explicit}.
    @ivar verdict: The rule's: C{sdp}, C{tcp} or C{both}; of an adopted socket never C{sdp}.
    @ivar provider: C{sdp}, C{tcp} or C{rdma}; C{both} for a listener on both; C{""} before the decision.
    @ivar device: The name of the HCA, or L{None}.
    @ivar fallback: Why SDP does not carry it though it may, or L{None}.
    @ivar asked: When the application called.
    @ivar decided: When the provider was chosen, or L{None}.
    @ivar connected: When the connection was established, or L{None}.
    """

    rule: str
    verdict: str
    provider: str = ""
    device: str | None = None
    fallback: Fallback | None = None
    asked: float | None = None
    decided: float | None = None
    connected: float | None = None

    def __str__(self) -> str:
        carried = self.provider or "undecided"
        if self.device is not None:
            carried += f" on {self.device}"
        text = f"{carried}, by rule {self.rule} ({self.verdict})"
        return text if self.fallback is None else f"{text}: {self.fallback}"


__all__ = ["EXPLICIT", "UNASKED", "Fallback", "Reason"]
