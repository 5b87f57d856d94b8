"""
Tests for where rules come from.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from twisted.logger import LogLevel, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.configuration import file
from twisted_ib.configuration.file import readRules
from twisted_ib.errors import RulesError
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.switch.rules import configuration as module
from twisted_ib.switch.rules.configuration import Configuration
from twisted_ib.switch.rules.policy import Policy
from twisted_ib.switch.rules.rulelog import RuleLog, logFile


class ConfigurationCase(SynchronousTestCase):
    """
    A home, a system folder and an eye on the log.
    """

    def setUp(self) -> None:
        """
        Make the folders.
        """
        self.root = Path(self.mktemp()).resolve()
        self.home, self.system = self.root / "home", self.root / "etc"
        self.home.mkdir(parents=True)
        self.events: list[tuple[LogLevel, str]] = []

        def observe(event: Any) -> None:
            if event.get("log_namespace") == module.__name__:
                text = event["log_format"].format(**event)
                self.events.append((event["log_level"], text))

        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)

    def write(self, path: Path, text: str) -> str:
        """
        @param path: a file.
        @param text: what to put there.

        @return: the path.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def configuration(self, **environ: str) -> Configuration:
        """
        @param environ: the environment, besides the home.

        @return: what a program called C{p} has with it.
        """
        return Configuration({"HOME": str(self.home), **environ}, "p", str(self.system))

    def verdict(self, configuration: Configuration) -> tuple[str, str]:
        """
        @param configuration: one.

        @return: what it says of some port, and where.
        """
        decision = configuration.decide("listen", "127.0.0.1", 80)
        return decision.verdict, decision.where


class SearchTests(ConfigurationCase):
    """
    Which file it is.
    """

    def test_noFile(self) -> None:
        """
        Without one there are no rules, and nothing is said of it.
        """
        configuration = self.configuration()
        self.assertEqual(self.verdict(configuration), ("both", "default"))
        self.assertEqual((configuration.policy.source, self.events), (None, []))

    def test_order(self) -> None:
        """
        The environment's, the user's, the system's.
        """
        system = self.write(self.system / "twisted_ib/ib.conf", "use tcp listen * *:*")
        self.assertEqual(self.verdict(self.configuration()), ("tcp", f"{system}:1"))
        user = self.write(self.home / ".config/twisted_ib/ib.conf", "\nuse sdp listen * *:*")
        self.assertEqual(self.verdict(self.configuration()), ("sdp", f"{user}:2"))
        folder = self.write(self.root / "xdg/twisted_ib/ib.conf", "use both listen * *:*")
        found = self.configuration(XDG_CONFIG_HOME=str(self.root / "xdg"))
        self.assertEqual(self.verdict(found), ("both", f"{folder}:1"))
        for relative in ("", "xdg", "."):
            self.assertEqual(self.verdict(self.configuration(XDG_CONFIG_HOME=relative))[1], f"{user}:2")
        named = self.write(self.root / "named", "use tcp listen * *:*")
        self.assertEqual(self.verdict(self.configuration(TWISTED_IB_CONFIG=named)), ("tcp", f"{named}:1"))
        self.assertEqual(self.verdict(self.configuration(TWISTED_IB_CONFIG=""))[1], f"{user}:2")

    def test_empty(self) -> None:
        """
        A file without a rule means SDP only if the environment names it.
        """
        self.write(self.system / "twisted_ib/ib.conf", "use tcp listen * *:*")
        user = self.write(self.home / ".config/twisted_ib/ib.conf", "")
        self.assertEqual(self.verdict(self.configuration()), ("both", "default"))
        for name in (user, "/dev/null"):
            self.assertEqual(self.verdict(self.configuration(TWISTED_IB_CONFIG=name)), ("sdp", "default"))

    def test_simple(self) -> None:
        """
        With libsdp's variables for simple mode no file is read, and SDP is for everything.
        """
        named = self.write(self.root / "named", "wrong")
        for variable in ("SIMPLE_LIBSDP", "ALWAYS_USE_SDP"):
            configuration = self.configuration(**{variable: "", "TWISTED_IB_CONFIG": named})
            decision = configuration.decide("connect", "1.2.3.4", 80)
            self.assertEqual((decision.verdict, decision.where), ("sdp", "default"))
            self.assertEqual(decision.reason, f"{variable} is set")
        self.assertEqual(self.events, [])

    def test_readOnce(self) -> None:
        """
        The file is read when it is first needed, and then not again.
        """
        configuration = self.configuration()
        user = self.write(self.home / ".config/twisted_ib/ib.conf", "use sdp listen * *:*")
        self.assertEqual(self.verdict(configuration)[1], f"{user}:1")
        os.unlink(user)
        self.assertEqual(self.verdict(configuration)[1], f"{user}:1")

    def test_program(self) -> None:
        """
        Rules know this program by the base name of argv[0].
        """
        with mock.patch.object(sys, "argv", ["/usr/bin/twistd", "-n"]):
            self.assertEqual(Configuration({}).program, "twistd")
        configuration = self.configuration(
            TWISTED_IB_CONFIG=self.write(self.root / "c", "use tcp listen q *:*\nuse tcp connect p *:*")
        )
        self.assertEqual((configuration.tcpOnly("listen"), configuration.tcpOnly("connect")), (False, True))

    def test_relative(self) -> None:
        """
        A relative name is one from where the program began, and is shown as it is.
        """
        self.write(self.root / "named", "use tcp listen * *:*")
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.root)
        configuration = self.configuration(TWISTED_IB_CONFIG="named")
        os.chdir("/")
        self.assertEqual(self.verdict(configuration), ("tcp", "named:1"))
        self.assertTrue(configuration.reload())

    def test_relativeToReactor(self) -> None:
        """
        With the C{ib} reactor that is where the reactor was made: C{twistd} goes to its C{--rundir}
        before anything listens.
        """
        self.write(self.root / "named", "use tcp listen * *:*")
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.root)
        reactor: Any = IBReactor()
        self.addCleanup(reactor.waker.connectionLost, None)
        self.addCleanup(reactor._poller.close)
        os.chdir("/")
        with mock.patch.dict(os.environ, {"TWISTED_IB_CONFIG": "named"}):
            self.assertEqual(self.verdict(reactor.switch.configuration), ("tcp", "named:1"))

    def test_warnings(self) -> None:
        """
        Warnings of a file are logged.
        """
        named = self.write(self.root / "named", "use sdp listen * 10.0.0.5/24:*")
        self.verdict(self.configuration(TWISTED_IB_CONFIG=named))
        [(level, text)] = self.events
        self.assertEqual(level, LogLevel.warn)
        self.assertTrue(text.startswith(f"{named}:1: 10.0.0.5/24 never matches"), text)


