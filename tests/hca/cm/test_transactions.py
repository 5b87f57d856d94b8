"""
The transaction ids of CM messages, and their form as management datagrams on packets.
"""

from __future__ import annotations

from struct import Struct

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.roce.test_devices import HERE, THERE, PacketTestCase
from tests.hca.hcas import settle
from twisted_ib.hca.cm import transactions
from twisted_ib.hca.cm.transactions import CMTransactions
from twisted_ib.hca.wire.cm.messages import APR, DREP, DREQ, LAP, MRA, REJ, REP, REQ, RTU, SIDR_REP, SIDR_REQ
from twisted_ib.hca.wire.icrc import icrc

#: Base version, class, version, method; status, specific; transaction; attribute, reserved, modifier.
MAD = Struct(">BBBBHHQHHI")
AGENT = 0xA5A5A5A5


class TransactionTests(SynchronousTestCase):
    """
    Which transaction a message has.
    """

    def setUp(self) -> None:
        """
        The beginnings of the peer's exchanges.
        """
        self.transactions = CMTransactions(lambda bits: AGENT)
        for number, (message, body) in enumerate(
            (
                (REQ, REQ(localCommunicationID=7).pack()),
                (DREQ, DREQ(localCommunicationID=7, remoteCommunicationID=3).pack()),
                (LAP, LAP(localCommunicationID=7, remoteCommunicationID=3).pack()),
                (SIDR_REQ, SIDR_REQ(requestID=7).pack()),
            )
        ):
            self.transactions.remember("192.0.2.9", message.attribute, b"xx" + body, 2, 0x1000 + number)

    def transaction(self, attribute: int, body: bytes, address: str = "192.0.2.9") -> int:
        """
        @return: That of a message that we send.
        """
        return self.transactions.of(address, attribute, body)

    def test_own(self) -> None:
        """
        An exchange that we begin has our transaction id, in all of its messages.
        """
        own = AGENT << 32 | 5
        both = {"localCommunicationID": 5, "remoteCommunicationID": 7}
        for message in (
            REQ(localCommunicationID=5),
            RTU(**both),
            DREQ(**both),
            LAP(**both),
            SIDR_REQ(requestID=5),
            MRA(messageMRAed=1, **both),
            REJ(messageRejected=1, **both),
            REJ(messageRejected=2, localCommunicationID=5),
        ):
            self.assertEqual(self.transaction(message.attribute, message.pack()), own, message)

    def test_peers(self) -> None:
        """
        An answer has the transaction id of the request, per exchange and per peer.
        """
        both = {"localCommunicationID": 5, "remoteCommunicationID": 7}
        for message, expected in (
            (REP(**both), 0x1000),
            (MRA(messageMRAed=0, **both), 0x1000),
            (REJ(messageRejected=0, **both), 0x1000),
            (DREP(**both), 0x1001),
            (APR(**both), 0x1002),
            (MRA(messageMRAed=2, **both), 0x1002),
            (SIDR_REP(requestID=7), 0x1003),
        ):
            body = message.pack()
            self.assertEqual(self.transaction(message.attribute, body), expected, message)
            self.assertEqual(self.transaction(message.attribute, body, "192.0.2.10"), 7, message)

    def test_bound(self) -> None:
        """
        The oldest exchanges are forgotten.
        """
        self.patch(transactions, "PACKET_TRANSACTIONS", 4)
        body = REQ(localCommunicationID=8).pack()
        self.transactions.remember("192.0.2.9", REQ.attribute, body, 0, 0x2000)
        for message, number, expected in ((REP, 7, 7), (DREP, 7, 0x1001), (REP, 8, 0x2000)):
            reply = message(localCommunicationID=5, remoteCommunicationID=number)
            self.assertEqual(self.transaction(message.attribute, reply.pack()), expected)

    def test_notBeginnings(self) -> None:
        """
        Other messages of a peer begin no exchange.
        """
        before = dict(self.transactions._known)
        body = REP(localCommunicationID=9, remoteCommunicationID=5).pack()
        self.transactions.remember("192.0.2.9", REP.attribute, body, 0, 0x3000)
        self.assertEqual(self.transactions._known, before)


class WireTests(PacketTestCase):
    """
    Messages of two HCAs on the wire.
    """

    def test_transactions(self) -> None:
        """
        REQ, REP and RTU are one transaction, DREQ and DREP another; each packet is one of queue pair 1 with
        a right checksum.
        """
        self.wire.log = []
        one, two = self.connected()
        one.device.disconnect(one.connection)
        settle(one.device, two.device)
        said = []
        for source, destination, port, _, data in self.wire.log:
            ip = bytes([0x45, 0]) + (28 + len(data)).to_bytes(2, "big") + b"\0\0\x40\0\x40\x11\0\0"
            ip += bytes(map(int, source.split("."))) + bytes(map(int, destination.split(".")))
            whole = ip + port.to_bytes(2, "big") + b"\x12\xb7" + (8 + len(data)).to_bytes(2, "big")
            whole += b"\0\0" + data
            end = len(whole) - 4
            self.assertEqual(icrc(whole, 0, end).to_bytes(4, "little"), whole[end:])
            self.assertEqual((data[0], data[5:9], len(data)), (0x64, b"\0\0\1\x80", 12 + 8 + 256 + 4))
            self.assertEqual(data[12:20], b"\x80\x01\0\0\0\0\0\1")
            self.assertEqual(port, 0xD872)
            fields = MAD.unpack_from(data, 20)
            said.append((source, fields[7], fields[6]))
        first, second = said[0][2], said[3][2]
        self.assertEqual(first & 0xFFFFFFFF, one.connection.localID)
        self.assertEqual(
            said,
            [
                (HERE, REQ.attribute, first),
                (THERE, REP.attribute, first),
                (HERE, RTU.attribute, first),
                (HERE, DREQ.attribute, second),
                (THERE, DREP.attribute, second),
            ],
        )
