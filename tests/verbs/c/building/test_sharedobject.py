"""
Tests for shared objects that are written without a compiler.
"""

from __future__ import annotations

import ctypes
import os
import struct
from errno import ENOSYS
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from twisted_ib.verbs.c.building import sharedobject
from twisted_ib.verbs.c.building.sharedobject import MACHINES, Stub, sharedObject
from twisted_ib.verbs.c.building.stubs import STUBS


class SharedObjectTests(SynchronousTestCase):
    """
    Tests for L{sharedObject}.
    """

    def test_loaded(self) -> None:
        """
        The loader finds each of as many functions as there may be, of two versions, by name and version; they
        set C{errno}, and variables are zero, apart, and aligned for any type.
        """
        machine = os.uname().machine
        if machine not in MACHINES:
            raise SkipTest(f"there is no code for {machine}")
        answers = (ENOSYS, -1, -ENOSYS, 0, None)
        stubs = [
            Stub(f"f{number // 2}", f"V_{number % 2}", answers[number % len(answers)])
            for number in range(STUBS)
        ]
        path = Path(self.mktemp()).absolute()
        path.write_bytes(sharedObject("libx.so.1", ["libc.so.6"], ["V_0", "V_1"], stubs, machine))
        loaded, process = ctypes.CDLL(str(path), use_errno=True), ctypes.CDLL(None)
        process.dlvsym.restype = ctypes.c_void_p
        process.dlvsym.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p
        variables = set()
        for each in stubs:
            found = process.dlvsym(loaded._handle, each.name.encode(), each.version.encode())
            self.assertIsNotNone(found, each)
            if each.answer is None:
                variables.add(found)
                self.assertEqual(found % 16, 0)
                self.assertEqual(ctypes.string_at(found, 64), bytes(64))
            else:
                ctypes.set_errno(0)
                function = ctypes.CFUNCTYPE(ctypes.c_long, use_errno=True)(found)
                self.assertEqual((function(), ctypes.get_errno()), (each.answer, ENOSYS))
        self.assertEqual(len(variables), sum(each.answer is None for each in stubs))
        self.assertIsNone(process.dlvsym(loaded._handle, b"f0", b"V_2"))

    def test_aarch64(self) -> None:
        """
        The code for the other machine, word by word (Arm ARM, C6.2): errno's function is called through the
        slot that is told from its first word, and the answer is moved, or the complement of a negative one.
        """
        for answer, move in ((ENOSYS, 0xD28004C0), (-1, 0x92800000), (-ENOSYS, 0x928004A0), (0, 0xD2800000)):
            expected = [
                0xA9BF7BFD,
                0x580801F0,
                0xD63F0200,
                0x528004C1,
                0xB9000001,
                move,
                0xA8C17BFD,
                0xD65F03C0,
            ]
            code = sharedobject._aarch64(0x10040, answer)
            self.assertEqual([*struct.unpack("<8I", code)], expected)

    def test_layout(self) -> None:
        """
        What the loader reads first, on each machine: the header, the segments with their rights, and the one
        relocation, of errno's function.
        """
        for name, number, relocation in (("x86_64", 62, 6), ("aarch64", 183, 1025)):
            file = sharedObject("libx.so.1", [], ["V"], [Stub("f", "V", 0), Stub("v", "V", None)], name)
            header = struct.unpack_from("<HHIQQQIHHHHHH", file, 16)
            self.assertEqual(header, (3, number, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0))
            loaded, written, dynamic, stack = (
                struct.unpack_from("<IIQQQQQQ", file, 64 + 56 * each) for each in range(4)
            )
            self.assertEqual((loaded[:4], loaded[7]), ((1, 5, 0, 0), 0x10000))
            self.assertEqual((written[:2], written[7], dynamic[:2]), ((1, 6), 0x10000, (2, 6)))
            self.assertEqual(
                (written[3] - written[2], loaded[5], loaded[6]), (0x10000, written[2], written[2])
            )
            self.assertEqual((len(file) - written[2], written[6] >= written[5] + 64), (written[5], True))
            # No stack that is run.
            self.assertEqual(stack, (0x6474E551, 6, 0, 0, 0, 0, 0, 16))
            self.assertEqual(file.count(struct.pack("<Q", 1 << 32 | relocation)), 1)
