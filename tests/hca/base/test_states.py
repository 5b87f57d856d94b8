"""
Tests for L{twisted_ib.hca.base.states}.
"""

from __future__ import annotations

from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.states import (
    ATTRIBUTE_NAMES,
    QPAttribute,
    QPState,
    QPType,
    attributeBits,
    checkTransition,
    transitionRule,
)

# Written out a second time, as words: IBTA vol. 1 "Modify Queue Pair", Linux's C{qp_state_table}.
_CONNECTED = "pkey_index port_num qp_access_flags"
_UC_RTR = "ah_attr path_mtu dest_qp_num rq_psn"
_RUNNING = "cur_qp_state alt_ah_attr qp_access_flags path_mig_state"
_DRAINED = "ah_attr alt_ah_attr qp_access_flags pkey_index path_mig_state"
EXPECTED = {
    ("RC", "RESET", "INIT"): (_CONNECTED, ""),
    ("RC", "INIT", "INIT"): ("", _CONNECTED),
    ("RC", "INIT", "RTR"): (
        _UC_RTR + " max_dest_rd_atomic min_rnr_timer",
        "alt_ah_attr qp_access_flags pkey_index",
    ),
    ("RC", "RTR", "RTS"): (
        "sq_psn timeout retry_cnt rnr_retry max_rd_atomic",
        _RUNNING + " min_rnr_timer",
    ),
    ("RC", "RTS", "RTS"): ("", _RUNNING + " min_rnr_timer"),
    ("RC", "RTS", "SQD"): ("", "en_sqd_async_notify"),
    ("RC", "SQD", "SQD"): (
        "",
        _DRAINED + " port_num timeout retry_cnt rnr_retry max_rd_atomic max_dest_rd_atomic min_rnr_timer",
    ),
    ("RC", "SQD", "RTS"): ("", _RUNNING + " min_rnr_timer"),
    ("UC", "RESET", "INIT"): (_CONNECTED, ""),
    ("UC", "INIT", "INIT"): ("", _CONNECTED),
    ("UC", "INIT", "RTR"): (_UC_RTR, "alt_ah_attr qp_access_flags pkey_index"),
    ("UC", "RTR", "RTS"): ("sq_psn", _RUNNING),
    ("UC", "RTS", "RTS"): ("", _RUNNING),
    ("UC", "RTS", "SQD"): ("", "en_sqd_async_notify"),
    ("UC", "SQD", "SQD"): ("", _DRAINED),
    ("UC", "SQD", "RTS"): ("", _RUNNING),
    ("UC", "SQE", "RTS"): ("", "cur_qp_state qp_access_flags"),
    ("UD", "RESET", "INIT"): ("pkey_index port_num qkey", ""),
    ("UD", "INIT", "INIT"): ("", "pkey_index port_num qkey"),
    ("UD", "INIT", "RTR"): ("", "pkey_index qkey"),
    ("UD", "RTR", "RTS"): ("sq_psn", "cur_qp_state qkey"),
    ("UD", "RTS", "RTS"): ("", "cur_qp_state qkey"),
    ("UD", "RTS", "SQD"): ("", "en_sqd_async_notify"),
    ("UD", "SQD", "SQD"): ("", "pkey_index qkey"),
    ("UD", "SQD", "RTS"): ("", "cur_qp_state qkey"),
    ("UD", "SQE", "RTS"): ("", "cur_qp_state qkey"),
}
ALL = list(product(QPType, QPState, QPState))


def expected(qpType: QPType, current: QPState, new: QPState) -> tuple[list[str], list[str]] | None:
    """
    The names of the required and optional attributes, or L{None}.
    """
    if new in (QPState.RESET, QPState.ERR):
        return [], []
    row = EXPECTED.get((qpType.name, current.name, new.name))
    return None if row is None else (row[0].split(), row[1].split())


