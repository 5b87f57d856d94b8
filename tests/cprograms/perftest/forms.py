"""
perftest's programs in the forms that their options give, with few iterations each.
"""

from __future__ import annotations

from attrs import frozen

from tests.cprograms.lab import Lab, LabError, Side
from tests.cprograms.programs import Program

_SEND, _WRITE, _READ, _ATOMIC = ("ib_send", "ib_write", "ib_read", "ib_atomic")
_SIZED = (_SEND, _WRITE, _READ)
_ALL = (*_SIZED, _ATOMIC)
_LATENCY, _BANDWIDTH, _BOTH = ("_lat",), ("_bw",), ("_lat", "_bw")


@frozen
class Form:
    """
    A program with options.

    @ivar command: of both sides.
    @ivar refusal: what one of them says where the device lacks what it asks for; C{""} where it passes.
    """

    command: str
    refusal: str = ""

    def run(self, server: Side, client: Side) -> None:
        """
        Run it once.

        @raise LabError: it did not pass, or was not refused as it should be.
        """
        name, _, options = self.command.partition(" ")
        count = "" if "-D" in options else "-n 20"
        words = f"{name} -d {{device}} -p {{port}} -F {count} {options}"
        isOverTCP = not {"-R", "-z"} & set(options.split())
        program = Program(name, words, f"{words} {{server}}", "perftest", "#bytes", isOverTCP=isOverTCP)
        try:
            Lab(server, client).run(program)
        except LabError as error:
            if not self.refusal or self.refusal not in str(error):
                raise
        else:
            if self.refusal:
                raise LabError(f"{self.command} passed")


def _forms(
    options: str, names: tuple[str, ...], ends: tuple[str, ...], refusal: str = ""
) -> tuple[Form, ...]:
    return tuple(Form(f"{name}{end} {options}".strip(), refusal) for name in names for end in ends)


def firsts(forms: tuple[Form, ...]) -> tuple[Form, ...]:
    """
    @return: of those with the same options the first.
    """
    return tuple({form.command.partition(" ")[2]: form for form in reversed(forms)}.values())


#: By exchange over TCP, and by the communication manager.
CONNECTED = (*_forms("", _ALL, _BOTH), *_forms("-R", _ALL, _BOTH))
#: How completions come, connections are made and requests are posted; transports.
PLAIN = (
    *CONNECTED,
    *_forms("-z", _ALL, _BOTH),
    *_forms("--use_old_post_send", _ALL, _BOTH),
    *_forms("-e", (_SEND, _READ, _ATOMIC), _BOTH),
    *_forms("-R -e", (_SEND,), _BOTH),
    *_forms("-c UC", (_SEND, _WRITE), _BOTH),
    *_forms("-c UD -s 1024", (_SEND,), _BOTH),
    *_forms("--use-srq", (_SEND,), _BOTH),
    *_forms("-D 1", _ALL, _BOTH),
    *_forms("-m 1024", _SIZED, _LATENCY),
)
#: Groups, whose form is that of the device's GID: RoCEv2 has those of IP alone.
GROUPS = {
    "shm0": _forms("-c UD -g -x 0 -s 1024", (_SEND,), _BOTH),
    "roce0": _forms("-c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:7:7:7 -s 1024", (_SEND,), _BOTH),
}
#: Sizes, depths of queues, reports.
FURTHER = (
    *_forms("-a -n 5", _SIZED, _BOTH),
    *_forms("-I 64 -s 64", (_SEND, _WRITE), _BOTH),
    *_forms("-q 4", _ALL, _BANDWIDTH),
    *_forms("-q 2 --mr_per_qp", _ALL, _BANDWIDTH),
    *_forms("-b", _ALL, _BANDWIDTH),
    *_forms("-l 4", _SIZED, _BANDWIDTH),
    *_forms("--recv_post_list 4", (_SEND,), _BANDWIDTH),
    *_forms("-Q 4", _ALL, _BANDWIDTH),
    *_forms("-t 4", _ALL, _BANDWIDTH),
    *_forms("-r 16", (_SEND,), _BANDWIDTH),
    *_forms("-o 1", (_READ, _ATOMIC), _BOTH),
    *_forms("-A CMP_AND_SWAP", (_ATOMIC,), _BOTH),
    *_forms("--reversed", _SIZED, _BANDWIDTH),
    *_forms("-u 18 -S 1 --tclass 4", (_SEND,), _BOTH),
    *_forms("-N", _ALL, _BANDWIDTH),
    *_forms("-H -U", _ALL, _LATENCY),
    *_forms("--report_gbits", _SIZED, _BANDWIDTH),
    *_forms("--perform_warm_up", (_WRITE, _READ), _BANDWIDTH),
)
#: What is not there.
REFUSED = (
    *_forms("-c XRC", (_SEND, _WRITE), _BOTH, "Error opening XRC domain"),
    *_forms("-c DC", (_SEND, _WRITE), _BOTH, "Unable to create QP."),
    *_forms("--odp", (_WRITE,), _BOTH, "failed to create mr"),
    *_forms("--use_hugepages", (_SEND,), _BANDWIDTH, "Failed to allocate hugepages."),
    *_forms("--rate_limit 1", (_WRITE,), _BANDWIDTH, "Unknown rate limit value"),
)
#: By device, C{python -m tests.cprograms.programs --forms DEVICE} runs them.
EVERY = {device: (*PLAIN, *groups, *REFUSED, *FURTHER) for device, groups in GROUPS.items()}
#: Of these, by device, what the command runs without that.
FORMS = {
    "shm0": (*PLAIN, *GROUPS["shm0"], *REFUSED),
    "roce0": (*CONNECTED, *firsts(REFUSED)),
    # Its queue pairs are connected by the communication manager alone, and have no atomics: to post one is an
    # error (perftest tells no errno), as on Linux's siw.
    "iwarp0": (*_forms("-R", _SIZED, _BOTH), *_forms("-R", (_ATOMIC,), _BOTH, "Couldn't post send")),
}

__all__ = ["CONNECTED", "EVERY", "FORMS", "FURTHER", "GROUPS", "PLAIN", "REFUSED", "Form", "firsts"]
