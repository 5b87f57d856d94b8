"""
The command C{ib-run}: start an unchanged program, one of Python on the loop that takes SDP where it can, and
any other with the C libraries of RDMA.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.configuration.file import isConfigured
from twisted_ib.errors import DeviceError, RulesError
from twisted_ib.settings import CONFIG, DEVICES, SIMPLE_VARIABLES, unknown
from twisted_ib.tools.run.children import Inherited, inherit
from twisted_ib.tools.run.clibraries import become, chooseDevice
from twisted_ib.tools.run.loops import LOOPS, install
from twisted_ib.tools.run.native.again import lacking, searchByPython
from twisted_ib.tools.run.program import (
    NOT_RUNNABLE,
    Code,
    Module,
    NotPython,
    OtherInterpreter,
    Script,
    StartError,
    find,
)

if TYPE_CHECKING:
    from twisted_ib.tools.program import ArgumentParser

PROGRAM = "ib-run"
#: Options that start the program elsewhere, one at most.
_ELSEWHERE = ("--hosts", "--subnet", "--on")
#: Options with a value, which may be the next word.
_WITH_VALUE = ("--reactor", "--config", "--device", "--address", *_ELSEWHERE)
#: The options of a command line that has none, as the parser makes them.
_UNASKED: dict[str, object] = {
    **dict.fromkeys(("reactor", "config", "device", "address", "hosts", "subnet", "on", "module", "code")),
    **dict.fromkeys(("queues", "summary", "json", "check", "quiet"), False),
    **dict.fromkeys(("children", "sysfs"), True),
}
#: Options of one word, and the attribute that each sets.
_FLAGS = {
    "-q": ("quiet", True),
    "--quiet": ("quiet", True),
    "--summary": ("summary", True),
    "--json": ("json", True),
    "--queues": ("queues", True),
    "--no-children": ("children", False),
    "--no-sysfs": ("sysfs", False),
}


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    # Imported here: most command lines need no parser.
    from twisted_ib.tools.program import ArgumentParser

    parser = ArgumentParser(
        prog=PROGRAM,
        # The words of hosts are looked for by their names.
        allow_abbrev=False,
        usage="%(prog)s [--reactor NAME] [--config FILE] [--device NAME [--address ADDRESS]] "
        "[--queues] [--no-children] [--no-sysfs] [--summary [--json]] [-q] PROGRAM | -m MODULE | -c CODE "
        "[ARGUMENT ...]\n"
        "       %(prog)s --hosts N | --subnet N [OPTION ...] PROGRAM [ARGUMENT ...]\n"
        "       %(prog)s --on HOST [OPTION ...] COMMAND ...\n"
        "       %(prog)s [--config FILE] [--device NAME [--address ADDRESS]] --check [--json] [PROGRAM]",
        description="Start an unchanged program. One of Python gets a loop whose connections and ports go "
        "over SDP or TCP, by the rules of the ib reactor, when it first uses one; any other finds libibverbs "
        "and others of this package.",
    )
    parser.add_argument("--reactor", choices=LOOPS, help="the only kind of loop (default: each that it uses)")
    parser.add_argument("--config", metavar="FILE", help="the rules (default: those of every program here)")
    parser.add_argument("--device", metavar="NAME", help="the only device of the C libraries (default: all)")
    parser.add_argument("--address", help="the device's own, one of this host")
    parser.add_argument(
        "--queues", action="store_true", help="multiprocessing's pipes and queues go through shared memory"
    )
    parser.add_argument(
        "--no-children",
        action="store_false",
        dest="children",
        help="the processes of Python that it starts are Python's own",
    )
    parser.add_argument(
        "--no-sysfs",
        action="store_false",
        dest="sysfs",
        help="it looks for devices where Linux has them in vain",
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="at the end say what carried the connections (default: on a terminal, if there were some)",
    )
    parser.add_argument("--json", action="store_true", help="the summary, or the check, as JSON")
    parser.add_argument(
        "--check", action="store_true", help="start nothing: say what is here, and what is missing"
    )
    _addPlaces(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="do not say what was done")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-m", metavar="MODULE", dest="module", help="the module to run as a program")
    which.add_argument("-c", metavar="CODE", dest="code", help="the program itself")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="PROGRAM",
        help="a file, a folder or archive with a __main__.py, or a command in PATH; the rest is its own",
    )
    return parser


def _addPlaces(parser: ArgumentParser) -> None:
    from twisted_ib.tools.program import whole

    parser.add_argument(
        "--hosts",
        metavar="N",
        type=whole(1, limits.RUN_HOSTS),
        help="start it on each of N hosts, which are network namespaces of this one",
    )
    parser.add_argument(
        "--subnet",
        metavar="N",
        type=whole(1, limits.RUN_HOSTS),
        help="start it at each of N adapters of an InfiniBand subnet",
    )
    parser.add_argument(
        "--on",
        metavar="HOST",
        help="in a program of --hosts: start a command on another of them, as rsh does",
    )


def _divided(words: list[str]) -> tuple[list[str], list[str]]:
    # As of Python: what follows PROGRAM, -m MODULE or -c CODE is the program's.
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("-m", "-c"):
            return words[: at + 2], words[at + 2 :]
        if word.startswith(("-m", "-c")):
            return words[: at + 1], words[at + 1 :]
        if word == "--":
            return words[: at + 2], words[at + 2 :]
        if not word.startswith("-"):
            return words[: at + 1], words[at + 1 :]
        at += 2 if word in _WITH_VALUE else 1
    return words, []


def _divideHosts(
    parser: ArgumentParser,
    options: SimpleNamespace,
    ours: list[str],
    theirs: list[str],
    program: Code | Module | str,
) -> None:
    # What each host gets: all words but the option that says where.
    asked = [name for name in _ELSEWHERE if getattr(options, name[2:]) is not None]
    if not asked:
        return
    name = asked[0]
    if len(asked) > 1 or options.device is not None or options.check or not program:
        parser.error(f"each of {name} has a device of its own, and starts PROGRAM")
    at = next(at for at, word in enumerate(ours) if word == name or word.startswith(f"{name}="))
    options.once = ours[:at] + ours[at + 1 + (ours[at] == name) :]
    if name != "--on":
        options.once += theirs
    elif not isinstance(program, str):
        parser.error("--on starts a command of the shell")
    else:
        options.once.pop()


def _programOf(options: SimpleNamespace) -> Code | Module | str | None:
    if options.module is not None:
        return Module(options.module)
    if options.code is not None:
        return Code(options.code)
    if options.arguments:
        return str(options.arguments[0])
    return "" if options.check else None


def _plainly(words: list[str]) -> tuple[SimpleNamespace, Code | Module | str] | None:
    # Reads flags and a program alone, as the parser does.  To import that, and to tell it of all options,
    # takes longer than all else that a program without a loop waits for.
    options = SimpleNamespace(**_UNASKED, arguments=[])
    for at, word in enumerate(words):
        if word in _FLAGS:
            name, value = _FLAGS[word]
            setattr(options, name, value)
            continue
        left = words[at + 1 :]
        if not word.startswith("-"):
            options.arguments = [word]
        elif word in ("-m", "-c") and left and not left[0].startswith("-"):
            setattr(options, "module" if word == "-m" else "code", left.pop(0))
        else:
            break
        program = _programOf(options)
        if program is None or (options.json and not options.summary):
            break
        options.arguments = left
        return options, program
    return None


def parseArguments(arguments: Sequence[str]) -> tuple[SimpleNamespace, Code | Module | str]:
    """
    @return: the parsed command line, whose C{arguments} are the program's; and the program: a L{str} is the
        name of a file, empty if only a check is asked for.
    """
    words = list(arguments)
    plain = _plainly(words)
    if plain is not None:
        return plain
    ours, theirs = _divided(words)
    parser = commandLine()
    options = parser.parse_args(ours, SimpleNamespace())
    program = _programOf(options)
    if program is None:
        parser.error("there is no PROGRAM, -m MODULE or -c CODE")
    if options.address is not None and options.device is None:
        parser.error("--address is of a device: say --device, too")
    _divideHosts(parser, options, ours, theirs, program)
    if options.json and not (options.summary or options.check):
        parser.error("--json is of the summary or the check: say --summary or --check, too")
    options.arguments = theirs
    return options, program


def start(options: SimpleNamespace, asked: Code | Module | str) -> Code | Module | Script:
    """
    Have a program get the loops, reactors and sockets of this package.

    @return: the program, ready to run.
    @raise StartError: it cannot be started.
    @raise OtherInterpreter: it is one of another interpreter.
    @raise NotPython: it is no program of Python.
    @raise RulesError: the rules are wrong.
    @raise OSError: the rules cannot be read.
    """
    if DEVICES in os.environ:
        # Imported here: as a rule there is none.  A program would miss its device late, and without a word.
        from twisted_ib.hca.device.registry import parseDevices

        try:
            parseDevices(os.environ[DEVICES])
        except DeviceError as error:
            raise StartError(str(error), 1) from None
    program = find(asked) if isinstance(asked, str) else asked
    missing = searchByPython(options.sysfs)
    program.prepare(options.arguments)
    rules = _rules()
    what = install(options.reactor or "", None if options.quiet else _named, options.queues)
    _promise(options)
    _inherit(options)
    libraries = missing and f"; {missing}"
    _say(options, f"{program.name} {what}; rules: {rules}{libraries}")
    for name in unknown(os.environ):
        _say(options, f"nothing reads a variable of the name {name}")
    return program


def _inherit(options: SimpleNamespace) -> None:
    summary = ("json" if options.json else "text") if options.summary else ""
    given = Inherited(options.reactor or "", summary, "queues" if options.queues else "")
    inherit(os.environ, given if options.children else None)


def _rules() -> str:
    # Imported here: there are none as a rule, and a program that does not connect needs none.
    if not isConfigured(os.environ) and not any(each in os.environ for each in SIMPLE_VARIABLES):
        return "no rules are configured"
    from twisted_ib.switch.rules.configuration import Configuration

    policy = Configuration().read()
    return policy.source or policy.default.reason


def _named(text: str) -> None:
    if not text.isprintable():
        from twisted_ib.tools.program import printable

        text = printable(text)
    print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)


def _complain(error: Exception | str) -> None:
    from twisted_ib.tools.program import complain, printable

    complain(PROGRAM, error if isinstance(error, OSError) else StartError(printable(str(error)), 1))


def _promise(options: SimpleNamespace) -> None:
    isSeen = not options.quiet and sys.stderr is not None and sys.stderr.isatty()
    if isSeen or options.summary:
        from twisted_ib.tools.run.summary import sayAtExit

        sayAtExit(PROGRAM, options.summary, options.json, True)


def _say(options: SimpleNamespace, text: str) -> None:
    if options.device is not None:
        text += f"; device {options.device}" + (f" at {options.address}" if options.address else "")
    if not options.quiet:
        # Before the program: it may replace sys.stderr.
        _named(text)


def _hideOwnFrames(error: BaseException) -> None:
    # Python shows none of its own either, and nothing at all of a SystemExit.  The frames that are above this
    # one come only when it is raised again, so that the last moment is the time.
    if isinstance(error, SystemExit):
        return
    trace, folder = error.__traceback__, os.path.dirname(__file__)
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == folder:
        trace = trace.tb_next
    # Not longer: what the frames have would outlive the modules that it uses.
    kept, shown = [(error, trace)], sys.excepthook

    def show(kind: type[BaseException], raised: BaseException, found: TracebackType | None) -> None:
        if kept and raised is kept[0][0]:
            _, found = kept.pop()
            raised.__traceback__ = found
            if found is not None and isinstance(raised, (OSError, KeyboardInterrupt)):
                _endAbove(found)
        shown(kind, raised, found)

    sys.excepthook = show


def _endAbove(trace: TracebackType) -> None:
    # The standard library's sockets have no frames below the call that fails, or that Ctrl+C ends.
    last, each = trace, trace.tb_next
    while each is not None:
        # By the module: the file of a frame of a compiled one is relative.
        if not each.tb_frame.f_globals.get("__name__", "").startswith("twisted_ib."):
            last = each
        each = each.tb_next
    last.tb_next = None


def _elsewhere(options: SimpleNamespace, asked: Code | Module | str, words: list[str]) -> int:
    from twisted_ib.tools.run.hosts import becomeOn, runInSubnet, runOnHosts

    if options.on is not None:
        becomeOn(options.on, options.once, [str(asked), *options.arguments])
    if options.subnet is not None:
        return runInSubnet(options.subnet, options.once)
    return runOnHosts(options.hosts, options.once, words, lambda text: _say(options, text))


def _becomeNative(options: SimpleNamespace, asked: str, program: NotPython) -> None:
    _inherit(options)
    words = [asked, *options.arguments]
    become(program, words, options.sysfs, lambda text: _say(options, f"{asked} {text}"))


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-run}.

    @param arguments: the command line, by default this process's.
    @return: the exit status, if the program ends without one.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, asked = parseArguments(words)
    if options.config is not None:
        os.environ[CONFIG] = os.path.abspath(options.config)
    try:
        if any(getattr(options, name[2:]) is not None for name in _ELSEWHERE):
            return _elsewhere(options, asked, words)
        if options.device is not None:
            chooseDevice(options.device, options.address, os.environ)
        if options.check:
            # Imported here: it opens devices.
            from twisted_ib.tools.run.check import check

            return check(asked if isinstance(asked, str) else "", options.json)
        try:
            program = start(options, asked)
        except OtherInterpreter as other:
            # Libraries of C are found without this package.
            if options.device is None or other.isFound or not other.executable or lacking():
                other.become(words)
            else:
                _becomeNative(options, str(asked), NotPython(other.path, other.executable))
            return NOT_RUNNABLE
        except NotPython as other:
            _becomeNative(options, str(asked), other)
            return NOT_RUNNABLE
    except RulesError as error:
        for line in error.errors:
            _complain(line)
        return 1
    except StartError as error:
        _complain(error)
        return error.status
    except OSError as error:
        _complain(error)
        return 1
    # Not within the handlers above: its errors are its own.
    try:
        program.run()
    except BaseException as error:
        _hideOwnFrames(error)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
