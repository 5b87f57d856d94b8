"""
Tests of the values of L{twisted_ib.verbs.pyverbs}: parameters, their order and defaults, attributes.
"""

from __future__ import annotations

import errno
import inspect
import os
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import HCAError
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import (
    GID,
    GRH,
    SGE,
    WC,
    AHAttr,
    ConnParam,
    GlobalRoute,
    MWBind,
    MWBindInfo,
    PyverbsCM,
    PyverbsError,
    PyverbsObject,
    PyverbsRDMAError,
    PyverbsUserError,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPInitAttrEx,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
    enums,
    inc_rkey,
)

TEXT = "fe80:0000:0000:0000:0202:c9ff:fe00:0001"

# Parameters and defaults as pyverbs has them at rdma-core 65; a name alone has no default.
PARAMETERS: list[tuple[type, str]] = [
    (SGE, "addr length lkey"),
    (RecvWR, "wr_id=0 num_sge=0 sg=None next_wr=None"),
    (SendWR, "wr_id=0 opcode=2 num_sge=0 imm_data=0 sg=None send_flags=2 next_wr=None"),
    (
        WC,
        "wr_id=0 status=0 opcode=0 vendor_err=0 byte_len=0 qp_num=0 src_qp=0 imm_data=0 wc_flags=0 "
        "pkey_index=0 slid=0 sl=0 dlid_path_bits=0",
    ),
    (QPCap, "max_send_wr=1 max_recv_wr=10 max_send_sge=1 max_recv_sge=1 max_inline_data=0"),
    (QPInitAttr, "qp_type=4 qp_context=None scq=None rcq=None srq=None cap=None sq_sig_all=1"),
    (
        QPInitAttrEx,
        "qp_type=4 qp_context=None scq=None rcq=None srq=None cap=None sq_sig_all=0 comp_mask=0 pd=None "
        "xrcd=None create_flags=0 max_tso_header=0 source_qpn=0 hash_conf=None ind_table=None "
        "send_ops_flags=0",
    ),
    (QPAttr, "qp_state=1 cur_qp_state=0 port_num=1 path_mtu=3"),
    (GID, "val=None"),
    (GRH, "sgid=None dgid=None version_tclass_flow=0 paylen=0 next_hdr=0 hop_limit=1"),
    (GlobalRoute, "dgid=None flow_label=0 sgid_index=0 hop_limit=1 traffic_class=0"),
    (AHAttr, "dlid=0 sl=0 src_path_bits=0 static_rate=0 is_global=0 port_num=1 gr=None"),
    (SrqAttr, "max_wr=100 max_sge=1 srq_limit=0"),
    (SrqInitAttr, "attr=None"),
    (MWBindInfo, "mr addr length mw_access_flags"),
    (MWBind, "info send_flags wr_id=0"),
    (ConnParam, "resources=1 depth=1 flow_control=0 retry=5 rnr_retry=5 srq=0 qp_num=0 data_len=0"),
    (PyverbsError, "msg error_code=-1"),
    (PyverbsRDMAError, "msg error_code=-1"),
    (PyverbsUserError, "msg"),
]

