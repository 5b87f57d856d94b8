"""
The messages of C{tests/vectors/rds.txt}, which two Linux hosts have exchanged.
"""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

_FILE = Path(__file__).resolve().parents[2] / "vectors" / "rds.txt"


@frozen
class Captured:
    """
    A message on TCP, or a fragment on RC.
    """

    carrier: str
    connection: str
    header: bytes
    payload: bytes


def _payload(text: str) -> bytes:
    """
    Spell out a payload.
    """
    if text == "-":
        return b""
    first, count = text.split("*")
    if first.startswith("+"):
        return bytes((int(first) + i) & 255 for i in range(int(count)))
    return bytes([int(first)]) * int(count)


def captured(carrier: str) -> list[Captured]:
    """
    @param carrier: C{tcp} or C{rc}.
    @return: what it carried, in the order of the file.
    """
    found = []
    for line in _FILE.read_text().splitlines():
        if line.startswith(carrier + " "):
            _, connection, header, payload = line.split()
            found.append(Captured(carrier, connection, bytes.fromhex(header), _payload(payload)))
    return found


def streams() -> dict[str, bytes]:
    """
    @return: the streams of TCP, each from its beginning, by connection and direction.
    """
    found: dict[str, bytes] = {}
    for message in captured("tcp"):
        found[message.connection] = found.get(message.connection, b"") + message.header + message.payload
    return found
