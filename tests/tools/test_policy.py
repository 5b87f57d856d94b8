"""
Tests for C{ib-policy}.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.tools.policy import main

RULES = """\
use tcp server ttcp* *:22-25
use sdp connect * 192.168.1.0/24:*
use both listen * *:8080
use tcp connect * [::1]:80
route 192.168.0.0/16 lo0
"""


class PolicyTests(SynchronousTestCase):
    """
    What C{ib-policy} prints.
    """

    def setUp(self) -> None:
        """
        Make a file, and an environment without any.
        """
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()
        self.file = self.folder / "rules"
        self.file.write_text(RULES)
        names = ("TWISTED_IB_CONFIG", "SIMPLE_LIBSDP", "ALWAYS_USE_SDP")
        self.environment = {name: value for name, value in os.environ.items() if name not in names}
        self.environment["XDG_CONFIG_HOME"] = str(self.folder)

    def run_(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """
        @param arguments: the command line.
        @param environment: what is different in the environment.

        @return: the exit status, standard output and standard error.
        """
        said, errors = io.StringIO(), io.StringIO()
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            with (
                mock.patch.dict(os.environ, {**self.environment, **environment}, clear=True),
                redirect_stdout(said),
                redirect_stderr(errors),
            ):
                status = main(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            os.chdir(before)
        return status, said.getvalue(), errors.getvalue()

    def verdict(self, *arguments: str, **environment: str) -> str:
        """
        @return: the first of the two lines that a check prints.
        """
        status, said, errors = self.run_(*arguments, **environment)
        self.assertEqual((status, said.count("\n"), errors), (0, 2, ""), arguments)
        return said.splitlines()[0]

    def test_check(self) -> None:
        """
        The verdict, and the line that gives it.
        """
        for role, target, program, said in (
            ("listen", "0.0.0.0:23", "ttcpd", "tcp rules:1"),
            ("listen", "*:23", "ttcpd", "tcp rules:1"),
            ("listen", ":23", "ttcpd", "tcp rules:1"),
            ("listen", "*:23", "twistd", "both default"),
            ("connect", "192.168.1.9:80", "x", "sdp rules:2"),
            ("connect", "192.168.2.9:80", "x", "both default"),
            ("listen", "127.0.0.1:8080", "x", "both rules:3"),
            ("connect", "::1:80", "x", "tcp rules:4"),
            ("connect", "[::1]:80", "x", "tcp rules:4"),
        ):
            arguments = ("check", role, target, "--program", program, "--config", "rules")
            self.assertEqual(self.verdict(*arguments), said, arguments)

    def test_outcome(self) -> None:
        """
        The second line says what would happen now, by the rules, the devices, the routes and who is there.
        """
        self.file.write_text(
            "use tcp connect * *:1\nuse sdp connect * *:2\nuse both connect * *:3\nuse sdp listen * *:4\n"
            "device roce7 roce 127.0.0.9\nroute 198.51.100.0/24 roce7\nroute 0.0.0.0/0 shm0\n"
        )
        for role, target, said in (
            ("connect", "127.0.0.1:1", "TCP: so says the rule"),
            ("connect", "127.0.0.1:2", "SDP on shm0, or an error if nobody answers there"),
            ("connect", "198.51.100.7:2", "SDP on roce7, or an error if nobody answers there"),
            ("connect", "192.0.2.5:2", "an error: 192.0.2.5 is not this host and no route leads there"),
            ("connect", "192.0.2.5:3", "TCP: 192.0.2.5 is not this host and no route leads there"),
            (
                "connect",
                "198.51.100.7:3",
                "TCP: 198.51.100.7 is not this host and the route to roce7 counts for 'use sdp' alone",
            ),
            ("connect", "127.0.0.1:3", "TCP: nobody offers SDP on 127.0.0.1:3"),
            ("listen", "127.0.0.1:4", "SDP on shm0"),
            ("listen", "*:5", "TCP, and SDP on shm0"),
            ("listen", "192.0.2.5:5", "an error: 192.0.2.5 is not an address of this host"),
        ):
            status, out, err = self.run_("check", role, target, "--config", "rules")
            self.assertEqual((status, out.splitlines()[1:], err), (0, [said], ""), target)

    def test_default(self) -> None:
        """
        Without rules, and with a file that has none.
        """
        check = ("check", "listen", "127.0.0.1:80")
        self.assertEqual(self.verdict(*check), "both default")
        self.assertEqual(self.verdict(*check, "--config", "/dev/null"), "sdp default")
        self.assertEqual(self.verdict(*check, TWISTED_IB_CONFIG="/dev/null"), "sdp default")
        self.assertEqual(self.verdict(*check, SIMPLE_LIBSDP=""), "sdp default")

    def test_search(self) -> None:
        """
        Without C{--config} it is the file that a program would read.
        """
        (self.folder / "twisted_ib").mkdir()
        own = self.folder / "twisted_ib" / "ib.conf"
        own.write_text("use tcp connect * *:*")
        self.assertEqual(self.verdict("check", "connect", "1.2.3.4:1"), f"tcp {own}:1")
        other = self.verdict("check", "connect", "192.168.1.1:1", TWISTED_IB_CONFIG=str(self.file))
        self.assertEqual(other, f"sdp {self.file}:2")

    def test_json(self) -> None:
        """
        The same as an object, with what led to it.
        """
        status, said, _ = self.run_("check", "connect", "192.168.1.9:80", "--config", "rules", "--json")
        self.assertEqual(status, 0)
        self.assertEqual(
            json.loads(said),
            {
                "verdict": "sdp",
                "rule": "rules:2",
                "reason": None,
                "file": "rules",
                "role": "connect",
                "program": "twistd",
                "address": "192.168.1.9",
                "port": 80,
                "devices": ["lo0"],
                "outcome": "an error: 192.168.1.9 is not this host and no route leads there",
            },
        )
        answer = json.loads(self.run_("check", "listen", "*:80", "--json", SIMPLE_LIBSDP="1")[1])
        self.assertEqual(
            [answer[key] for key in ("verdict", "rule", "reason", "file", "address", "devices")],
            ["sdp", "default", "SIMPLE_LIBSDP is set", None, "0.0.0.0", ["shm0"]],
        )

    def test_name(self) -> None:
        """
        A host's name stands for its address.
        """
        self.file.write_text("use tcp connect * 127.0.0.0/8:*")
        self.assertEqual(self.verdict("check", "connect", "localhost:80", "--config", "rules"), "tcp rules:1")

    def test_checkErrors(self) -> None:
        """
        A failed check is one sentence and a status.
        """
        (self.folder / "wrong").write_text("use spd listen * *:*")
        for arguments, text in (
            (("listen", "80"), "80: expected HOST:PORT, with a port from 0 to 65535"),
            (("listen", "*:65536"), "*:65536: expected HOST:PORT, with a port from 0 to 65535"),
            (("listen", "*:http"), "*:http: expected HOST:PORT, with a port from 0 to 65535"),
            (("connect", "..:80"), "..: is not a name"),
            (("listen", "*:80", "--config", "none"), "none: No such file or directory"),
            (("listen", "*:80", "--config", "/dev"), "/dev: is not a file"),
            (
                ("listen", "*:80", "--config", "wrong"),
                "wrong:1:5: expected sdp, tcp or both, not 'spd'",
            ),
        ):
            self.assertEqual(self.run_("check", *arguments), (1, "", f"ib-policy: {text}\n"))

    def test_test(self) -> None:
        """
        A right file is right, also with warnings; a wrong one is not.
        """
        self.assertEqual(self.run_("test", "rules"), (0, "", ""))
        self.file.write_text("\nuse sdp connect * 10.0.0.5/24:*\n")
        status, said, errors = self.run_("test", "rules")
        self.assertEqual((status, errors), (0, ""))
        self.assertRegex(said, r"\Arules:2: 10\.0\.0\.5/24 never matches, .*\n\Z")
        self.file.write_text("use sdp connect * 10.0.0.5/24:*\nuse spd\n\nroute * x\x1b\n")
        self.assertEqual(
            self.run_("test", "rules"),
            (
                1,
                "rules:2:5: expected sdp, tcp or both, not 'spd'\n"
                r"rules:4:9: expected the name of a device, one of lo0, shm0, not 'x\x1b'"
                "\n",
                "",
            ),
        )

    def test_testUnreadable(self) -> None:
        """
        A file that cannot be read is one sentence and a status.
        """
        for name, text in (
            ("none", "none: No such file or directory"),
            ("rules/x", "rules/x: Not a directory"),
            ("/", "/: is not a file"),
            ("/dev/zero", "/dev/zero: has more than 262144 bytes"),
        ):
            self.assertEqual(self.run_("test", name), (1, "", f"ib-policy: {text}\n"))

    def test_usage(self) -> None:
        """
        A command line that says nothing is status 2.
        """
        for arguments in ((), ("check",), ("check", "bind", "*:1"), ("test",), ("try", "rules")):
            status, said, errors = self.run_(*arguments)
            self.assertEqual((status, said, errors.count("\n")), (2, "", 1), errors)
