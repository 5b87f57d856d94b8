"""
Where the rules of the offload switch come from: the file and the environment.

The file is the one that C{TWISTED_IB_CONFIG} names, else C{twisted_ib/ib.conf} in the user's
configuration folder, else C{/etc/twisted_ib/ib.conf}; the first that exists, as far as this user may
know.  If C{SIMPLE_LIBSDP} or C{ALWAYS_USE_SDP} is set, to anything, no file is read and everything uses
SDP, as with libsdp.

A file with an error counts for nothing: at the start everything is as without one, when
it is read again, as at SIGHUP (L{twisted_ib.reactor.rules.sighup}), the rules stay that were there.  Either
way the log says what is wrong and where.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping

from twisted.logger import Logger

from twisted_ib.errors import DeviceError, RulesError
from twisted_ib.hca.device import registry
from twisted_ib.reactor.rules.parser import DEVICES, parse
from twisted_ib.reactor.rules.policy import Decision, Policy, policyOf
from twisted_ib.reactor.rules.rulelog import ERROR, MATCH, WARNING, RuleLog
from twisted_ib.reactor.rules.sighup import startFolder
from twisted_ib.reactor.rules.syntax import SDP

#: Bytes of a file of rules.
POLICY_FILE_BYTES = 256 * 1024

#: The variable that names the file.
VARIABLE = "TWISTED_IB_CONFIG"
#: Variables of libsdp's; with one of them set SDP is for everything.
SIMPLE_VARIABLES = ("SIMPLE_LIBSDP", "ALWAYS_USE_SDP")
#: Where the file is within a configuration folder.
_NAME = os.path.join("twisted_ib", "ib.conf")
_SYSTEM_FOLDER = "/etc"

_log = Logger()


def readRules(path: str, name: str | None = None) -> str:
    """
    Read a file of rules.

    @param path: the file.
    @param name: what it is called in errors, if not C{path}.

    @return: its text; octets that are not UTF-8 stay, escaped.

    @raise OSError: it cannot be read.
    @raise RulesError: it is too long, or not a file.
    """
    name = path if name is None else name
    # Not to wait for who writes into a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise RulesError(f"{name}: is not a file")
        data = bytearray()
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


def devicesBeside(environ: Mapping[str, str]) -> dict[str, str]:
    """
    @param environ: the environment.

    @return: the devices that there are without a file of rules, and the fabric of each.
    """
    found = dict(DEVICES)
    try:
        named = registry.parseDevices(environ.get(registry.VARIABLE, ""))
    except DeviceError:
        return found  # Who opens one hears of it.
    found.update((name, fabric) for name, (fabric, _) in named.items() if name not in found)
    return found


def namedDevices() -> list[tuple[str, str, str | None]]:
    """
    What the registry asks for devices that nobody has added: those of the rules' C{device} statements.

    @return: name, fabric and address of each.

    @raise DeviceError: the rules cannot be read.
    """
    try:
        devices = Configuration(os.environ).read().devices
    except (OSError, RulesError) as error:
        text = error.errors[0] if isinstance(error, RulesError) else f"{error.filename}: {error.strerror}"
        raise DeviceError(text) from None
    return [(device.name, device.fabric, device.address) for device in devices]


def loadFile(
    path: str, named: bool = False, name: str | None = None, devices: Mapping[str, str] = DEVICES
) -> Policy:
    """
    @param path: a file of rules.
    @param named: whether the user named it: then no rule in it means SDP for everything.
    @param name: what it is called in errors and decisions, if not C{path}.
    @param devices: those that there are without it, and the fabric of each.

    @return: its policy.

    @raise OSError: it cannot be read.
    @raise RulesError: it is wrong, too long, or not a file.
    """
    name = path if name is None else name
    return policyOf(parse(readRules(path, name), name, devices), named)


def simplePolicy(environ: Mapping[str, str]) -> Policy | None:
    """
    @param environ: the environment.

    @return: the policy of libsdp's simple mode, if it is asked for.
    """
    for variable in SIMPLE_VARIABLES:
        if variable in environ:
            return Policy(None, SDP, f"{variable} is set")
    return None


def programName() -> str:
    """
    @return: what rules call this program: the base name of C{argv[0]}.
    """
    return os.path.basename(sys.argv[0] or "python")


class Configuration:
    """
    The rules that hold in this process.

    Nothing is read before somebody asks.

    @ivar program: what rules call this program.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        program: str | None = None,
        systemFolder: str = _SYSTEM_FOLDER,
        folder: str | None = None,
    ) -> None:
        """
        @param environ: the environment.
        @param program: what rules call this program, by default C{argv[0]}'s base name.
        @param systemFolder: the system's configuration folder.
        @param folder: where relative names begin, by default here.
        """
        self.program = programName() if program is None else program
        self._environ = environ
        self._systemFolder = systemFolder
        # A program may go to another folder before it reads the file again.
        self._folder = startFolder() if folder is None else folder
        self._policy: Policy | None = None
        self._ruleLog = RuleLog()
        self._listeners: list[Callable[[Policy, Policy], None]] = []

    @property
    def policy(self) -> Policy:
        """
        The rules that hold; read the first time.
        """
        policy = self._policy
        if policy is None:
            # For who asks while an observer of the log is told of an error.
            policy = self._policy = Policy()
            try:
                policy = self._policy = self.read()
            except (OSError, RulesError) as error:
                self._complain(error, "no rules hold")
            self._taken(policy)
        return policy

    def candidates(self) -> list[str]:
        """
        @return: the files where the rules may be, the first that exists counts; only the one that the
            environment names, if it does.
        """
        named = self._environ.get(VARIABLE)
        if named:
            return [named]
        folder = self._environ.get("XDG_CONFIG_HOME", "")
        if not os.path.isabs(folder):
            # The XDG base directory specification: a relative one is to be ignored.
            home = self._environ.get("HOME") or os.path.expanduser("~")
            folder = os.path.join(home, ".config")
        folders = (folder, self._systemFolder)
        return [os.path.join(folder, _NAME) for folder in folders if os.path.isabs(folder)]

    def read(self) -> Policy:
        """
        @return: the policy as the environment and the files are now.

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
                policy = loadFile(path, named, name, devicesBeside(self._environ))
            except (FileNotFoundError, NotADirectoryError) as error:
                if named:
                    error.filename = name
                    raise
                continue
            except OSError as error:
                if isinstance(error, PermissionError) and not named and not os.path.lexists(path):
                    continue  # A folder that is not ours, as root's for who was root.
                error.filename = name
                raise
            return policy
        return Policy()

    def _taken(self, policy: Policy) -> None:
        """
        Begin with new rules.

        @param policy: them.
        """
        contents = policy.contents
        self._ruleLog = RuleLog(() if contents is None else contents.logs, self.program)
        for warning in () if contents is None else contents.warnings:
            _log.warn("{line}", line=warning)
            self.log(WARNING, warning)

    def reload(self) -> bool:
        """
        Read the rules again; those who asked to be told are told.

        @return: whether that went well.  If not the rules stay as they are, and the log says why.
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
        for listener in tuple(self._listeners):
            try:
                listener(old, policy)
            except Exception:
                _log.failure("while new rules were told")
        return True

    def onChange(self, listener: Callable[[Policy, Policy], None]) -> None:
        """
        @param listener: is called with the old and the new policy when the rules were read again.
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
        Log a line where the file's C{log} statements say, if it has any.

        @param level: libsdp's level: 4 for a match, 7 for a listen or connect, 8 for a warning, 9 for an
            error.
        @param text: the line.
        """
        self._ruleLog.write(level, text)

    def _complain(self, error: OSError | RulesError, result: str) -> None:
        """
        Log an error.

        @param error: it.
        @param result: what holds now.
        """
        if isinstance(error, RulesError):
            lines: tuple[str, ...] = error.errors
        else:
            lines = (f"{error.filename}: {error.strerror}",)
        for line in lines:
            _log.error("{line}; {result}", line=line, result=result)
            self.log(ERROR, f"{line}; {result}")


__all__ = ["Configuration", "devicesBeside", "loadFile", "namedDevices", "simplePolicy"]
