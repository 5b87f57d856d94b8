"""
The settings of this package, in one table: the variables of the environment, and the statements of a file of
rules with their defaults.  The defaults of commands stand in their parsers.

Modules take the names and the defaults from here, and no other module spells them.  C{python -m
docs.settings} makes C{docs/settings.md} of it.
"""

from __future__ import annotations

#: Not typing's, which takes longer to import than the rest of C{ib-run}'s first start; it is true for mypy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Final

#: The beginning of all variables that are this package's own.
PREFIX: Final = "TWISTED_IB_"

#: Those who set a variable, in the order of the page.
USERS, BUILDING, TESTS, RUN = (
    "your programs",
    "the build",
    "the tests",
    "ib-run, for the programs that it starts",
)


class Setting:
    """
    One variable or statement.

    @ivar values: what it may be.
    @ivar default: what holds without it.
    @ivar text: what it is for.
    @ivar by: of a variable: one of L{USERS}, L{BUILDING}, L{TESTS}, L{RUN}.
    """

    def __init__(self, name: str, values: str, default: str, text: str, by: str = USERS) -> None:
        self.name = name
        self.values = values
        self.default = default
        self.text = text
        self.by = by


#: All variables, by name.
VARIABLES: Final[dict[str, Setting]] = {}


def _variable(name: str, values: str, default: str, text: str, by: str = USERS) -> str:
    VARIABLES[name] = Setting(name, values, default, text, by)
    return name


# -- variables of programs

RUN_DIR: Final = _variable(
    "TWISTED_IB_RUN_DIR",
    "the absolute path of a directory",
    "`/run/user/UID/twisted_ib`, else `twisted_ib-UID` in `/tmp`, `/var/tmp` or `/dev/shm`",
    "where the processes of a host find each other",
)
ALLOW_UIDS: Final = _variable(
    "TWISTED_IB_ALLOW_UIDS",
    "numbers of users, with commas or spaces between",
    "none but your own",
    "whose processes count in a run directory that several users share",
)
CONFIG: Final = _variable(
    "TWISTED_IB_CONFIG",
    "the path of a file of rules",
    "`twisted_ib/ib.conf` in `$XDG_CONFIG_HOME` or `~/.config`, else in `/etc`",
    "which way ports and connections go, and further devices",
)
DEVICES: Final = _variable(
    "TWISTED_IB_DEVICES",
    "`NAME=FABRIC[:ADDRESS][:OPTION=yes]`, several with commas between",
    "none but `shm0`, `lo0` and those of the rules",
    "further devices",
)
SUBNET: Final = _variable(
    "TWISTED_IB_SUBNET",
    "at most 32 letters, digits, `_`, `-`, `.`",
    "`default`",
    "the InfiniBand subnet of this process's `ib` devices",
)
#: The name of the subnet without L{SUBNET}.
DEFAULT_SUBNET: Final = "default"
CAPTURE: Final = _variable(
    "TWISTED_IB_CAPTURE",
    "the path of a file; `%p` is the process id",
    "no capture",
    "what HCAs send and receive, as packets for Wireshark",
)
DEVICE: Final = _variable(
    "TWISTED_IB_DEVICE",
    "the name of a device",
    "all devices",
    "the only device that C programs see; `ib-run --device` sets it",
)
CABI_DEBUG: Final = _variable(
    "TWISTED_IB_CABI_DEBUG",
    "anything",
    "one line for an error",
    "errors of C programs' calls with their tracebacks",
)
SIMPLE_LIBSDP: Final = _variable(
    "SIMPLE_LIBSDP",
    "anything",
    "the file of rules",
    "SDP for everything, without rules, as of libsdp",
)
ALWAYS_USE_SDP: Final = _variable(
    "ALWAYS_USE_SDP", "anything", "the file of rules", "SDP for everything, without rules, as of libsdp"
)
#: Variables of libsdp; if one is set, SDP is used for everything.
SIMPLE_VARIABLES: Final = (SIMPLE_LIBSDP, ALWAYS_USE_SDP)

# -- of the build and of tests, which are no modules of this package