class ErrorTests(ConfigurationCase):
    """
    Files that cannot be used.
    """

    def assertRefused(self, name: str, *says: str) -> None:
        """
        Assert that a file at the start counts for nothing, and that the log says why.

        @param name: the file.
        @param says: the lines.
        """
        self.events.clear()
        configuration = self.configuration(TWISTED_IB_CONFIG=name)
        self.assertEqual(self.verdict(configuration), ("both", "default"))
        self.assertEqual(self.events, [(LogLevel.error, f"{text}; no rules hold") for text in says])

    def test_start(self) -> None:
        """
        A program starts without rules then.
        """
        missing = str(self.root / "missing")
        self.assertRefused(missing, f"{missing}: No such file or directory")
        named = self.write(self.root / "named", "use tcp listen * *:*\nuse\nuse tcp")
        self.assertRefused(
            named,
            f"{named}:2:4: expected sdp, tcp or both",
            f"{named}:3:8: expected listen, server, connect or client",
        )
        self.assertRefused(str(self.root), f"{self.root}: is not a file")
        self.assertRefused(f"{named}/x", f"{named}/x: Not a directory")

    def test_userFile(self) -> None:
        """
        A user's file that cannot be read is an error, the system's is not taken for it.
        """
        self.write(self.system / "twisted_ib/ib.conf", "use tcp listen * *:*")
        user = self.home / ".config/twisted_ib/ib.conf"
        user.mkdir(parents=True)
        self.assertEqual(self.verdict(self.configuration()), ("both", "default"))
        self.assertEqual(self.events, [(LogLevel.error, f"{user}: is not a file; no rules hold")])

    def test_homeOfAnother(self) -> None:
        """
        A home that this user may not look into has no file, also when the rules are read again: a
        program that gave up root's rights (C{twistd --uid}) still has root's C{HOME}.
        """
        self.write(self.system / "twisted_ib/ib.conf", "use tcp listen * *:*")
        user = os.path.join(self.home, ".config/twisted_ib/ib.conf")
        opened, lexists = file.readRules, os.path.lexists

        def read(path: str, name: str | None = None) -> str:
            if path == user:
                raise PermissionError(errno.EACCES, "denied")
            return opened(path, name)

        self.patch(file, "readRules", read)
        self.patch(os.path, "lexists", lambda path: path != user and lexists(path))
        configuration = self.configuration()
        self.assertEqual(self.verdict(configuration)[0], "tcp")
        self.assertTrue(configuration.reload())
        self.assertEqual([level for level, _ in self.events], [LogLevel.info])
        self.patch(os.path, "lexists", lambda path: True)
        self.assertFalse(configuration.reload())

    def test_pipe(self) -> None:
        """
        A named pipe does not make a program wait.
        """
        path = str(self.root / "pipe")
        os.mkfifo(path)
        self.assertRaises(RulesError, readRules, path)

    def test_size(self) -> None:
        """
        A file has so many bytes and no more.
        """
        path = self.write(self.root / "long", "#" * file.POLICY_FILE_BYTES)
        self.assertEqual(len(readRules(path)), file.POLICY_FILE_BYTES)
        self.write(self.root / "long", "#" * (file.POLICY_FILE_BYTES + 1))
        for name in (path, "/dev/zero"):
            with self.assertRaises(RulesError) as caught:
                readRules(name)
            self.assertEqual(str(caught.exception), f"{name}: has more than {file.POLICY_FILE_BYTES} bytes")

    def test_octets(self) -> None:
        """
        A comment in any character set is a comment, and a program may have any name.
        """
        path = self.root / "latin"
        path.write_bytes(b"# \xe4\nuse tcp listen \xe4* *:*\n")
        configuration = Configuration({"TWISTED_IB_CONFIG": str(path)}, os.fsdecode(b"\xe4x"))
        self.assertTrue(configuration.tcpOnly("listen"))


