"""
Why a connection or a listener goes the way it goes.
"""

from __future__ import annotations

import attrs

#: The rule of what was asked for by name: C{sdp:}, C{ib:} and C{direct:}.
EXPLICIT = "explicit"


@attrs.frozen
class Fallback:
    """
    Why SDP does not carry something that could have gone over it.

    @ivar kind: what it is counted as, a word.
    @ivar text: a sentence's worth of detail, on one line.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        """
        @return: The detail.
        """
        return self.text


@attrs.define
class Reason:
    """
    What was decided about one connection or one listener, and by what.

    Times are those of the reactor, in seconds.

    @ivar rule: C{FILE:LINE} of the rule, C{default}, or C{explicit}.
    @ivar verdict: what the rule says: C{sdp}, C{tcp} or C{both}.
    @ivar provider: what carries it: C{sdp}, C{tcp} or C{rdma}; C{both} for a listener on
        both; C{""} before that is decided.
    @ivar device: the name of the HCA, or L{None}.
    @ivar fallback: why SDP does not carry it though it may, or L{None}.
    @ivar asked: when the application asked.
    @ivar decided: when the provider was chosen, or L{None}.
    @ivar connected: when the connection stood, or L{None}.
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
        """
        @return: One line for people.
        """
        carried = self.provider or "undecided"
        if self.device is not None:
            carried += f" on {self.device}"
        text = f"{carried}, by rule {self.rule} ({self.verdict})"
        return text if self.fallback is None else f"{text}: {self.fallback}"


__all__ = ["EXPLICIT", "Fallback", "Reason"]