# Attributes that can be set, and how wide they are in C.
WIDTHS: list[tuple[Any, str, int]] = [
    (SGE(0, 0, 0), "addr", 64),
    (SGE(0, 0, 0), "length lkey", 32),
    (WC(), "wr_id", 64),
    (WC(), "status opcode vendor_err byte_len qp_num src_qp imm_data wc_flags", 32),
    (WC(), "pkey_index slid", 16),
    (WC(), "sl dlid_path_bits", 8),
    (QPCap(), "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data", 32),
    (QPInitAttr(), "qp_type sq_sig_all max_send_wr max_recv_wr max_send_sge max_recv_sge", 32),
    (QPInitAttr(), "max_inline_data", 32),
    (QPInitAttrEx(), "qp_type sq_sig_all comp_mask create_flags source_qpn send_ops_flags max_send_wr", 32),
    (QPInitAttrEx(), "max_recv_wr max_send_sge max_recv_sge max_inline_data", 32),
    (QPInitAttrEx(), "max_tso_header", 16),
    (QPAttr(), "qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num", 32),
    (QPAttr(), "qp_access_flags rate_limit", 32),
    (QPAttr(), "pkey_index alt_pkey_index", 16),
    (QPAttr(), "en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer", 8),
    (QPAttr(), "port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout", 8),
    (GRH(), "version_tclass_flow", 32),
    (GRH(), "paylen", 16),
    (GRH(), "next_hdr hop_limit", 8),
    (GlobalRoute(), "flow_label", 32),
    (GlobalRoute(), "sgid_index hop_limit traffic_class", 8),
    (AHAttr(is_global=1, gr=GlobalRoute()), "dlid", 16),
    (AHAttr(is_global=1, gr=GlobalRoute()), "flow_label", 32),
    (AHAttr(is_global=1, gr=GlobalRoute()), "sgid_index hop_limit traffic_class", 8),
    (AHAttr(), "sl src_path_bits static_rate is_global port_num", 8),
    (SrqAttr(), "max_wr max_sge srq_limit", 32),
    (ConnParam(), "qpn", 32),
    (ConnParam(), "resources depth flow_control retry rnr_retry srq data_len", 8),
    (RecvWR(), "wr_id", 64),
    (RecvWR(), "num_sge", 32),
    (SendWR(opcode=7), "wr_id", 64),
    (SendWR(opcode=7), "opcode num_sge imm_data send_flags", 32),
]


class Window(PyverbsObject):
    """
    A memory window, a region or an address handle, as far as values look at it.
    """

    rkey = 0x123456FF


class CommonTests(SynchronousTestCase):
    """
    Properties of all values.
    """

    def test_parameters(self) -> None:
        """
        Parameters, their order and their defaults are those of pyverbs.
        """
        for value, expected in PARAMETERS:
            found = [
                name if parameter.default is parameter.empty else f"{name}={parameter.default!s}"
                for name, parameter in inspect.signature(value).parameters.items()
            ]
            names = [word.split("=")[0] for word in expected.split()]
            self.assertEqual([word.split("=")[0] for word in found], names, value)
            defaults = {
                name: parameter.default
                for name, parameter in inspect.signature(value).parameters.items()
                if parameter.default is not parameter.empty
            }
            words = dict(word.split("=") for word in expected.split() if "=" in word)
            numbers = {name: None if word == "None" else int(word) for name, word in words.items()}
            self.assertEqual(defaults, numbers, value)

    def test_defaultsAreAttributes(self) -> None:
        """
        A parameter that is not given is an attribute of that name, with its default.
        """
        renamed = {"scq": "send_cq", "rcq": "recv_cq", "qp_num": "qpn"}
        for value in (WC, QPCap, QPInitAttr, QPInitAttrEx, QPAttr, SrqAttr, ConnParam):
            made = value()
            for name, parameter in inspect.signature(value).parameters.items():
                if name != "cap":
                    attribute = renamed.get(name, name) if value is not WC else name
                    self.assertEqual(getattr(made, attribute), parameter.default)

    def test_widths(self) -> None:
        """
        An attribute takes the greatest number of its field in C, of an enumeration too, and
        gives back a plain integer; what does not fit, or is no integer, changes nothing.
        """
        for value, names, bits in WIDTHS:
            for name in names.split():
                for fits in (0, enums.IBV_QPS_RTS, (1 << bits) - 1):
                    setattr(value, name, fits)
                    self.assertEqual(getattr(value, name), fits, name)
                    self.assertIs(type(getattr(value, name)), int, name)
                for wrong in (-1, 1 << bits):
                    self.assertRaises(OverflowError, setattr, value, name, wrong)
                for other in (1.0, "1", None):
                    self.assertRaises(TypeError, setattr, value, name, other)
                self.assertEqual(getattr(value, name), (1 << bits) - 1, name)
                setattr(value, name, 1)

    def test_names(self) -> None:
        """
        Each name that the package gives is there, and is documented.
        """
        for name in verbs.__all__:
            self.assertTrue(getattr(verbs, name).__doc__, name)

    def test_with(self) -> None:
        """
        Classes with a C{close} in pyverbs work in a C{with}.
        """
        for value in (SGE(1, 2, 3), RecvWR(), SendWR(opcode=enums.IBV_WR_LOCAL_INV)):
            self.assertIsInstance(value, PyverbsCM)
            with value as same:
                self.assertIs(same, value)

    def test_incRkey(self) -> None:
        """
        The low 8 bits of an rkey count up by themselves.
        """
        self.assertEqual(inc_rkey(0x12345678), 0x12345679)
        self.assertEqual(inc_rkey(0xFFFFFFFF), 0xFFFFFF00)


