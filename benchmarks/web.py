"""
A large file from C{twisted.web}: C{static.File} over C{tcp:} and C{sdp:}, and C{examples/webfile.py}.

From the checkout: C{python -m benchmarks.web --rounds 5 --megabytes 256}.  Server and client are
processes, new ones for each figure; rounds are interleaved.  The client counts what comes and
hashes it once, outside of the timed part.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from os import environ, mkdir, path, urandom
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter
from typing import Any

from twisted.application.reactors import installReactor

#: By name: the reactor, the scheme, and whether the file leaves as registered memory.
SUBJECTS = {
    "tcp": ("epoll", "tcp", False),
    "sdp-ib": ("ib", "sdp", False),
    "sdp-ib-registered": ("ib", "sdp", True),
    "sdp-epoll": ("epoll", "sdp", False),
    "sdp-epoll-registered": ("epoll", "sdp", True),
}
_ROOT = path.dirname(path.dirname(path.abspath(__file__)))
_NAME = "large"


def cpuSeconds() -> float:
    """
    @return: the processor's time that this process has used.
    """
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(subject: str, folder: str) -> None:
    """
    Serve until standard input is closed; then say how much processor time that took.
    """
    reactorName, scheme, registered = SUBJECTS[subject]
    installReactor(reactorName)
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import serverFromString
    from twisted.internet.protocol import Protocol
    from twisted.internet.stdio import StandardIO
    from twisted.web.server import Site
    from twisted.web.static import File

    reactor: Any = installed
    kind: Any = File
    if registered:
        spec = spec_from_file_location("webfile", path.join(_ROOT, "examples", "webfile.py"))
        assert spec is not None and spec.loader is not None
        webfile = module_from_spec(spec)
        spec.loader.exec_module(webfile)
        kind = webfile.RegisteredFile

    class Input(Protocol):
        """
        Ends the server.
        """

        def connectionLost(self, reason: Any = None) -> None:
            """
            Standard input is closed.
            """
            reactor.stop()

    def ready(port: Any) -> None:
        """
        Say where.
        """
        StandardIO(Input())
        print(port.getHost().port, flush=True)

    serverFromString(reactor, f"{scheme}:0:interface=127.0.0.1").listen(Site(kind(folder))).addCallback(ready)
    reactor.run()
    print(cpuSeconds(), file=sys.stderr)


def get(subject: str, port: str, length: int, times: int) -> None:
    """
    Fetch the file once to hash it, and then so many times; print seconds, processor time and hash.
    """
    reactorName, scheme, _ = SUBJECTS[subject]
    installReactor(reactorName)
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import clientFromString
    from twisted.internet.protocol import Factory, Protocol

    reactor: Any = installed

    class Client(Protocol):
        """
        One GET after the other, on one connection.
        """

        transport: Any
        left = times

        def connectionMade(self) -> None:
            """
            The first, which is hashed.
            """
            self.digest: Any = sha256()
            self.ask()

        def ask(self) -> None:
            """
            The next.
            """
            self.head, self.missing = b"", length
            self.inBody = False
            self.transport.write(f"GET /{_NAME} HTTP/1.1\r\nHost: a\r\n\r\n".encode())

        def dataReceived(self, data: bytes) -> None:
            """
            Count the body.
            """
            if not self.inBody:
                self.head += data
                _, end, data = self.head.partition(b"\r\n\r\n")
                self.inBody = bool(end)
                if not end:
                    return
            self.missing -= len(data)
            if self.digest is not None:
                self.digest.update(data)
            if not self.missing:
                self.whole()

        def whole(self) -> None:
            """
            A body has come to its end.
            """
            if self.digest is not None:
                self.sum, self.digest = self.digest.hexdigest(), None
                self.began, self.used = perf_counter(), cpuSeconds()
            else:
                self.left -= 1
            if self.left:
                self.ask()
                return
            print(perf_counter() - self.began, cpuSeconds() - self.used, self.sum, flush=True)
            self.transport.loseConnection()
            reactor.callLater(0.05, reactor.stop)

    clientFromString(reactor, f"{scheme}:127.0.0.1:{port}").connect(Factory.forProtocol(Client)).addErrback(
        lambda failure: (failure.printTraceback(), reactor.stop())
    )
    reactor.run()


def measure(subject: str, folder: str, length: int, times: int, wanted: str) -> tuple[float, float]:
    """
    @return: MB/s, and CPU ns per KiB of both processes; the server's with its start, and the first GET.
    """
    program = [sys.executable, "-m", "benchmarks.web", "--subject", subject, "--folder", folder]
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        [*program, "--serve"], cwd=_ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    numbers = ["--times", str(times), "--length", str(length)]
    asking = [*program, "--get", port, *numbers]
    client = subprocess.run(asking, cwd=_ROOT, stdout=pipe, text=True, check=True)
    _, served = server.communicate()
    seconds, cpu, digest = client.stdout.split()
    if digest != wanted:
        raise SystemExit(f"{subject}: other bytes came")
    count = length * times
    return count / float(seconds) / 1e6, (float(cpu) + float(served)) / count * 1024 * 1e9


def main() -> None:
    """
    Do what the command line says.
    """
    parser = ArgumentParser(description="A large file from twisted.web.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--times", type=int, default=4, help="GETs for one figure")
    parser.add_argument("--subject", choices=SUBJECTS, help="only this")
    for name in ("folder", "get", "length"):
        parser.add_argument(f"--{name}", help="for the processes")
    parser.add_argument("--serve", action="store_true", help="for the processes")
    options = parser.parse_args()
    if options.serve:
        serve(options.subject, options.folder)
    elif options.get:
        get(options.subject, options.get, int(options.length), options.times)
    else:
        names = [options.subject] if options.subject else [*SUBJECTS]
        compare(options.rounds, options.megabytes << 20, options.times, names)


def compare(rounds: int, length: int, times: int, names: list[str]) -> None:
    """
    Measure all in turn, and print medians.
    """
    with tempfile.TemporaryDirectory(prefix="tib-") as folder:
        environ["TWISTED_IB_RUN_DIR"] = path.join(folder, "run")
        mkdir(environ["TWISTED_IB_RUN_DIR"], 0o700)
        content = urandom(length)
        wanted = sha256(content).hexdigest()
        with open(path.join(folder, _NAME), "wb") as file:
            file.write(content)
        del content
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                found[name].append(measure(name, folder, length, times, wanted))
    for name, figures in found.items():
        rate, cpu = (median(each[which] for each in figures) for which in (0, 1))
        ratios = [mine[0] / tcp[0] for mine, tcp in zip(figures, found.get("tcp", figures), strict=True)]
        print(f"{name:21} {rate:6.0f} MB/s  {median(ratios):5.2f} x  CPU {cpu:5.0f} ns/KiB")


if __name__ == "__main__":
    main()
