"""
What C{ib-devinfo}, C{ib-stat} and C{ib-ss} say of an iWARP device: an RNIC on Ethernet, without what RFC 5040
has not, whose services are TCP ports.
"""

from __future__ import annotations

import json
from typing import Any

from tests.hca.fabric.iwarp.ends import ONE, IWARPTestCase
from tests.support.commands import PATH, CommandTestCase, programOf
from tests.support.ownaddress import ownAddress
from tests.support.waiting import readUntil
from twisted_ib.tools.show.devicetext import heading, present
from twisted_ib.tools.show.stat import commandLine, text

#: Listens over SDP on the device, and connects with itself.
PROGRAM = (
    PATH
    + """
from twisted_ib.reactor import ibreactor
ibreactor.install()
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
where = "interface=%s:device=iwarp0" % sys.argv[1]
def listening(port):
    number = port.getHost().port
    calling = clientFromString(reactor, "sdp:%s:%d:device=iwarp0" % (sys.argv[1], number))
    calling.connect(Factory.forProtocol(Protocol)).addCallback(connected, number)
def connected(protocol, number):
    print("ready", number, protocol.transport.getHost().port, sep="\\n", flush=True)
serverFromString(reactor, "sdp:0:" + where).listen(Factory.forProtocol(Protocol)).addCallback(listening)
reactor.run()
"""
)


class TextTests(IWARPTestCase):
    """
    A device with two connections' queue pairs.
    """

    def test_devinfo(self) -> None:
        """
        Its transport is iWARP, its GID is its address, of no version of RoCE; there are no atomics, multicast
        groups, address handles and RNR NAKs.
        """
        one, _ = self.pair()
        entry = json.loads(json.dumps(one.device.describe()))
        found = heading(entry, True)
        for line in (
            "hca_id:\tiwarp0",
            "\ttransport:\t\t\tiWARP (1)",
            "\tphys_port_cnt:\t\t\t1",
            "\tatomic_cap:\t\t\tATOMIC_NONE (0)",
            "\tmax_mcast_grp:\t\t\t0",
            "\tmax_total_mcast_qp_attach:\t0",
            "\tmax_ah:\t\t\t\t0",
            "\t\t\tstate:\t\t\tPORT_ACTIVE (4)",
            "\t\t\tlink_layer:\t\tEthernet",
            f"\t\t\tGID[  0]:\t\t::ffff:{ONE}",
            "\t\tqp:\t\t\t1",
        ):
            self.assertIn(line, found)
        for word in ("RoCE", "RC_RNR_NAK_GEN", "UD_AV_PORT_ENFORCE", "QKEY_CNTR"):
            self.assertNotIn(word, "\n".join(found))
        shown = present(entry)
        self.assertEqual((shown["transport"], shown["atomic_cap"]), ("iWARP", "ATOMIC_NONE"))

    def test_stat(self) -> None:
        """
        Its port is up, on Ethernet, and has no LID; the port's GUID is the device's.
        """
        device = self.device(ONE)
        entry = json.loads(json.dumps(device.describe()))
        found = text([entry], commandLine().parse_args([]))
        guid = f"0x{device.nodeGUID:016x}"
        self.assertEqual(found[0], "CA 'iwarp0'")
        for line in ("State: Active", "Base lid: 0", f"Port GUID: {guid}", "Link layer: Ethernet"):
            self.assertIn("\t\t" + line, found)
        self.assertIn(f"\tNode GUID: {guid}", found)


class SocketsTests(CommandTestCase):
    """
    A process with a port and a connection.
    """

    program = programOf("show.ss")

    def test_rows(self) -> None:
        """
        The service, which is a TCP port, and both ends of a connection are shown with address and port.
        """
        address = ownAddress(6)
        self.environment["TWISTED_IB_DEVICES"] = f"iwarp0=iwarp:{address}"
        self.environment["XDG_CONFIG_HOME"] = str(self.directory)
        process = self.start(PROGRAM, address)
        assert process.stdout is not None
        port, source = (f"{address}:{process.stdout.readline().strip()}" for _ in range(2))
        # While other sockets come and go, /proc/net/tcp may leave one out.
        rows: list[dict[str, Any]] = readUntil(
            lambda: json.loads(self.ended("--json").stdout or "[]"),
            lambda rows: {"sdp", "tcp"} <= {row["provider"] for row in rows if row["kind"] == "listener"},
        )
        found = [
            (row["kind"], row["device"], row["state"], row["local"], row["remote"])
            for row in rows
            if row["provider"] == "sdp"
        ]
        expected: list[tuple[Any, ...]] = [
            ("connection", "iwarp0", "ESTABLISHED", port, source),
            ("connection", "iwarp0", "ESTABLISHED", source, port),
            ("listener", "iwarp0", "LISTEN", port, None),
        ]
        self.assertEqual(sorted(found, key=str), sorted(expected, key=str))
        listeners = {row["local"] for row in rows if row["provider"] == "tcp" and row["kind"] == "listener"}
        self.assertEqual(listeners, {port})
