"""
An interpreter of classic BPF, as far as programs need it that read a datagram and return a number.
"""

from __future__ import annotations

from struct import iter_unpack

from twisted_ib.hca.fabric.roce.slots import Instruction

#: Octets of the loads by code (Linux linux/bpf_common.h: BPF_LD, BPF_ABS and a size).
_LOADS = {0x20: 4, 0x28: 2, 0x30: 1}


def run(program: list[Instruction], data: bytes) -> int:
    """
    @return: what the program returns for a datagram.
    """
    accumulator = at = 0
    # Jumps lead forwards only, so that every program ends.
    while True:
        code, true, false, constant = program[at]
        at += 1
        if code in _LOADS:
            end = constant + _LOADS[code]
            if end > len(data):
                return 0  # Linux Documentation/networking/filter.rst: the program ends with 0.
            accumulator = int.from_bytes(data[constant:end], "big")
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x74:
            accumulator >>= constant
        elif code == 0x05:
            at += constant
        elif code == 0x15:
            at += true if accumulator == constant else false
        elif code == 0x06:
            return constant
        elif code == 0x16:
            return accumulator
        else:
            raise ValueError(f"no instruction {code:#x}")


def accepts(program: bytes, octets: bytes) -> bool:
    """
    @param program: of a socket's filter, an array of C{struct sock_filter}.
    @param octets: a datagram of UDP behind its header, of which no program reads anything.

    @return: whether the socket takes any of it.
    """
    return bool(run(list(iter_unpack("=HBBI", program)), bytes(8) + octets))
