"""
Tests for C{ib-devinfo}, run as a user runs it: as a process.
"""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import PATH, CommandTestCase, programOf, stop
from tests.support.waiting import HANG_SECONDS, readUntil
from twisted_ib.hca.base.attributes import deviceAttributes, extendedAttributes, portAttributes
from twisted_ib.hca.base.port import Port
from twisted_ib.hca.device.counters import RXE_COUNTERS
from twisted_ib.tools.show import devinfo
from twisted_ib.tools.show.devicetext import heading, present
from twisted_ib.tools.show.devinfo import writable

SERVER = PATH + "from twisted_ib.tools.demo.server import main; sys.exit(main(['', *['echo=sdp:0'] * 2]))"

COUNTS = ("pd", "mr", "cq", "qp", "srq", "ah", "mw")


class DevinfoTests(CommandTestCase):
    """
    What C{ib-devinfo} prints.
    """

    program = programOf("show.devinfo")

    def list(self) -> list[dict[str, Any]]:
        """
        @return: what the command prints as JSON.
        """
        found: list[dict[str, Any]] = json.loads(self.said("-v", "--json"))
        for entry in found:
            self.assertLessEqual({"hca_id", "pid", "program", "in_use"}, set(entry))
        return found

    def serve(self) -> subprocess.Popen[str]:
        """
        Start a process with two SDP ports.

        @return: the process, which is listening.
        """
        return self.start(SERVER)

    def test_own(self) -> None:
        """
        Where no process is, the list has the device as one would have it, with nothing
        in use.
        """
        [own] = self.list()
        self.assertEqual(own["hca_id"], "shm0")
        self.assertEqual(set(own["in_use"]), set(COUNTS))
        self.assertEqual(own["in_use"]["qp"], 0)
        self.assertEqual(list(own["counters"])[: len(RXE_COUNTERS)], list(RXE_COUNTERS))

    def test_other(self) -> None:
        """
        A process that has an HCA is in the list; once it is gone, or killed,
        it is not.
        """
        servers = [self.serve(), self.serve()]

        def up() -> list[str]:
            lines = self.said("--prometheus").splitlines()
            return [line for line in lines if line.startswith("twisted_ib_up{")]

        # On a busy machine one may not answer in C{QUERY_SECONDS}.
        found = readUntil(self.list, lambda found: all(entry["in_use"] for entry in found))
        self.assertEqual({entry["pid"] for entry in found}, {server.pid for server in servers})
        self.assertEqual(len(self.said("-l").splitlines()), 3)
        ups = readUntil(up, lambda lines: all(line.endswith(" 1") for line in lines))
        self.assertEqual(len(ups), 2)
        for server in servers:
            self.assertEqual(sum(f'pid="{server.pid}"' in line for line in ups), 1)
        for server in servers:
            [entry] = [entry for entry in found if entry["pid"] == server.pid]
            self.assertEqual(entry["hca_id"], "shm0")
            self.assertTrue(entry["program"])
            self.assertEqual(set(entry["in_use"]), set(COUNTS))
            self.assertTrue(all(isinstance(count, int) for count in entry["in_use"].values()))
            self.assertTrue(all(isinstance(count, int) for count in entry["counters"].values()))
            self.assertEqual((entry["max_sge"], entry["ports"][0]["state"]), (32, "PORT_ACTIVE"))
        servers[0].terminate()
        servers[1].kill()
        for server in servers:
            server.wait(HANG_SECONDS)
        self.assertNotIn(self.list()[0]["pid"], [server.pid for server in servers])

    def test_silent(self) -> None:
        """
        A process that does not answer is in the list, and what it has in use
        is not known.
        """
        server = self.serve()
        stop(server.pid)
        self.addCleanup(server.send_signal, signal.SIGCONT)
        [entry] = [entry for entry in self.list() if entry["pid"] == server.pid]
        self.assertIsNone(entry["in_use"])
        self.assertEqual(entry["hca_id"], "shm0")
        self.assertTrue(entry["program"])
        self.assertIn("does not answer", self.said())

    def test_text(self) -> None:
        """
        Without C{--json} the list is in C{ibv_devinfo}'s style; C{-v} adds the
        counts and C{-d} selects by name.
        """
        brief, full = self.said(), self.said("-v", "-d", "shm0")
        for text in (brief, full):
            self.assertTrue(text.startswith("hca_id:\tshm0\n"), text)
            self.assertIn("\tpid:", text)
        self.assertNotIn("\t\tqp:", brief)
        for name in COUNTS:
            self.assertIn(f"\t\t{name}:", full)
        for name in ("shm0", "lo0"):
            titles, line = self.said("-l", "-d", name).splitlines()
            self.assertEqual(titles.split(), ["Device", "PID", "Program", "QPs"])
            self.assertEqual((line.split()[0], line.split()[-1]), (name, "0"))
        self.assertNotIn("max_qp:", brief)
        self.assertIn("\tmax_qp:\t\t\t\t1048576\n", full)
        for name in RXE_COUNTERS:
            self.assertIn(f"\t\t{name}:", full)

    def test_errors(self) -> None:
        """
        An unknown device, a run directory that is none, and a bad option are
        errors of one line.
        """
        for arguments, directory, word in (
            (["-d", "nosuch0"], None, "nosuch0"),
            (["-d", "", "--json"], None, "''"),
            (["-i", "2"], None, "port 2"),
            (["--nosuch"], None, "--nosuch"),
            ([], "/dev/null", "/dev/null"),
        ):
            if directory is not None:
                self.environment["TWISTED_IB_RUN_DIR"] = directory
            result = self.ended(*arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual((result.stdout, result.stderr.count("\n")), ("", 1), result.stderr)
            self.assertTrue(result.stderr.startswith("ib-devinfo: "))
            self.assertIn(word, result.stderr)


class TextTests(SynchronousTestCase):
    """
    The presentation of an answer.
    """

    def setUp(self) -> None:
        """
        An answer as an HCA gives it.
        """
        self.entry: dict[str, Any] = {
            "hca_id": "shm0",
            "pid": 7,
            "icrc": "isal",
            "compiled": ["twisted_ib.sdp.stream"],
            "attributes": {**deviceAttributes(0x0102030405060708), **extendedAttributes()},
            "port": portAttributes(Port()),
            "gids": ["fe80::1", "192.0.2.1", "fe80::2%4"],
            "in_use": {"qp": 2},
            "counters": {"sent_pkts": 5},
        }

    def test_brief(self) -> None:
        """
        The layout is C{ibv_devinfo}'s, tab for tab.
        """
        self.assertEqual(
            heading(self.entry, False),
            [
                "hca_id:\tshm0",
                "\ttransport:\t\t\tInfiniBand (0)",
                "\tfw_ver:\t\t\t\t0.1.0",
                "\tnode_guid:\t\t\t0102:0304:0506:0708",
                "\tsys_image_guid:\t\t\t0102:0304:0506:0708",
                "\tvendor_id:\t\t\t0xffffff",
                "\tvendor_part_id:\t\t\t0",
                "\thw_ver:\t\t\t\t0x0",
                "\tphys_port_cnt:\t\t\t1",
                "\tpid:\t\t\t\t7",
                "\t\tport:\t1",
                "\t\t\tstate:\t\t\tPORT_ACTIVE (4)",
                "\t\t\tmax_mtu:\t\t4096 (5)",
                "\t\t\tactive_mtu:\t\t4096 (5)",
                "\t\t\tsm_lid:\t\t\t0",
                "\t\t\tport_lid:\t\t0",
                "\t\t\tport_lmc:\t\t0x00",
                "\t\t\tlink_layer:\t\tEthernet",
            ],
        )

    def test_verbose(self) -> None:
        """
        Limits, capabilities, GIDs, what is in use and the counters have their lines.
        """
        found = heading(self.entry, True)
        for line in (
            "\ticrc:\t\t\t\tisal",
            "\tcompiled:",
            "\t\t\t\t\ttwisted_ib.sdp.stream",
            "\tmax_mr_size:\t\t\t0x10000000000",
            "\tdevice_cap_flags:\t\t0x01223cc6",
            "\t\t\t\t\tSRQ_RESIZE",
            "\tmax_total_mcast_qp_attach:\t458752",
            "\tatomic_cap:\t\t\tATOMIC_HCA (1)",
            "\tgeneral_odp_caps:",
            "\trc_odp_caps:",
            "\t\t\t\t\tNO SUPPORT",
            "\tnum_comp_vectors:\t\t1",
            "\t\t\tmax_msg_sz:\t\t0x80000000",
            "\t\t\tport_cap_flags2:\t0x0000",
            "\t\t\tinit_type_reply:\t0",
            "\t\t\tactive_width:\t\t1X (1)",
            "\t\t\tactive_speed:\t\t2.5 Gbps (1)",
            "\t\t\tphys_state:\t\tLINK_UP (5)",
            "\t\t\tGID[  0]:\t\tfe80::1, RoCE v2",
            "\t\t\tGID[  1]:\t\t::ffff:192.0.2.1, RoCE v2",
            "\t\t\tGID[  2]:\t\tfe80::2, RoCE v2",
            "\t\tqp:\t\t\t2",
            "\t\tsent_pkts:\t\t5",
        ):
            self.assertIn(line, found)

    def test_pureForm(self) -> None:
        """
        C{-v} says that no module is compiled; without it nothing is said of that.
        """
        self.assertNotIn("\tcompiled:", heading(self.entry, False))
        self.entry["compiled"] = []
        self.assertIn("\tcompiled:\t\t\tno", heading(self.entry, True))
        self.entry["compiled"] = "nonsense"
        self.assertFalse([each for each in heading(self.entry, True) if "compiled" in each])

    def test_json(self) -> None:
        """
        In JSON codes are what they stand for, and numbers are numbers.
        """
        found = present(self.entry)
        for name, value in (
            ("hca_id", "shm0"),
            ("transport", "InfiniBand"),
            ("node_guid", "0102:0304:0506:0708"),
            ("vendor_id", 0xFFFFFF),
            ("max_mr_size", 1 << 40),
            ("atomic_cap", "ATOMIC_HCA"),
            ("pid", 7),
            ("icrc", "isal"),
            ("in_use", {"qp": 2}),
            ("counters", {"sent_pkts": 5}),
        ):
            self.assertEqual(found[name], value, name)
        [port] = found["ports"]
        self.assertEqual((port["port"], port["port_lid"], port["active_mtu"]), (1, 0, 4096))
        self.assertEqual(port["GID"], ["fe80::1", "::ffff:192.0.2.1", "fe80::2"])
        self.assertTrue({"attributes", "gids"}.isdisjoint(found))

    def test_unknownFields(self) -> None:
        """
        Whatever else a process says of its HCA is printed as it is.
        """
        entry = {"hca_id": "shm0", "pid": 7, "guid": "0001", "in_use": {"qp": 2}}
        self.assertEqual(
            [line.split() for line in heading(entry, True)],
            [["hca_id:", "shm0"], ["pid:", "7"], ["guid:", "0001"], ["in_use:"], ["qp:", "2"]],
        )
        self.assertEqual(present(entry), {**entry, "counters": None})

    def test_nonsense(self) -> None:
        """
        An answer with other types in it, or codes that nobody knows, is shown all the same, and
        what could command a terminal is not.
        """
        for value in (None, -1, 1 << 70, 1.5, "\x1b[2J", [1], {"a": []}, True):
            for name in list(self.entry):
                for inner in (None, *(self.entry[name] if isinstance(self.entry[name], dict) else ())):
                    entry = dict(self.entry)
                    entry[name] = value if inner is None else {**entry[name], inner: value}
                    text = "\n".join(heading(entry, True))
                    self.assertNotIn("\x1b", text)
                    json.dumps(present(entry))
        names = heading({"hca_id": "x", "\x1b": 1, "in_use": {"\x1b": 2}}, True)
        self.assertNotIn("\x1b", "".join(names))

    def test_nameless(self) -> None:
        """
        An answer without a device's name is none: lists by name and metrics have the others all the same.
        """
        good = {"hca_id": "shm0", "pid": 7, "in_use": {}}
        known = {"hca_id": "shm0", "pid": 8, "in_use": None}
        self.patch(devinfo, "ask", lambda search, entry: entry)
        self.patch(devinfo, "silent", lambda search, entry: known)
        nobody: Any = None
        bad: list[Any] = [{"in_use": {}}, {"hca_id": 5, "in_use": {}}, {"hca_id": "shm0"}]
        found = [devinfo.describe(nobody, each) for each in (good, *bad)]
        self.assertEqual(found, [good, known, known, known])
        self.patch(devinfo, "running", lambda: found)
        self.assertEqual(len(devinfo.short(devinfo.devices("shm0"))), 5)
        self.assertIn('pid="7"', devinfo.metrics("shm0"))

    def test_deep(self) -> None:
        """
        An answer that is nested too deep to be written is none.
        """
        deep: list[Any] = []
        for _ in range(100000):
            deep = [deep]
        self.assertFalse(writable({"in_use": {}, "deep": deep}))
        self.assertTrue(writable(self.entry))
        answer = {"hca_id": "shm0", "in_use": {}, "deep": deep}
        self.patch(devinfo, "ask", lambda search, entry: answer)
        self.patch(devinfo, "silent", lambda search, entry: {"in_use": None})
        nobody: Any = None
        self.assertEqual(devinfo.describe(nobody, nobody), {"in_use": None})
        del answer["deep"]
        self.assertEqual(devinfo.describe(nobody, nobody), answer)
        while deep:
            deep = deep.pop()