_variable("TWISTED_IB_COMPILE", "`1`", "no", "modules of the data path are compiled by mypyc", BUILDING)
_variable("TWISTED_IB_CLIBRARIES", "`1`", "no", "a wheel carries the libraries for C programs", BUILDING)
_variable("TWISTED_IB_TEST_PATIENCE", "a number from 1 on", "1", "the factor of tests' limits of time", TESTS)
_variable(
    "TWISTED_IB_TEST_REACTOR", "the name of a reactor", "`ib`", "the reactor of processes under test", TESTS
)
_variable(
    "TWISTED_IB_TEST_SCHEME",
    "the name of an endpoint",
    "`sdp`",
    "the endpoints of processes under test",
    TESTS,
)
_variable("TWISTED_IB_OPENSM", "`1`", "they are skipped", "tests with OpenSM and infiniband-diags", TESTS)
_variable("TWISTED_IB_TUN", "`1`", "they are skipped", "tests with devices of TUN", TESTS)
_variable("TWISTED_IB_CPROGRAMS", "`1`", "they are skipped", "tests with programs of rdma-core", TESTS)
_variable("TWISTED_IB_INTEROP", "`1`", "they are skipped", "tests with Linux's drivers, in guests", TESTS)
_variable(
    "TWISTED_IB_INTEROP_CACHE",
    "the path of a directory",
    "one in `~/.cache`",
    "the images of those guests",
    TESTS,
)
_variable(
    "TWISTED_IB_INTEROP_NEIGHBOUR", "`1`", "no", "another process shares the address in those tests", TESTS
)

_variable("TWISTED_IB_CI", "anything", "none", "the gate knows its processes by it", TESTS)

# -- set by ib-run

RUN_HOST: Final = _variable("TWISTED_IB_HOST", "a number from 0 on", "none", "the number of its host", RUN)
RUN_HOSTS: Final = _variable(
    "TWISTED_IB_HOSTS", "addresses, with spaces between", "none", "the addresses of all hosts", RUN
)
RUN_INSIDE: Final = _variable(
    "TWISTED_IB_RUN_HOSTS", "`1`", "none", "it runs in the namespace of the hosts", RUN
)
RUN_AGAIN: Final = _variable(
    "TWISTED_IB_RUN_AGAIN", "a process id", "none", "it has started again, to find libraries", RUN
)
RUN_CHILDREN: Final = _variable(
    "TWISTED_IB_RUN_CHILDREN", "`LOOP,SUMMARY,QUEUES`", "none", "how processes that it starts run", RUN
)
SYSFS: Final = _variable(
    "TWISTED_IB_SYSFS", "the path of a directory", "none", "where it finds the devices' files", RUN
)

# -- statements of a file of rules, with their defaults

#: How long SDP is tried before TCP, and not again where it failed, in seconds, and the longest of such times.
TIMEOUT_SDP_SECONDS: Final = 2.0
TIMEOUT_RETRY_SECONDS: Final = 60.0
TIMEOUT_SHORT_SECONDS: Final = 10.0
TIMEOUT_MOST_SECONDS: Final = 86400.0
#: The lowest level that is logged.
LOG_LEVEL: Final = 9

_SECONDS: Final = f"a number of seconds, at most {TIMEOUT_MOST_SECONDS:g}"
STATEMENTS: Final = (
    Setting(
        "use",
        "`sdp\\|tcp\\|both listen\\|connect PROGRAM ADDRESS[/LENGTH]:PORTS`",
        "`both` for everything; `sdp` in a file that `TWISTED_IB_CONFIG` names",
        "which way a port or a connection goes; the first that fits counts",
    ),
    Setting(
        "log",
        "`[destination stderr\\|syslog\\|file NAME] [min-level 1-9]`",
        f"`stderr`, {LOG_LEVEL}",
        "where decisions and errors are logged, as of libsdp",
    ),
    Setting("device", "`NAME FABRIC [ADDRESS] [OPTION=yes\\|no]`", "none", "one more device"),
    Setting("route", "`NETWORK DEVICE...`", "none", "which devices lead there, in the order to try"),
    Setting("timeout sdp", _SECONDS, f"{TIMEOUT_SDP_SECONDS:g}", "how long SDP is tried before TCP is"),
    Setting(
        "timeout retry", _SECONDS, f"{TIMEOUT_RETRY_SECONDS:g}", "how long SDP is not tried where it failed"
    ),
    Setting(
        "timeout short",
        _SECONDS,
        f"{TIMEOUT_SHORT_SECONDS:g}",
        "how long SDP is not tried where connections of blocking sockets gained nothing; 0 switches this rule"
        " off, and that for one CPU",
    ),
)


def unknown(names: Iterable[str]) -> Iterator[str]:
    """
    @param names: of variables of an environment.
    @return: those that look like this package's own, and are none: nothing reads them.
    """
    return (name for name in names if name.startswith(PREFIX) and name not in VARIABLES)
