"""
The states of the move of a connection to TCP, at one of its ends: see L{twisted_ib.blocking.moving}.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from twisted_ib.hca.base.machine import Machine, ignored, listed


class State(Enum):
    """
    How far the move of a connection is, at one of its ends.
    """

    #: One end has asked the other; this one sends and receives over SDP.
    ASKED = auto()
    #: The same, and a call has waited for the answer in vain: none waits again, as a server may stand still.
    OVERDUE = auto()
    #: It stays with SDP.
    REFUSED = auto()
    #: At the end that has asked: the peer sends by TCP, and this end is to do so as soon as it can.
    ANSWERED = auto()
    #: This end sends by TCP; what the peer has sent before still arrives over SDP.
    SENDING = auto()
    #: Nothing more arrives over SDP: this end also receives by TCP, behind what is in the inbox.
    MOVED = auto()


class Input(Enum):
    """
    An event that changes it.
    """

    #: A call has waited for the answer in vain.
    WAITED = auto()
    #: One of the ends stays with SDP.
    REFUSE = auto()
    #: The peer sends by TCP: SuspCommAck has come.
    ANSWER = auto()
    #: A socket of TCP has taken the place at the descriptor.
    REPLACE = auto()
    #: Nothing more arrives over SDP.
    END = auto()


#: What is not listed changes nothing.
MOVES: Final = Machine[State, Input, "State | None"](
    listed(
        {
            State.ASKED: {
                Input.WAITED: State.OVERDUE,
                Input.REFUSE: State.REFUSED,
                Input.ANSWER: State.ANSWERED,
                Input.REPLACE: State.SENDING,
            },
            State.OVERDUE: {
                Input.REFUSE: State.REFUSED,
                Input.ANSWER: State.ANSWERED,
                Input.REPLACE: State.SENDING,
            },
            # The peer has answered what this end has closed: it is reset.
            State.REFUSED: {Input.ANSWER: State.ANSWERED},
            State.ANSWERED: {Input.REPLACE: State.SENDING},
            State.SENDING: {Input.END: State.MOVED},
        }
    ),
    unlisted=ignored,
)