class ErrorsTests(SynchronousTestCase):
    """
    The errors carry an errno and have it in their text.
    """

    def test_code(self) -> None:
        """
        With an errno the message ends with it and its text.
        """
        for kind in (PyverbsError, PyverbsRDMAError):
            error = kind("Failed to open", errno.EINVAL)
            self.assertEqual(error.error_code, errno.EINVAL)
            self.assertEqual(str(error), f"Failed to open. Errno: 22, {os.strerror(22)}")
            self.assertIsInstance(error, PyverbsError)
            self.assertIsInstance(error, HCAError)

    def test_noCode(self) -> None:
        """
        Without one the message stays alone.
        """
        for error in (PyverbsError("no"), PyverbsRDMAError("no"), PyverbsUserError("no")):
            self.assertEqual((str(error), error.error_code), ("no", -1))


class AddressTests(SynchronousTestCase):
    """
    L{GID}, L{GRH}, L{GlobalRoute}, L{AHAttr}.
    """

    def test_gid(self) -> None:
        """
        A GID is zeros or what was given, and goes to text and back.
        """
        self.assertEqual(str(GID()), ":".join(["0000"] * 8))
        gid = GID(TEXT.upper())
        self.assertEqual((gid.gid, str(gid), str(GID(gid.gid))), (TEXT, TEXT, TEXT))
        self.assertEqual(gid.raw, bytes.fromhex("fe80000000000000 0202c9fffe000001"))
        gid.gid = "0001:" * 7 + "0002"
        self.assertEqual(gid.raw, b"\0\1" * 7 + b"\0\2")

    def test_gidMalformed(self) -> None:
        """
        Anything but eight words of four hexadecimal digits is refused.
        """
        gid = GID(TEXT)
        wrong = [
            "",
            "fe80::1",
            TEXT[:-1],
            TEXT + "0",
            TEXT + ":0000",
            TEXT[:-1] + "g",
            TEXT + "\n",
            " " + TEXT,
        ]
        for text in wrong:
            self.assertRaises(PyverbsUserError, GID, text)
            self.assertRaises(PyverbsUserError, setattr, gid, "gid", text)
        self.assertEqual(gid.gid, TEXT)

    def test_route(self) -> None:
        """
        Routes and headers take a GID and give its text.
        """
        route = GlobalRoute(GID(TEXT), 5, 1, 64, 3)
        self.assertEqual(route.dgid, TEXT)
        route.dgid = "0000:" * 7 + "0001"
        self.assertEqual(route.dgid, "0000:" * 7 + "0001")
        self.assertRaises(PyverbsUserError, setattr, route, "dgid", "::1")
        header = GRH(GID(TEXT), GID(), 0x60000000, 40, 0x1B)
        self.assertEqual((header.sgid, header.dgid), (TEXT, str(GID())))
        self.assertIn("DGID", str(route))
        self.assertIn(TEXT, str(header))

    def test_local(self) -> None:
        """
        Attributes without a route have none to show, and take no destination.
        """
        attr = AHAttr(dlid=7, gr=GlobalRoute(GID(TEXT)))
        self.assertEqual((attr.dlid, attr.port_num, attr.is_global), (7, 1, 0))
        attr.dgid = TEXT
        found = (attr.dgid, attr.flow_label, attr.sgid_index, attr.hop_limit, attr.traffic_class)
        self.assertEqual(found, (None,) * 5)
        self.assertNotIn("dgid", str(attr))

    def test_global(self) -> None:
        """
        A global one has a copy of its route.
        """
        route = GlobalRoute(GID(TEXT), 5, 1, 64, 3)
        attr = AHAttr(is_global=1, port_num=2, gr=route)
        route.flow_label = 6
        found = (attr.dgid, attr.flow_label, attr.sgid_index, attr.hop_limit, attr.traffic_class)
        self.assertEqual(found, (TEXT, 5, 1, 64, 3))
        attr.hop_limit = 9
        attr.dgid = str(GID())
        self.assertEqual((attr.hop_limit, route.hop_limit), (9, 64))
        self.assertIn("traffic class", str(attr))

    def test_globalWithoutRoute(self) -> None:
        """
        A global one needs a route.
        """
        self.assertRaises(PyverbsUserError, AHAttr, is_global=1)