class ReloadTests(ConfigurationCase):
    """
    The file, read again.
    """

    def setUp(self) -> None:
        """
        Begin with a file.
        """
        super().setUp()
        self.file = self.root / "rules"
        self.where = self.write(self.file, "use tcp listen * *:*")
        self.rules = self.configuration(TWISTED_IB_CONFIG=self.where)

    def test_reload(self) -> None:
        """
        New rules hold, and the listeners are called with the old and the new ones.
        """
        told: list[tuple[Policy, Policy]] = []
        self.rules.onChange(lambda *policies: told.append(policies))
        self.assertTrue(self.rules.tcpOnly("listen"))
        old = self.rules.policy
        self.write(self.file, "\nuse sdp listen * *:*")
        self.assertTrue(self.rules.reload())
        self.assertEqual(self.verdict(self.rules), ("sdp", f"{self.where}:2"))
        self.assertFalse(self.rules.tcpOnly("listen"))
        self.assertEqual(told, [(old, self.rules.policy)])
        self.assertEqual(self.events, [(LogLevel.info, f"rules: {self.where}")])

    def test_error(self) -> None:
        """
        With an error in the file the old rules stay as a whole, and the log says where it is.
        """
        told: list[Policy] = []
        self.rules.onChange(lambda old, new: told.append(new))
        old = self.rules.policy
        self.write(self.file, "use sdp listen * *:*\nuse spd listen * *:*")
        self.assertFalse(self.rules.reload())
        os.unlink(self.file)
        self.assertFalse(self.rules.reload())
        self.assertEqual(
            self.events,
            [
                (LogLevel.error, f"{text}; the rules stay as they are")
                for text in (
                    f"{self.where}:2:5: expected sdp, tcp or both, not 'spd'",
                    f"{self.where}: No such file or directory",
                )
            ],
        )
        self.assertEqual((self.rules.policy is old, told), (True, []))

    def test_before(self) -> None:
        """
        A reload before the first use is a first reading.
        """
        self.write(self.file, "use sdp listen * *:*")
        self.assertTrue(self.rules.reload())
        self.assertEqual(self.verdict(self.rules)[0], "sdp")

    def test_listenerFails(self) -> None:
        """
        A listener that raises keeps no other from being called.
        """
        told: list[Policy] = []

        def fails(old: Policy, new: Policy) -> None:
            raise RuntimeError("a listener")

        self.rules.onChange(fails)
        self.rules.onChange(lambda old, new: told.append(new))
        self.assertTrue(self.rules.reload())
        self.assertEqual(told, [self.rules.policy])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_fileVanishes(self) -> None:
        """
        A file of the search that is gone leaves the next one, or none.
        """
        user = self.write(self.home / ".config/twisted_ib/ib.conf", "use sdp listen * *:*")
        rules = self.configuration()
        self.assertEqual(self.verdict(rules)[0], "sdp")
        os.unlink(user)
        self.assertTrue(rules.reload())
        self.assertEqual(self.verdict(rules), ("both", "default"))
        self.assertEqual(self.events, [(LogLevel.info, "rules: no rules are configured")])


