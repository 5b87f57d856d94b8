"""
The source of the offload switch's rules: a file and the environment.

The file is the one that C{TWISTED_IB_CONFIG} names, else C{twisted_ib/ib.conf} in the user's configuration
folder, else C{/etc/twisted_ib/ib.conf}; the first that exists, as far as this user may know.  If
C{SIMPLE_LIBSDP} or C{ALWAYS_USE_SDP} is set, to any value, no file is read and everything uses SDP, as with
libsdp.

A file with an error is ignored as a whole: at the start there are no rules, and at a reload, as on SIGHUP
(L{twisted_ib.reactor.rules.sighup}), the old rules stay.  Either way the log has the errors and their lines.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping

from twisted.logger import Logger

from twisted_ib.errors import DeviceError, RulesError
from twisted_ib.hca.device import registry
from twisted_ib.reactor.rules.parser import parse
from twisted_ib.reactor.rules.policy import Decision, Policy, policyOf
from twisted_ib.reactor.rules.rulelog import ERROR, MATCH, WARNING, RuleLog
from twisted_ib.reactor.rules.sighup import startFolder
from twisted_ib.reactor.rules.syntax import SDP, Contents

#: Bytes of a file of rules that are read.
POLICY_FILE_BYTES = 256 * 1024

#: The environment variable that names the file.
VARIABLE = "TWISTED_IB_CONFIG"
#: Variables of libsdp; if one is set, SDP is used for everything.
SIMPLE_VARIABLES = ("SIMPLE_LIBSDP", "ALWAYS_USE_SDP")
#: The file within a configuration folder.
_NAME = os.path.join("twisted_ib", "ib.conf")
_SYSTEM_FOLDER = "/etc"

_log = Logger()


def readRules(path: str, name: str | None = None) -> str:
    """
    Read a file of rules; octets that are not UTF-8 are escaped.

    @param name: The name for errors, if not C{path}.
    @raise OSError: it cannot be read.
    @raise RulesError: it is too long, or not a file.
    """
    name = path if name is None else name
    # O_NONBLOCK: opening a FIFO without a writer would block the program in its first connectTCP().
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise RulesError(f"{name}: is not a file")
        data = bytearray()
        # Counted while reading: a character device such as /dev/zero has no end, and /dev/null is a fair
        # empty file.
        while len(data) <= POLICY_FILE_BYTES and (piece := os.read(descriptor, 65536)):
            data += piece
    except OSError as error:
        error.filename = name
        raise
    finally:
        os.close(descriptor)
    if len(data) > POLICY_FILE_BYTES:
        raise RulesError(f"{name}: has more than {POLICY_FILE_BYTES} bytes")
    return data.decode("utf-8", "surrogateescape")


def builtInDevices(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Return the devices that exist without a file of rules, and the fabric of each.
    """
    found = {kind.device: kind.name for kind in registry.KINDS if kind.device}
    try:
        named = registry.parseDevices(environ.get(registry.VARIABLE, ""))
    except DeviceError:
        # The error is reported when such a device is opened.
        return found
    found.update((name, fabric) for name, (fabric, _) in named.items() if name not in found)
    return found


def parseRules(text: str, name: str, devices: Mapping[str, str] | None = None) -> Contents:
    """
    Parse a file of rules, with the fabrics that there are.

    @param name: Its name, for errors.
    @param devices: The devices that exist without it, and the fabric of each; by default those of an empty
        environment.
    @raise RulesError: a line is wrong; then the whole file is ignored.
    """
    if devices is None:
        devices = builtInDevices({})
    fabrics = {
        kind.name: kind.traits.hasAddress for kind in sorted(registry.KINDS, key=lambda kind: kind.name)
    }
    return parse(text, name, devices, fabrics)


def namedDevices() -> list[tuple[str, str, str | None]]:
    """
    Return name, fabric and address of each C{device} statement: the registry's source of devices that nobody
    has added.

    @raise DeviceError: the rules cannot be read.
    """
    try:
        devices = Configuration(os.environ).read().devices
    except (OSError, RulesError) as error:
        text = error.errors[0] if isinstance(error, RulesError) else f"{error.filename}: {error.strerror}"
        raise DeviceError(text) from None
    return [(device.name, device.fabric, device.address) for device in devices]


