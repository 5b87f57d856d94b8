"""
Tests of L{twisted_ib.subnet.sa.agent}.
"""

from __future__ import annotations

from attrs import evolve

from tests.hca.mad.attributes.records import RECORDS
from tests.subnet.sa.cases import KEY, AdministrationTestCase, gidOf, guidOf
from tests.subnet.sa.test_groups import CREATE, RECORD
from twisted_ib.hca.mad import transfers
from twisted_ib.hca.mad.attributes.administration import (
    InformInfo,
    MCMemberRecord,
    NodeRecord,
    PathRecord,
    stride,
)
from twisted_ib.hca.mad.attributes.layouts import layoutOf
from twisted_ib.hca.mad.attributes.notice import ClassPortInfo
from twisted_ib.hca.mad.rmpp.receiver import Receiver
from twisted_ib.hca.mad.rmpp.segments import TransferStatus, headerOf, segment
from twisted_ib.hca.mad.rmpp.sender import RMPP_ACK_SECONDS
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.administration import DELETE, GET_MULTI, GET_TABLE, GET_TRACE_TABLE, SAStatus
from twisted_ib.hca.wire.mad.classes import DATA, FIRST, LAST, PERFORMANCE, AdministrationHeader, RMPPHeader
from twisted_ib.hca.wire.mad.mad import GET, SET, TRAP, Mad, decodeMAD

AT = 56


class RequestTests(AdministrationTestCase):
    """
    Which requests are answered.
    """

    def test_classPortInfo(self) -> None:
        """
        Its capabilities.
        """
        found = self.get(ClassPortInfo())
        expected = {"capabilityMask": 0x2200, "capabilityMask2": 0xB0C8, "respTimeVal": 16}
        self.assertEqual(found, ClassPortInfo(classVersion=2, **expected))

    def test_response(self) -> None:
        """
        A response has the request's transaction, modifier and component mask, the distance of records, and
        zeros behind; a refusal has the record that was asked with.
        """
        mad = self.ask(GET, NodeRecord(lid=2), "lid", modifier=7)
        self.assertEqual((mad.modifier, mad.header), (7, AdministrationHeader(RMPPHeader(), 0, 14, 0, 1)))
        self.assertEqual(mad.data[NodeRecord.OCTETS :], bytes(200 - NodeRecord.OCTETS))
        mad = self.ask(GET, NodeRecord(lid=9), "lid")
        self.assertEqual((mad.status, NodeRecord.parse(mad.data)), (SAStatus.NO_RECORDS, NodeRecord(lid=9)))

    def test_statuses(self) -> None:
        """
        Statuses of what is asked for or how.
        """
        join = evolve(RECORD, portGID=gidOf(2))
        for status, method, record, names, changes in (
            (SAStatus.SUCCESS, GET, NodeRecord(lid=2), ("lid",), {}),
            (SAStatus.BAD_VERSION, GET, NodeRecord(lid=2), ("lid",), {"version": 1}),
            (SAStatus.UNSUPPORTED_METHOD, GET_MULTI, PathRecord(), (), {}),
            (SAStatus.UNSUPPORTED_METHOD, GET_TRACE_TABLE, PathRecord(), (), {}),
            (SAStatus.UNSUPPORTED_METHOD, TRAP, PathRecord(), (), {}),
            (SAStatus.UNSUPPORTED_METHOD_ATTRIBUTE, SET, NodeRecord(), (), {}),
            (SAStatus.UNSUPPORTED_METHOD_ATTRIBUTE, DELETE, PathRecord(), (), {}),
            (SAStatus.UNSUPPORTED_METHOD_ATTRIBUTE, GET, InformInfo(), (), {}),
            (SAStatus.UNSUPPORTED_METHOD_ATTRIBUTE, GET_TABLE, ClassPortInfo(), (), {}),
            (SAStatus.NO_RECORDS, GET, NodeRecord(), ("lid",), {}),
            (SAStatus.TOO_MANY_RECORDS, GET, NodeRecord(), (), {}),
            (SAStatus.INVALID_GID, GET, PathRecord(), ("dgid",), {}),
            (SAStatus.INSUFFICIENT_COMPONENTS, SET, join, (), {}),
            (SAStatus.REQUEST_INVALID, SET, evolve(join, joinState=0), CREATE, {}),
        ):
            with self.subTest(status=status, method=method, record=type(record).__name__):
                self.assertEqual(self.status(method, record, *names, **changes), status)

    def test_beyond(self) -> None:
        """
        A component mask with bits beyond the record is invalid, whatever record.
        """
        # Some have more components than a mask has bits.
        for kind in (each for each in RECORDS.values() if len(layoutOf(each).components) < 64):
            for method in (GET, GET_TABLE):
                self.assertEqual(self.status(method, kind(), "*"), SAStatus.REQUEST_INVALID)

    def test_key(self) -> None:
        """
        A requester with another SM_Key gets no answer.
        """
        self.give(2, self.request(GET, NodeRecord(lid=2), "lid", key=KEY + 1))
        self.assertEqual((self.manager.sent, self.lost), ([], {"sa_wrong_key": 1}))

    def test_requester(self) -> None:
        """
        A requester that is no port of the subnet gets no answer; a port may use any of its LIDs.
        """
        for lid in (0, 9, 0xFFFF):
            self.give(lid, self.request(GET, NodeRecord(lid=2), "lid"))
        self.assertEqual((self.manager.sent, self.lost), ([], {"sa_unknown_requester": 3}))
        port = self.port(2)
        port.info = evolve(port.info, lid=0x20, lmc=2)
        self.model.index()
        self.assertEqual(self.get(NodeRecord(lid=0x20), "lid", lid=0x23).nodeInfo.portGuid, guidOf(2))

    def test_unexpected(self) -> None:
        """
        MADs that are not for it are counted.
        """
        for octets in (bytes(MAD_BYTES), bytes(10), Mad(PERFORMANCE, 1, GET, 0, 0x12).pack()):
            self.give(2, octets)
        self.assertEqual((self.manager.sent, self.lost), ([], {"sa_unexpected": 3}))

    def test_reset(self) -> None:
        """
        Another manager is master: groups, services and subscriptions are forgotten, and those of the
        configuration are there again after the next sweep.
        """
        self.set(evolve(RECORD, portGID=gidOf(2)), *CREATE)
        self.set(InformInfo(subscribe=1, isGeneric=1))
        self.administration.reset()
        administration = self.administration
        counts = len(administration.groups), len(administration.events), len(administration.services)
        self.assertEqual((counts, administration.deadline()), ((0, 0, 0), None))
        administration.swept(self.now)
        self.assertEqual(len(self.table(MCMemberRecord())), 1)


