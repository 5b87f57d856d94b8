"""
How long a requester waits: the codes of IBTA vol. 1.
"""

from __future__ import annotations

#: By min_rnr_timer's code, in hundredths of a millisecond (9.7.5.2.8).
_RNR_TIMES = (
    *(65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192),
    *(256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152),
)
_RNR_CODE_MASK = 0x1F
#: A timeout's unit in seconds; its code is a power of two (9.9.2.4.1).
_TIMEOUT_UNIT = 4.096e-6


def rnrSeconds(code: int) -> float:
    """
    How long a requester waits after an RNR refusal with this timer code.
    """
    return _RNR_TIMES[code & _RNR_CODE_MASK] / 100000


def timeoutSeconds(code: int) -> float | None:
    """
    How long it waits for an answer; L{None}, with code 0, is for ever.
    """
    return _TIMEOUT_UNIT * 2**code if code else None
