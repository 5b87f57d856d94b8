"""What the ping-pong programs have in common and is no verb: options, results, what goes wrong."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from rendezvous import exchange

from twisted_ib.verbs.pyverbs import Context, PyverbsError, get_device_list

if TYPE_CHECKING:
    from ibv_rc_pingpong import PingPong


MTUS = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}  # Octets, and what C{enum ibv_mtu} has for them.
LACKING = {
    "-o --odp": "there is no on-demand paging",
    "-O --iodp": "there is no on-demand paging",
    "-P --prefetch": "there is no on-demand paging, so there is nothing to prefetch",
    "-t --ts": "completions have no timestamps",
    "-U --allow-cc-unprotected": "there is no unprotected memory",
}


class Impossible(Action):
    """An option for something that the devices here do not have."""

    def __call__(self, parser: ArgumentParser, found: Any, value: Any, option: str | None = None) -> None:
        """Say so."""
        parser.exit(1, f"{parser.prog}: {option}: {self.help}: {os.strerror(errno.EOPNOTSUPP)}\n")


def number(text: str) -> int:
    """Read a number in any of C's notations."""
    if (value := int(text, 0)) < 0:
        raise ArgumentTypeError(f"{text} is negative")
    return value


def positive(text: str) -> int:
    """Read a number that is not 0."""
    if not (value := number(text)):
        raise ArgumentTypeError("0 is too little")
    return value


def optionsOf(about: str, lacking: str = "", size: int = 4096, mtu: bool = True) -> ArgumentParser:
    """Make the options of a program: those that all have, and C{lacking}, which it has to refuse."""
    parser = ArgumentParser(description=about)
    parser.set_defaults(new_send=False, dm=False)
    add, device = parser.add_argument, get_device_list()[0].name.decode()
    add("host", nargs="?", help="connect to the server there; without one, be the server")
    add("-p", "--port", type=number, default=18515, help="TCP port of the server (default 18515)")
    add("-d", "--ib-dev", default=device, metavar="DEV", help=f"the device (default {device})")
    add("-i", "--ib-port", type=positive, default=1, metavar="PORT", help="its port (default 1)")
    add("-s", "--size", type=positive, default=size, help=f"octets of a message (default {size})")
    add("-r", "--rx-depth", type=positive, default=500, metavar="N", help="receives to post (default 500)")
    add("-n", "--iters", type=positive, default=1000, metavar="N", help="messages each way (default 1000)")
    add("-l", "--sl", type=number, default=0, help="service level (default 0)")
    add("-e", "--events", action="store_true", help="sleep until there are completions, do not poll")
    add("-g", "--gid-idx", type=number, default=0, metavar="N", help="which GID of the port (default 0)")
    add("-c", "--chk", action="store_true", help="have the server validate what it received")
    if mtu:
        add("-m", "--mtu", type=int, choices=MTUS, default=1024, help="octets of a packet (default 1024)")
    for names, why in LACKING.items():
        if names[1] in lacking:
            add(*names.split(), action=Impossible, nargs=0, help=why)
    return parser


def pages(side: PingPong) -> list[tuple[int, bytes]]:
    """Where each page of a message begins, and what is there if it shall be validated."""
    offsets = range(side.start, side.mr.length, mmap.PAGESIZE)
    # Device memory is copied by 4 octets.
    count = 4 if side.options.dm else 1
    return [(offset, bytes([1 + page % 255]) * count) for page, offset in enumerate(offsets)]


def report(options: Namespace, seconds: float) -> None:
    """Print how fast it was."""
    n, octets = options.iters, options.size * options.iters * 2
    print(f"{octets} bytes in {seconds:.2f} seconds = {octets * 8 / seconds / 1e6:.2f} Mbit/sec")
    print(f"{n} iters in {seconds:.2f} seconds = {seconds / n * 1e6:.2f} usec/iter")


def play(kind: type[PingPong], options: Namespace) -> int:
    """Be one side.  Return the number of pages that did not come as they were sent."""
    with Context(name=options.ib_dev) as context:
        side = kind(options, context)
        exchange(options, side.mine, side.connect)
        if options.chk and options.host:
            for offset, content in pages(side):
                side.mr.write(content, len(content), offset)
        began = time.perf_counter()
        side.run()
        report(options, time.perf_counter() - began)
        if not options.chk or options.host:
            return 0
        kept = enumerate(pages(side))
        bad = [page for page, (at, content) in kept if side.mr.read(len(content), at) != content]
    for page in bad:
        print(f"invalid data in page {page}")
    return len(bad)


def main(kind: type[PingPong], parser: ArgumentParser) -> None:
    """Be one side of a program, and end with a status: 0, or 1 and a sentence on what went wrong."""
    try:
        sys.exit(1 if play(kind, parser.parse_args()) else 0)
    except (PyverbsError, OSError, OverflowError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