class WorkRequestTests(SynchronousTestCase):
    """
    L{SGE}, L{SendWR}, L{RecvWR}, L{WC}, L{MWBind}.
    """

    def test_copies(self) -> None:
        """
        A request has copies of the first C{num_sge} elements.
        """
        sge = SGE(0x1000, 10, 0xAB)
        for request in (RecvWR(1, 1, [sge, sge]), SendWR(1, num_sge=1, sg=[sge, sge])):
            sge.length = 11
            [copy] = request.sg_list
            self.assertEqual((copy.addr, copy.length, copy.lkey), (0x1000, 10, 0xAB))
            sge.length = 10

    def test_changed(self) -> None:
        """
        Changes of a request's list, and of the number of its elements, count when it is posted.
        """
        for request in (RecvWR(1, 2, [SGE(1, 2, 3)] * 2), SendWR(1, num_sge=2, sg=[SGE(1, 2, 3)] * 2)):
            self.assertEqual([piece.length for piece in request.pieces()], [2, 2])
            request.sg_list[0].length = 5
            self.assertEqual([piece.length for piece in request.pieces()], [5, 2])
            request.num_sge = 1
            self.assertEqual([piece.length for piece in request.pieces()], [5])
        receive = RecvWR(1, 1, [SGE(1, 2, 3)])
        receive.sg_list = [SGE(4, 6, 7)]
        self.assertEqual([piece.address for piece in receive.pieces()], [4])

    def test_tooFew(self) -> None:
        """
        Fewer elements than C{num_sge}, or other things, are refused.
        """
        sge = SGE(0, 0, 0)
        for wrong in (None, [], [sge], [sge, None]):
            self.assertRaises(PyverbsUserError, RecvWR, 1, 2, wrong)
            self.assertRaises(PyverbsUserError, SendWR, num_sge=2, sg=wrong)

    def test_needsElement(self) -> None:
        """
        Only invalidations and binds go without an element.
        """
        for opcode in range(16):
            if opcode in (enums.IBV_WR_LOCAL_INV, enums.IBV_WR_BIND_MW, enums.IBV_WR_SEND_WITH_INV):
                self.assertEqual(SendWR(opcode=opcode).sg_list, [])
            else:
                self.assertRaises(PyverbsUserError, SendWR, opcode=opcode)
                self.assertRaises(PyverbsUserError, SendWR, opcode=opcode, num_sge=0, sg=[SGE(0, 0, 0)])

    def test_setList(self) -> None:
        """
        The list of a send can be replaced by one element.
        """
        request = SendWR(num_sge=1, sg=[SGE(0, 0, 0)])
        request.sg_list = SGE(5, 6, 7)
        self.assertEqual([(sge.addr, sge.length) for sge in request.sg_list], [(5, 6)])
        self.assertRaises(PyverbsUserError, setattr, request, "sg_list", None)

    def test_chain(self) -> None:
        """
        Requests make chains.
        """
        last, send = RecvWR(2), SendWR(opcode=7)
        self.assertIs(RecvWR(1, next_wr=last).next_wr, last)
        self.assertIs(SendWR(opcode=7, next_wr=send).next_wr, send)
        self.assertIsNone(send.next_wr)

    def test_targets(self) -> None:
        """
        The key comes before the address; the last setting holds.
        """
        request = SendWR(opcode=7)
        self.assertEqual((request.rdma_remote_addr, request.rdma_rkey, request.rkey), (0, 0, 0))
        request.set_wr_rdma(0xAB, 0x1000)
        self.assertEqual((request.rdma_remote_addr, request.rdma_rkey), (0x1000, 0xAB))
        request.set_wr_atomic(0xAC, 0x2000, 1, 2)
        self.assertIsInstance(request.target, verbs.base.wr.AtomicTarget)
        self.assertEqual((request.rdma_remote_addr, request.rdma_rkey), (0x2000, 0xAC))
        self.assertEqual((request.target.compare_add, request.target.swap), (1, 2))  # type: ignore[union-attr]
        handle = Window()
        request.set_wr_ud(handle, 17, 0x11111111)
        self.assertIsInstance(request.target, verbs.base.wr.DatagramTarget)
        self.assertIs(request.target.ah, handle)  # type: ignore[union-attr]
        self.assertEqual(request.rdma_rkey, 0)
        self.assertRaises(TypeError, request.set_wr_ud, None, 17, 0)
        self.assertRaises(OverflowError, request.set_wr_rdma, 1 << 32, 0)
        request.set_qp_type_xrc(9)
        self.assertEqual(request.remote_srqn, 9)

    def test_bind(self) -> None:
        """
        A bind gives a window its next rkey.
        """
        info = MWBindInfo(Window(), 0x1000, 64, enums.IBV_ACCESS_REMOTE_READ)
        request = SendWR(opcode=enums.IBV_WR_BIND_MW)
        request.set_bind_wr(Window(), info)
        self.assertEqual(request.rkey, 0x12345600)
        bind = MWBind(info, enums.IBV_SEND_SIGNALED, 4)
        self.assertEqual((bind.info, bind.send_flags, bind.wr_id), (info, 2, 4))
        self.assertEqual((info.addr, info.length, info.mw_access_flags), (0x1000, 64, 4))
        self.assertRaises(TypeError, MWBindInfo, None, 0, 0, 0)
        self.assertRaises(TypeError, MWBind, None, 0)
        self.assertIn("MW access flags", str(info))
        self.assertIn("Send flags", str(bind))

    def test_printed(self) -> None:
        """
        Values print a line for each field, with names for numbers where there are any.
        """
        self.assertEqual(
            str(SGE(16, 5, 255)),
            f"{'Address':22}: {'0x10':20}\n{'Length':22}: {'5':20}\n{'Key':22}: {'0xff':20}\n",
        )
        completion = str(WC(1, 5, 0x80, wc_flags=3))
        for text in ("WR_FLUSH_ERR", ": RECV ", "GRH WITH_IMM"):
            self.assertIn(text, completion)
        self.assertIn("Unknown (99)", str(WC(status=99)))
        flags = enums.IBV_SEND_FENCE | enums.IBV_SEND_INLINE
        send = SendWR(3, num_sge=1, sg=[SGE(0, 0, 0)], send_flags=flags)
        self.assertIn("IBV_SEND_FENCE IBV_SEND_INLINE", str(send))
        self.assertIn("Num SGE", str(RecvWR()))


