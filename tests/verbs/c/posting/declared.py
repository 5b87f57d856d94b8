"""
The handlers of libibverbs without the library: cffi reads the declarations, no C is compiled.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from struct import Struct
from types import ModuleType, SimpleNamespace
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from twisted_ib.hca.device.form import compiledModules
from twisted_ib.verbs import c
from twisted_ib.verbs.c.verbs.declarations import DECLARATIONS
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import SGE

#: The module that the library brings.
_MODULE = "_twisted_ib_verbs"
#: C{struct twisted_ib_record}, and C{struct ibv_sge}.
_RECORD, _PIECE = Struct("=5Q8I"), Struct("=QII")
#: C{IBV_WR_RDMA_WRITE}, C{IBV_WR_SEND} and C{IBV_SEND_SIGNALED}.
_WRITE, _SEND, _SIGNALED = 0, 2, 2


def _declared() -> ModuleType:
    """
    @return: the library's module, but with structures that no header has laid out, and no functions.
    """
    try:
        from cffi import FFI
    except ImportError:
        raise SkipTest(
            "cffi is not installed; it comes with the extra [c]: pip install 'twisted-ib[c]'"
        ) from None

    class Declared(FFI):  # type: ignore[misc]
        """
        The declarations.
        """

        def addressof(self, subject: Any, *members: Any) -> Any:
            """
            @return: No function has one.
            """
            return self.NULL if subject is lib else super().addressof(subject, *members)

    ffi = Declared()
    ffi.cdef(re.sub(r",? \.\.\.;?", "", DECLARATIONS.replace("\n    ...;", "")).replace("[...]", "[64]"))
    module = ModuleType(_MODULE)
    sleep = ffi.new("struct twisted_ib_sleep *")

    def recall(ring: Any) -> int:
        left, ring.head = ring.tail - ring.head, ring.tail
        return int(left)

    posting = ffi.new("struct twisted_ib_posting *")

    def swap() -> int:
        filled, posting.fill = posting.fill, 0
        posting.turn ^= 1
        return int(filled)

    def suspend(queue: Any) -> None:
        queue.limit = 0

    lib = SimpleNamespace(
        twisted_ib_own_sleep=lambda: sleep,
        twisted_ib_recall=recall,
        twisted_ib_posting=posting,
        twisted_ib_swap=swap,
        twisted_ib_suspend=suspend,
        twisted_ib_look_for_handlers=lambda: None,
    )
    module.__dict__.update(ffi=ffi, lib=lib)
    return module


def _taken() -> dict[str, ModuleType]:
    """
    @return: The modules of the handlers, which are imported anew after this.  No others: whoever has imported
        one keeps it, and there would be two.  Compiled ones, which a process has once, come back as they are.
    """
    names = [each for each in sys.modules if each == _MODULE or each.startswith("twisted_ib.verbs.c.")]
    return {each: sys.modules.pop(each) for each in names}


@cache
def _lasting() -> ModuleType:
    """
    @return: The library's module for compiled ones, which keep the first that they find.
    """
    return _declared()


def _named(before: dict[str, Any]) -> None:
    """
    Have the package name the modules again that it named before: each import puts the new one there.
    """
    names = vars(c)
    for name in names.keys() - before.keys():
        del names[name]
    names.update(before)


def useDeclared(test: SynchronousTestCase) -> None:
    """
    Let the handlers' modules be imported anew, until the test ends.
    """
    test.addCleanup(_named, dict(vars(c)))
    test.addCleanup(sys.modules.update, _taken())
    test.addCleanup(_taken)
    test.patch(hub, "settle", None)
    isCompiled = any(each == "twisted_ib.verbs.core.progress" for each in compiledModules())
    sys.modules[_MODULE] = _lasting() if isCompiled else _declared()
    if isCompiled:
        # As its import does, the first time.
        hub.settle = import_module("twisted_ib.verbs.c.postings").settle


def record(
    posting: Any,
    queue: Any,
    piece: SGE,
    id: int = 1,
    whole: int = 0,
    remote: tuple[int, int] | None = None,
    others: Sequence[SGE] = (),
) -> None:
    """
    Record a request, as C does.

    @param posting: the C{struct twisted_ib_posting}.
    @param queue: the C{struct twisted_ib_queue *}.
    @param piece: its element.
    @param id: of a signalled SEND or WRITE, or of a receive.
    @param whole: 1 if it is a SEND, 2 if it is a short WRITE, 0 to take it as one of any operation.
    @param remote: the address and key that a WRITE is to.
    @param others: more elements.
    """
    ffi = sys.modules[_MODULE].ffi
    pieces = piece, *others
    size = _RECORD.size + len(pieces) * _PIECE.size
    number = int(ffi.cast("uintptr_t", queue))
    code = _SEND if remote is None else _WRITE
    address, key = remote or (0, 0)
    flags = _SIGNALED | (whole == 2) << 30
    octets = _RECORD.pack(number, id, address, 0, 0, size, code, flags, len(pieces), 0, key, 0, whole == 1)
    octets += b"".join(_PIECE.pack(each.addr, each.length, each.lkey) for each in pieces)
    ffi.memmove(posting.buffers[posting.turn] + posting.fill, octets, size)
    queue.posted += 1
    posting.fill += size


class TextsTestCase(SynchronousTestCase):
    """
    Functions that say what codes mean.

    @cvar module: Theirs, in L{twisted_ib.verbs.c}.
    @ivar handlers: Those of its library.
    """

    module: str

    def setUp(self) -> None:
        useDeclared(self)
        import_module(f"twisted_ib.verbs.c.{self.module}")
        known = import_module("twisted_ib.verbs.c.functions")._handlers
        self.handlers: Any = SimpleNamespace(**known[self.module.partition(".")[0]])
        self._string = import_module("twisted_ib.verbs.c.pointers").FFI().string

    def said(self, name: str, *arguments: int) -> str:
        """
        @return: What a function says of codes.
        """
        return str(self._string(getattr(self.handlers, name)(*arguments)).decode())


__all__ = ["TextsTestCase", "record", "useDeclared"]
