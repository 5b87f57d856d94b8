"""
The source of the offload switch's rules: a file and the environment.

The file is that of L{twisted_ib.configuration.file}.  If C{SIMPLE_LIBSDP} or C{ALWAYS_USE_SDP} is set, to any
value, no file is read and everything uses SDP, as with libsdp.

A file with an error is ignored as a whole: at the start there are no rules, and at a reload, as on SIGHUP
(L{twisted_ib.switch.rules.sighup}), the old rules stay.  Either way the log has the errors and their lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from twisted_ib.configuration.file import SYSTEM_FOLDER, readFirst
from twisted_ib.configuration.syntax import ERROR, MATCH, WARNING
from twisted_ib.configuration.words import SDP
from twisted_ib.errors import RulesError
from twisted_ib.hca.device.registry import builtInDevices, parseRules
from twisted_ib.settings import CONFIG, SIMPLE_VARIABLES
from twisted_ib.switch.rules.policy import Decision, Policy, policyOf
from twisted_ib.switch.rules.sighup import startFolder

if TYPE_CHECKING:
    from twisted.logger import Logger

    from twisted_ib.switch.rules.rulelog import RuleLog


def _log() -> Logger:
    # Imported here: ib-run reads the rules before it imports Twisted, of which it leaves parts for later.
    from twisted.logger import Logger

    return Logger()


def simplePolicy(environ: Mapping[str, str]) -> Policy | None:
    """
    Return the policy of libsdp's simple mode, if the environment asks for it.
    """
    for variable in SIMPLE_VARIABLES:
        if variable in environ:
            return Policy(None, SDP, f"{variable} is set")
    return None


def programName() -> str:
    """
    Return the name by which rules know this program: the base name of C{argv[0]}.
    """
    return os.path.basename(sys.argv[0] or "python")


class Configuration:
    """
    The rules in force in this process, read when first needed.

    @ivar program: The name by which rules know this program.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        program: str | None = None,
        systemFolder: str = SYSTEM_FOLDER,
        folder: str | None = None,
    ) -> None:
        """
        @param program: By default the base name of C{argv[0]}.
        @param systemFolder: The system's configuration folder.
        @param folder: Where relative names begin, by default the current folder.
        """
        self.program = programName() if program is None else program
        self._environ = environ
        self._systemFolder = systemFolder
        # A program may change its folder before a reload, as daemons do.
        self._folder = startFolder() if folder is None else folder
        self._policy: Policy | None = None
        self._ruleLog: RuleLog | None = None
        self._listeners: list[Callable[[Policy, Policy], None]] = []

    @property
    def policy(self) -> Policy:
        """
        The rules in force.
        """
        policy = self._policy
        if policy is None:
            # For a log observer that opens a TCP connection when it gets an error of this reading.
            policy = self._policy = Policy()
            try:
                policy = self._policy = self.read()
            except (OSError, RulesError) as error:
                self._complain(error, "no rules hold")
            self._taken(policy)
        return policy

    def read(self) -> Policy:
        """
        Return the policy of the environment and the files as they are now.

        @raise OSError: the file cannot be read.
        @raise RulesError: it is wrong.
        """
        simple = simplePolicy(self._environ)
        if simple is not None:
            return simple
        found = readFirst(self._environ, self._systemFolder, self._folder)
        if found is None:
            return Policy()
        contents = parseRules(found[1], found[0], builtInDevices(self._environ))
        return policyOf(contents, bool(self._environ.get(CONFIG)))

    def _taken(self, policy: Policy) -> None:
        contents = policy.contents
        self._ruleLog = None
        if contents is not None and contents.logs:
            # Imported here: most rules have no such statement.
            from twisted_ib.switch.rules.rulelog import RuleLog

            self._ruleLog = RuleLog(contents.logs, self.program)
        for warning in () if contents is None else contents.warnings:
            _log().warn("{line}", line=warning)
            self.log(WARNING, warning)

    def reload(self) -> bool:
        """
        Read the rules again and call the listeners.

        @return: Whether that succeeded.  If not, the rules stay as they are, and the log has the reason.
        """
        try:
            policy = self.read()
        except (OSError, RulesError) as error:
            self._complain(error, "the rules stay as they are")
            return False
        old = self.policy
        self._policy = policy
        self._taken(policy)
        _log().info("rules: {source}", source=policy.source or policy.default.reason)
        # One listener's error must not keep the others on the old rules.
        for listener in tuple(self._listeners):
            try:
                listener(old, policy)
            except Exception:
                _log().failure("while new rules were told")
        return True

    def onChange(self, listener: Callable[[Policy, Policy], None]) -> None:
        """
        Add a listener, which is called with the old and the new policy after a reload.
        """
        self._listeners.append(listener)

    def decide(self, role: str, address: str, port: int) -> Decision:
        """
        L{Policy.decide} for this program.
        """
        decision = self.policy.decide(role, self.program, address, port)
        if self.logs(MATCH):
            self.log(MATCH, f"{role} {address or '*'}:{port}: {decision.verdict} ({decision.where})")
        return decision

    def tcpOnly(self, role: str) -> bool:
        """
        L{Policy.tcpOnly} for this program.
        """
        return self.policy.tcpOnly(role, self.program)

    def logs(self, level: int) -> bool:
        """
        Return whether L{log} logs lines of a level: others need not be made.
        """
        return self._ruleLog is not None and self._ruleLog.wants(level)

    def log(self, level: int, text: str) -> None:
        """
        Log a line as the file's C{log} statements ask, if there are any.

        @param level: libsdp's: 4 for a match, 7 for a listen or connect, 8 for a warning, 9 for an error.
        """
        if self._ruleLog is not None:
            self._ruleLog.write(level, text)

    def _complain(self, error: OSError | RulesError, result: str) -> None:
        if isinstance(error, RulesError):
            lines: tuple[str, ...] = error.errors
        else:
            lines = (f"{error.filename}: {error.strerror}",)
        for line in lines:
            _log().error("{line}; {result}", line=line, result=result)
            self.log(ERROR, f"{line}; {result}")