class AttributesTests(SynchronousTestCase):
    """
    L{QPCap}, L{QPInitAttr}, L{QPInitAttrEx}, L{QPAttr}, L{SrqInitAttr}, L{ConnParam}.
    """

    def test_cap(self) -> None:
        """
        Sizes are copied in and out, and can be set one by one; they are zeros if not given.
        """
        for kind in (QPInitAttr, QPInitAttrEx):
            self.assertEqual(kind().cap.max_recv_wr, 0)
            cap = QPCap(7)
            attr = kind(cap=cap)
            cap.max_send_wr = 8
            self.assertEqual((attr.max_send_wr, attr.cap.max_send_wr, attr.max_recv_wr), (7, 7, 10))
            attr.cap.max_send_wr = 9
            self.assertEqual(attr.max_send_wr, 7)
            attr.max_send_wr = 9
            self.assertEqual(attr.cap.max_send_wr, 9)
            attr.cap = None
            self.assertEqual(attr.max_send_wr, 9)
            attr.cap = QPCap()
            self.assertEqual(attr.max_send_wr, 1)

    def test_queues(self) -> None:
        """
        Completion queues are given as C{scq} and C{rcq} and found as C{send_cq} and C{recv_cq};
        other things are refused.
        """
        for kind in (QPInitAttr, QPInitAttrEx):
            one, other = PyverbsObject(), PyverbsObject()
            attr = kind(enums.IBV_QPT_RC, None, one, other)
            self.assertEqual((attr.send_cq, attr.recv_cq, attr.srq), (one, other, None))
            self.assertRaises(TypeError, kind, scq=1)
            self.assertRaises(TypeError, setattr, attr, "recv_cq", 1)

    def test_paths(self) -> None:
        """
        Addresses are copied in and out; a queue pair without one has zeros.
        """
        attr = QPAttr()
        self.assertEqual((attr.ah_attr.port_num, attr.alt_ah_attr.port_num), (0, 0))
        path = AHAttr(is_global=1, gr=GlobalRoute(GID(TEXT)))
        attr.ah_attr = path
        path.sl = 3
        self.assertEqual((attr.ah_attr.dgid, attr.ah_attr.sl, attr.alt_ah_attr.dgid), (TEXT, 0, None))
        attr.alt_ah_attr = path
        path.sl = 4
        attr.alt_ah_attr.sl = 5
        attr.alt_ah_attr = None
        self.assertEqual((attr.alt_ah_attr.sl, attr.alt_ah_attr.port_num), (3, 1))
        attr.cap = QPCap(max_recv_wr=4)
        self.assertEqual(attr.cap.max_recv_wr, 4)

    def test_otherThings(self) -> None:
        """
        A value of a wrong class is a TypeError, and changes nothing.
        """
        attr = QPAttr()
        attr.ah_attr = AHAttr(sl=3)
        for name in ("ah_attr", "alt_ah_attr", "cap"):
            self.assertRaises(TypeError, setattr, attr, name, {})
        self.assertEqual((attr.ah_attr.sl, attr.cap.max_send_wr), (3, 0))
        self.assertRaises(TypeError, QPInitAttr, cap=SrqAttr())
        self.assertRaises(TypeError, SrqInitAttr, QPCap())
        self.assertRaises(TypeError, AHAttr, is_global=1, gr=GID())

    def test_printed(self) -> None:
        """
        Attributes print a line for each field.
        """
        self.assertEqual(str(QPCap()).count("\n"), 5)
        self.assertIn("QP type             : RC ", str(QPInitAttr(enums.IBV_QPT_RC)))
        extended = QPInitAttrEx(comp_mask=5, create_flags=enums.IBV_QP_CREATE_SOURCE_QPN)
        self.assertIn("PD CREATE_FLAGS", str(extended))
        self.assertIn("SOURCE_QPN", str(extended))
        attr = QPAttr()
        attr.qp_access_flags = 3
        for text in ("QP state              : INIT ", "LOCAL_WRITE REMOTE_WRITE", ": 1024 "):
            self.assertIn(text, str(attr))

    def test_srq(self) -> None:
        """
        The attributes of a new shared receive queue are those given, or zeros.
        """
        attr = SrqAttr(5, 2, 1)
        made = SrqInitAttr(attr)
        attr.max_wr = 6
        self.assertEqual((made.max_wr, made.max_sge, made.srq_limit), (5, 2, 1))
        empty = SrqInitAttr()
        self.assertEqual((empty.max_wr, empty.max_sge, empty.srq_limit), (0, 0, 0))

    def test_privateData(self) -> None:
        """
        Private data are cut at C{data_len}; none are kept without it, and empty ones change
        nothing.
        """
        param = ConnParam(data_len=3)
        self.assertEqual(param.private_data, b"")
        param.set_private_data(b"ab")
        self.assertEqual(param.private_data, b"ab")
        param.set_private_data(b"wxyz")
        param.set_private_data(b"")
        self.assertEqual(param.private_data, b"wxy")
        param = ConnParam(qp_num=17)
        param.set_private_data(b"ab")
        self.assertEqual((param.private_data, param.qpn), (b"", 17))
        self.assertIn("retry count: 5 ", str(param))