class RuleLogTests(ConfigurationCase):
    """
    C{log} statements.
    """

    def rules(self, statements: str) -> Configuration:
        """
        @param statements: a file.

        @return: the configuration.
        """
        return self.configuration(TWISTED_IB_CONFIG=self.write(self.root / "rules", statements))

    def test_none(self) -> None:
        """
        Without a statement nothing is logged in libsdp's way.
        """
        rules = self.rules("use tcp listen * *:*")
        with mock.patch.object(sys, "stderr") as stderr:
            rules.decide("listen", "", 80)
            rules.log(9, "bad")
        stderr.write.assert_not_called()
        self.assertFalse(rules.logs(9))

    def test_levels(self) -> None:
        """
        Lines of the statement's level and above go to standard error, matches among them.
        """
        matched = "listen *:80: tcp ("
        cases = (9, ["bad"]), (7, ["open", "bad"]), (5, ["open", "bad"]), (4, [matched, "open", "bad"])
        for level, expected in cases:
            rules = self.rules(f"log min-level {level}\nuse tcp listen * *:*")
            rules.reload()
            with mock.patch.object(sys, "stderr") as stderr:
                rules.decide("listen", "", 80)
                rules.log(7, "open")
                rules.log(9, "bad")
            lines = [call.args[0] for call in stderr.write.call_args_list]
            self.assertEqual(len(lines), len(expected))
            for line, text in zip(lines, expected, strict=True):
                self.assertRegex(line, rf"\A[0-9: -]{{19}} p\[{os.getpid()}\] .*\n\Z")
                self.assertIn(text, line)

    def test_later(self) -> None:
        """
        A later statement changes what it says and leaves the rest.
        """
        log = RuleLog(module.parseRules("log min-level 3 destination file x\nlog min-level 5", "f").logs, "p")
        self.assertEqual((log.destination, log.file, log.level), ("file", "x", 5))
        log = RuleLog(module.parseRules("log destination file x\nlog destination syslog", "f").logs, "p")
        self.assertEqual((log.destination, log.file, log.level), ("syslog", None, 9))

    def test_syslog(self) -> None:
        """
        Lines go to the system's log with a priority.
        """
        import syslog

        rules = self.rules("log destination syslog min-level 7")
        rules.reload()
        with mock.patch.object(syslog, "syslog") as write:
            for level in (7, 8, 9):
                rules.log(level, "text")
        self.assertEqual(
            [call.args for call in write.call_args_list],
            [(p, "p: text") for p in (syslog.LOG_INFO, syslog.LOG_WARNING, syslog.LOG_ERR)],
        )

    def test_file(self) -> None:
        """
        Another user's file is in a folder that only this user can write; root's is in the system's.
        """
        name = str(self.root / "log")
        uid = os.geteuid() or 1
        with mock.patch("tempfile.gettempdir", return_value=str(self.root)):
            self.assertEqual(logFile("x", 0), "/var/log/x")
            if os.geteuid():
                self.assertEqual(logFile("log", uid), f"{name}.{uid}/log")
                self.assertEqual(logFile(name, uid), f"{name}.{uid}/log")
            os.makedirs(f"{name}.{uid}", exist_ok=True)
            os.chmod(f"{name}.{uid}", 0o755)
            self.assertRaises(PermissionError, logFile, name, uid)
            os.symlink(self.home, self.root / f"link.{uid}")
            self.assertRaises(PermissionError, logFile, "link", uid)

    def test_append(self) -> None:
        """
        Lines are added to the file; if it cannot be written no more is tried.
        """
        path = self.root / "written"
        with mock.patch("twisted_ib.switch.rules.rulelog.logFile", return_value=str(path)):
            rules = self.rules("log destination file x")
            rules.reload()
            rules.log(9, "one")
            rules.log(9, "two \udcff")
        lines = path.read_bytes().splitlines()
        self.assertEqual([line.split(b"] ")[1] for line in lines], [b"one", b"two \xff"])
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        with mock.patch("twisted_ib.switch.rules.rulelog.logFile", side_effect=OSError) as place:
            rules.log(9, "three")
            rules.log(9, "four")
        self.assertEqual(place.call_count, 1)

    def test_errors(self) -> None:
        """
        An error of a reload goes where the rules that stay say.
        """
        rules = self.rules("log destination stderr")
        rules.reload()
        self.write(self.root / "rules", "use")
        with mock.patch.object(sys, "stderr") as stderr:
            rules.reload()
        [call] = stderr.write.call_args_list
        self.assertIn("rules:1:4: expected sdp, tcp or both; the rules stay as they are", call.args[0])