class TableTests(AdministrationTestCase):
    """
    GetTable.
    """

    adapters = 20

    def begin(self, lid: int = 2) -> Mad:
        """
        A port with RMPP asks for all nodes.
        """
        mad = self.request(GET_TABLE, NodeRecord())
        self.give(lid, mad, room=0)
        return mad

    def taken(self) -> list[bytes]:
        """
        @return: the packets that were sent.
        """
        found, self.manager.sent[:] = [bytes(each.octets) for each in self.manager.sent], []
        return found

    def receive(self, loses: int = 0) -> bytes:
        """
        Receive a transfer, of which so many segments are lost at first.
        """
        receiver = Receiver(AT, self.now)
        while receiver.status is None:
            sent = self.taken()
            if not sent:
                self.wait(RMPP_ACK_SECONDS)
                continue
            for octets in sent:
                if loses:
                    loses -= 1
                    continue
                for answer in receiver.received(octets, self.now):
                    self.give(2, answer, room=0)
        self.assertIs(receiver.status, TransferStatus.SUCCESS)
        return receiver.take()

    def test_transfer(self) -> None:
        """
        A table is a transfer, mended where it is lost; then nothing is left of it.
        """
        for loses in (0, 1):
            with self.subTest(loses=loses):
                mad = self.begin()
                table = self.receive(loses)
                self.assertEqual(len(table), 21 * stride(NodeRecord) * 8)
                lids = [NodeRecord.parse(table[at:]).lid for at in range(0, len(table), 112)]
                self.assertEqual(lids, [0x40, *range(1, 21)])
                self.assertEqual(
                    (len(self.administration.transfers), self.administration.deadline()), (0, None)
                )
                self.assertTrue(mad.transaction)

    def test_segments(self) -> None:
        """
        The first segment has the header of a response; an empty table has one segment without records.
        """
        mad = self.request(GET_TABLE, NodeRecord(), "lid")
        self.give(2, mad, room=0)
        (octets,) = self.taken()
        response, header = decodeMAD(octets), headerOf(octets)
        self.assertEqual((response.method, response.status, response.transaction), (0x92, 0, mad.transaction))
        self.assertEqual(response.header.attributeOffset, 14)
        self.assertEqual((header.type, header.segment, header.length), (DATA, 1, 20))
        self.assertTrue(header.flags & FIRST and header.flags & LAST)

    def test_repeated(self) -> None:
        """
        A request that comes again has its response already.
        """
        mad = self.begin()
        first = self.taken()
        self.give(2, mad, room=0)
        self.assertEqual((self.taken(), len(self.administration.transfers)), (first, 1))

    def test_silent(self) -> None:
        """
        A requester that does not acknowledge gets two MADs.
        """
        self.begin()
        self.wait(60)
        self.assertEqual(len(self.taken()), 2)
        self.assertEqual(len(self.administration.transfers), 0)

    def test_bound(self) -> None:
        """
        There are so many transfers to one requester; what comes then is dropped.
        """
        self.patch(transfers, "RMPP_TRANSFERS_PER_PEER", 2)
        for _ in range(3):
            self.begin()
        self.assertEqual((len(self.administration.transfers), self.lost), (2, {"sa_busy": 1}))
        self.begin(lid=3)
        self.assertEqual(len(self.administration.transfers), 3)

    def test_foreign(self) -> None:
        """
        An ACK of another port, or of no transfer, does nothing.
        """
        self.begin()
        (octets,) = self.taken()
        receiver = Receiver(AT, self.now)
        (answer,) = receiver.received(octets, self.now)
        self.give(3, answer, room=0)
        self.assertEqual((self.taken(), self.lost), ([], {"sa_unexpected": 1}))
        self.give(2, answer, room=0)
        self.assertEqual([headerOf(each).segment for each in self.taken()], [2, 1])

    def test_request(self) -> None:
        """
        A request in a segment of its own is a request.
        """
        octets = self.request(GET, NodeRecord(lid=2), "lid").pack()
        self.give(2, segment(octets, RMPPHeader(1, DATA, 31, 7, 0, 1, 220)), room=0)
        (response,) = self.taken()
        self.assertEqual(headerOf(response), RMPPHeader())

    def test_room(self) -> None:
        """
        A requester without RMPP gets whole records, as many as it has room for.
        """
        for room, count in ((256, 1), (224, 1), (AT + 111, 0)):
            self.give(2, self.request(GET_TABLE, NodeRecord()), room=room)
            (packet,) = self.manager.sent
            self.manager.sent.clear()
            self.assertEqual(packet.length, AT + 112 * count)
            octets = bytes(packet.octets)
            self.assertEqual(octets[packet.length :], bytes(MAD_BYTES - packet.length))
            self.assertEqual(headerOf(octets), RMPPHeader(1))
        self.assertEqual(len(self.administration.transfers), 0)