def loadFile(
    path: str, named: bool = False, name: str | None = None, devices: Mapping[str, str] | None = None
) -> Policy:
    """
    Return the policy of a file of rules.

    @param named: Whether the user named the file: then one without rules means SDP for everything.
    @param name: The name for errors and decisions, if not C{path}.
    @param devices: The devices that exist without it, and the fabric of each; by default those of no
        environment.
    @raise OSError: it cannot be read.
    @raise RulesError: it is wrong, too long, or not a file.
    """
    name = path if name is None else name
    return policyOf(parseRules(readRules(path, name), name, devices), named)


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
        systemFolder: str = _SYSTEM_FOLDER,
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
        self._ruleLog = RuleLog()
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

    def candidates(self) -> list[str]:
        """
        Return the possible files, of which the first that exists counts; only the one that the environment
        names, if any.
        """
        named = self._environ.get(VARIABLE)
        if named:
            return [named]
        folder = self._environ.get("XDG_CONFIG_HOME", "")
        if not os.path.isabs(folder):
            # XDG Base Directory Specification: a relative XDG_CONFIG_HOME is to be ignored.
            home = self._environ.get("HOME") or os.path.expanduser("~")
            folder = os.path.join(home, ".config")
        folders = (folder, self._systemFolder)
        return [os.path.join(folder, _NAME) for folder in folders if os.path.isabs(folder)]

    def read(self) -> Policy:
        """
        Return the policy of the environment and the files as they are now.

        @raise OSError: the file cannot be read.
        @raise RulesError: it is wrong.
        """
        simple = simplePolicy(self._environ)
        if simple is not None:
            return simple
        named = bool(self._environ.get(VARIABLE))
        for name in self.candidates():
            path = name if self._folder is None else os.path.join(self._folder, name)
            try:
                policy = loadFile(path, named, name, builtInDevices(self._environ))
            except (FileNotFoundError, NotADirectoryError) as error:
                if named:
                    error.filename = name
                    raise
                continue
            except OSError as error:
                # A folder that this user may not search is another's, as root's after the program has dropped
                # its privileges: the next file counts.
                if isinstance(error, PermissionError) and not named and not os.path.lexists(path):
                    continue
                error.filename = name
                raise
            return policy
        return Policy()

    def _taken(self, policy: Policy) -> None:
        contents = policy.contents
        self._ruleLog = RuleLog(() if contents is None else contents.logs, self.program)
        for warning in () if contents is None else contents.warnings:
            _log.warn("{line}", line=warning)
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
        _log.info("rules: {source}", source=policy.source or policy.default.reason)
        # One listener's error must not keep the others on the old rules.
        for listener in tuple(self._listeners):
            try:
                listener(old, policy)
            except Exception:
                _log.failure("while new rules were told")
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
        if self._ruleLog.wants(MATCH):
            self.log(MATCH, f"{role} {address or '*'}:{port}: {decision.verdict} ({decision.where})")
        return decision

    def tcpOnly(self, role: str) -> bool:
        """
        L{Policy.tcpOnly} for this program.
        """
        return self.policy.tcpOnly(role, self.program)

    def log(self, level: int, text: str) -> None:
        """
        Log a line as the file's C{log} statements ask, if there are any.

        @param level: libsdp's: 4 for a match, 7 for a listen or connect, 8 for a warning, 9 for an error.
        """
        self._ruleLog.write(level, text)

    def _complain(self, error: OSError | RulesError, result: str) -> None:
        if isinstance(error, RulesError):
            lines: tuple[str, ...] = error.errors
        else:
            lines = (f"{error.filename}: {error.strerror}",)
        for line in lines:
            _log.error("{line}; {result}", line=line, result=result)
            self.log(ERROR, f"{line}; {result}")


__all__ = ["Configuration", "builtInDevices", "loadFile", "namedDevices", "simplePolicy"]