class NumbersTests(SynchronousTestCase):
    """
    The numbers are those of verbs.
    """

    def test_states(self) -> None:
        """
        States count from RESET 0 to ERR 6.
        """
        self.assertEqual(
            [(state.name, int(state)) for state in QPState],
            list(
                zip(
                    ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"],
                    range(7),
                    strict=True,
                )
            ),
        )

    def test_types(self) -> None:
        """
        RC is 2, UC 3, UD 4.
        """
        self.assertEqual([int(t) for t in QPType], [2, 3, 4])

    def test_attributes(self) -> None:
        """
        Attributes are single bits; a few are compared with C{verbs.h}.
        """
        self.assertEqual(len({int(a) for a in QPAttribute}), 22)
        self.assertEqual(int(QPAttribute.AV), 128)
        self.assertEqual(int(QPAttribute.DEST_QPN), 1048576)
        self.assertEqual(int(QPAttribute.RATE_LIMIT), 1 << 25)
        self.assertEqual(set(ATTRIBUTE_NAMES.values()), set(QPAttribute))


class TransitionTests(SynchronousTestCase):
    """
    Each type, in each state, asked for each state.
    """

    def test_everyTransition(self) -> None:
        """
        Exactly the standard's transitions exist, with exactly its attributes.
        """
        for qpType, current, new in ALL:
            row = expected(qpType, current, new)
            rule = transitionRule(qpType, current, new)
            if row is None:
                self.assertIsNone(rule, (qpType, current, new))
                error = self.assertRaises(QueuePairError, checkTransition, qpType, current, new, 0)
                self.assertIn("there is no transition", str(error))
                self.assertIn(f"{current.name} -> {new.name}", str(error))
            else:
                self.assertEqual(
                    rule,
                    (attributeBits(row[0]), attributeBits(row[1])),
                    (qpType, current, new),
                )

    def test_everyAttributeMissing(self) -> None:
        """
        Without one of the required attributes a transition is refused, by its name.
        """
        for (qpType, current, new), row in self.rows():
            checkTransition(qpType, current, new, row[0])
            checkTransition(qpType, current, new, row[0] + row[1] + ["qp_state"])
            for name in row[0]:
                rest = [other for other in row[0] if other != name]
                error = self.assertRaises(QueuePairError, checkTransition, qpType, current, new, rest)
                self.assertIn(f"requires {ATTRIBUTE_NAMES[name].name}", str(error))

    def test_everyAttributeUnwanted(self) -> None:
        """
        With an attribute that is neither required nor optional it is refused, by name.
        """
        for (qpType, current, new), row in self.rows():
            unwanted = set(ATTRIBUTE_NAMES) - set(row[0]) - set(row[1]) - {"qp_state"}
            for name in unwanted:
                error = self.assertRaises(
                    QueuePairError,
                    checkTransition,
                    qpType,
                    current,
                    new,
                    row[0] + [name],
                )
                self.assertIn(f"not take {ATTRIBUTE_NAMES[name].name}", str(error))

    def rows(
        self,
    ) -> list[tuple[tuple[QPType, QPState, QPState], tuple[list[str], list[str]]]]:
        """
        The transitions that exist.
        """
        return [(key, row) for key in ALL if (row := expected(*key)) is not None]

    def test_bits(self) -> None:
        """
        Attributes may come as bits, as verbs has them.
        """
        bits = int(QPAttribute.PKEY_INDEX | QPAttribute.PORT | QPAttribute.ACCESS_FLAGS)
        checkTransition(QPType.RC, QPState.RESET, QPState.INIT, bits | 1)

    def test_unknownName(self) -> None:
        """
        A name that no attribute has is refused.
        """
        error = self.assertRaises(
            QueuePairError,
            checkTransition,
            QPType.RC,
            QPState.RTS,
            QPState.RTS,
            ["colour"],
        )
        self.assertEqual(str(error), "a queue pair has no attribute 'colour'")

    def test_unknownBit(self) -> None:
        """
        A bit that no attribute has is refused.
        """
        error = self.assertRaises(
            QueuePairError,
            checkTransition,
            QPType.RC,
            QPState.RTS,
            QPState.ERR,
            1 << 30,
        )
        self.assertIn("does not take unknown attribute 0x40000000", str(error))
