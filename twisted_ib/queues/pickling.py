"""
Objects as bytes: as C{multiprocessing} pickles them, but with large buffers out of band (PEP 574).
"""

from __future__ import annotations

import copyreg
import pickle
from collections import ChainMap
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.queues.ring import Payload

#: A pickle in pieces, and its large buffers.
Pickled = tuple[list[Payload], list[memoryview]]
#: The same where it is received.
Parts = tuple[bytes, list[Payload]]

_PROTOCOL: Final = 5
_LARGE: Final = limits.QUEUE_BUFFER_BYTES
#: The pickle of one buffer, as the object that it is given for it (pickletools: PROTO 5, NEXT_BUFFER, STOP).
_BUFFER: Final = b"\x80\x05\x97."
#: In the place of NEXT_BUFFER, with the bytes: BINBYTES8 and BYTEARRAY8.
_BYTES: Final = b"\x8e"
_BYTEARRAY: Final = b"\x96"
#: Classes that are pickled as everywhere, whatever has been registered.
_PLAIN: Final = frozenset((bool, bytes, float, int, str, type(None)))


#: C{ForkingPickler.register} fills it.
_registered: dict[type, Any] = vars(ForkingPickler)["_extra_reducers"]


class _Pieces(list[Payload]):
    """
    A file for the pickler that joins nothing, so that large pieces come here uncopied.
    """

    # A buffer that stays in the pickle comes as a PickleBuffer, which has no length; it is never the first.
    write = list.append


class _Pickler(pickle.Pickler):
    """
    Pickles as C{multiprocessing.reduction.ForkingPickler}, without a table of its own for each object.
    """

    dispatch_table: Any = ChainMap[type, Any](_registered, copyreg.dispatch_table)


def pieces(obj: object) -> Pickled:
    """
    @return: An object's pickle in pieces, and its large buffers.
    """
    if obj.__class__ is bytes and len(obj) >= _LARGE:
        return [_BUFFER], [memoryview(obj)]
    if obj.__class__ in _PLAIN:
        return [pickle.dumps(obj, _PROTOCOL)], []
    buffers: list[memoryview] = []

    def isPickled(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _LARGE or len(buffers) >= limits.QUEUE_BUFFERS:
            return True
        buffers.append(view)
        return False

    found = _Pieces()
    _Pickler(found, _PROTOCOL, buffer_callback=isPickled).dump(obj)
    return found, buffers


def inBand(data: bytes, buffers: list[Payload]) -> bytes:
    """
    @return: A pickle with its buffers in it, without loading anything.
    @raise OSError: It is no pickle of so many buffers.
    """
    if not buffers:
        return data
    import pickletools  # Here, as it is long and seldom needed.

    found: list[Payload] = []
    given = iter(buffers)
    try:
        codes = [(code.name, at) for code, _, at in pickletools.genops(data)]
        for (name, at), (_, end) in zip(codes, [*codes[1:], ("", len(data))], strict=True):
            if name == "NEXT_BUFFER":
                buffer = next(given)
                code = _BYTES if buffer.__class__ is bytes else _BYTEARRAY
                found += (code, len(buffer).to_bytes(8, "little"), buffer)
            elif name != "FRAME":  # Its length is another now.
                found.append(data[at:end])
    except (ValueError, StopIteration, IndexError, OverflowError) as error:
        raise OSError(f"the peer has sent no pickle: {error}") from None
    return b"".join(found)


def loads(data: Payload, buffers: list[Payload] | None = None) -> Any:
    """
    @return: The object of a pickle and its buffers.
    """
    return pickle.loads(data, buffers=buffers)
