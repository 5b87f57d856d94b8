"""
Crawl local pages with Scrapy from PyPI over TCP and over SDP, by turns, and compare the CPU time.

    python -m tests.suites.crawl [--rounds 5] [--pages 1500] [--looks 1] [--environment DIRECTORY]

Spider and web server are in two processes: both on asyncio's reactor (C{tcp}), both on C{ib-asyncio}, of
which Scrapy learns by its setting C{TWISTED_REACTOR} (C{sdp}), or both started by C{ib-run} (C{ib-run}).
During each crawl C{ib-ss} says what carries it, as often as C{--looks} asks; the server keeps the last page
back until then.  A table has the medians of user and system time, seconds, of
each process while it crawls, and of both with their start (C{all}).  The exit status is 0 if all pages came
each time, by what was to carry them, and C{ib-run} takes no more of C{all} than C{tcp}; 77 if Scrapy cannot
be installed, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import IO, Any

from attrs import define

from tests.suites.compare import CONFIGURING, ROOT
from tests.suites.projects import INSTALL_SECONDS, SKIPPED

#: The reactor that Scrapy's setting names: by default it is asyncio's.
REACTOR = "twisted_ib.reactor.IBAsyncioReactor"
TCP = "tcp"
#: The kinds of crawls, and what C{ib-ss} shows of each: it knows nothing of processes without this package.
CARRIERS: dict[str, set[str]] = {TCP: set(), "sdp": {"sdp"}, "ib-run": {"sdp"}}
#: Starts the processes of the last kind.
IB_RUN = ("-m", "twisted_ib.tools.run", "-q", "--reactor=ib-asyncio")
#: How many links a page has to others.
LINKS = 10
#: How many octets a page has beside them.
PAGE_BYTES = 4096
#: How many requests, so connections, there are at a time: Scrapy's default.
CONCURRENT = 16
#: How long one process may take, seconds, and how much longer for each look at it.
PROCESS_SECONDS = 300
LOOK_SECONDS = 6


class Failed(Exception):
    """
    It did not do what it should.
    """


def spent() -> float:
    """
    @return: the CPU time that this process has taken, seconds.
    """
    found = getrusage(RUSAGE_SELF)
    return found.ru_utime + found.ru_stime


def say(**what: object) -> None:
    """
    Tell the parent.
    """
    print(json.dumps(what), flush=True)


class Held:
    """
    The last page, which a crawl that is looked at does not get: it would be over.
    """

    def __init__(self, pages: int) -> None:
        self._last = pages - 1
        self._isSeen = False
        self._answers: list[Callable[[], None]] = []

    def holds(self, page: int, answer: Callable[[], None]) -> bool:
        """
        @param answer: Answers it later.
        @return: whether that is to be waited for.
        """
        # Without the first there is no crawl to look at.
        if page != self._last or page == 0 or self._isSeen:
            return False
        self._answers.append(answer)
        return True

    def release(self) -> None:
        """
        It has been looked at.
        """
        self._isSeen = True
        while self._answers:
            self._answers.pop()()


def serve(carrier: str, pages: int) -> None:
    """
    Serve pages until standard input ends.
    """
    if carrier == "sdp":
        from twisted_ib.reactor import install
    else:
        from twisted.internet.asyncioreactor import install
    install()
    from twisted.internet import reactor as installed
    from twisted.internet.protocol import Protocol
    from twisted.internet.stdio import StandardIO
    from twisted.web.resource import Resource
    from twisted.web.server import NOT_DONE_YET, Site

    reactor: Any = installed
    held = Held(pages)

    class Page(Resource):
        isLeaf = True

        def render_GET(self, request: Any) -> Any:
            number = int(request.path[1:])
            first = number * LINKS + 1
            links = "".join(f'<a href="/{n}">{n}</a>' for n in range(first, first + LINKS) if n < pages)
            request.setHeader(b"content-type", b"text/html")
            page = f"<html><body>{links}{'x' * PAGE_BYTES}</body></html>".encode()

            def answer() -> None:
                request.write(page)
                request.finish()

            return NOT_DONE_YET if held.holds(number, answer) else page

    class Parent(Protocol):
        def dataReceived(self, data: bytes) -> None:
            held.release()

        def connectionLost(self, reason: Any = None) -> None:
            reactor.stop()

    StandardIO(Parent())
    port = reactor.listenTCP(0, Site(Page()), interface="127.0.0.1")
    say(port=port.getHost().port, started=spent())
    reactor.run()
    say(all=spent())


def crawl(carrier: str, pages: int, port: int) -> None:
    """
    Follow all links.
    """
    from scrapy import Spider
    from scrapy.crawler import CrawlerProcess

    seen = []

    class Follower(Spider):  # type: ignore[misc]
        name = "follower"
        start_urls = (f"http://127.0.0.1:{port}/0",)

        def parse(self, response: Any) -> Iterator[Any]:
            seen.append(len(response.body) > PAGE_BYTES)
            if len(seen) == 1:
                say(begun=True)
            yield from (response.follow(each) for each in response.css("a::attr(href)").getall())

    settings = {
        "CONCURRENT_REQUESTS": CONCURRENT,
        "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENT,
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        **({"TWISTED_REACTOR": REACTOR} if carrier == "sdp" else {}),
    }
    process = CrawlerProcess(settings)
    process.crawl(Follower)
    started = spent()
    process.start()
    say(pages=sum(seen), started=started, all=spent())


@define
class Cost:
    """
    CPU times of one crawl, seconds.

    @ivar crawler: of the spider's process while it crawls; C{crawlerAll} with its start.
    @ivar server: likewise, of the server's.
    """

    crawler: float
    server: float
    crawlerAll: float
    serverAll: float


class Crawls:
    """
    Crawls in processes of an environment.
    """

    def __init__(self, python: str, directory: Path, pages: int, looks: int = 1) -> None:
        """
        @param python: that of the environment.
        @param directory: for logs and what processes leave.
        @param looks: how often C{ib-ss} looks at each crawl.
        """
        self._python = python
        self._directory = directory
        self._pages = pages
        self._looks = looks
        run = directory / "run"
        run.mkdir(mode=0o700)
        self._environment = {key: value for key, value in os.environ.items() if key not in CONFIGURING}
        self._environment.update(PYTHONPATH=str(ROOT), HOME=str(directory), TWISTED_IB_RUN_DIR=str(run))

    def _begin(self, log: IO[bytes], role: str, carrier: str, *words: object) -> subprocess.Popen[bytes]:
        seconds = PROCESS_SECONDS + self._looks * LOOK_SECONDS
        command = ["timeout", str(seconds), self._python, *(IB_RUN if carrier == "ib-run" else ())]
        command += ["-m", "tests.suites.crawl", role, carrier, "--pages", str(self._pages)]
        command += [str(each) for each in words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self._directory, env=self._environment, stdin=pipe, stdout=pipe, stderr=log
        )

    def crawl(self, carrier: str) -> Cost:
        """
        @return: what one crawl costs.
        @raise Failed: pages are missing, or something else carries them.
        """
        with open(self._directory / "log", "wb") as log:
            with self._begin(log, "--serve", carrier) as server:
                serving = self._said(server, "port")
                with self._begin(log, "--crawl", carrier, "--port", serving["port"]) as crawler:
                    self._said(crawler, "begun")
                    assert server.stdin is not None
                    seen = [self._ways(serving["port"]) for _ in range(self._looks)]
                    server.stdin.write(b"seen\n")
                    server.stdin.flush()
                    crawled = self._said(crawler, "pages")
                server.stdin.close()
                served = self._said(server, "all")
        others = [ways for ways in seen if ways != CARRIERS[carrier]]
        if crawled["pages"] != self._pages or others:
            ways = f"{others[0] or 'TCP'} in {len(others)} of {len(seen)} looks" if others else carrier
            raise Failed(f"{carrier}: {crawled['pages']} pages of {self._pages}, carried by {ways}")
        return Cost(
            crawled["all"] - crawled["started"],
            served["all"] - serving["started"],
            crawled["all"],
            served["all"],
        )

    def _said(self, process: subprocess.Popen[bytes], key: str) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
        if key not in found:
            raise Failed(f"a process ended: {(self._directory / 'log').read_text(errors='replace')[-2000:]}")
        return found

    def _ways(self, port: int) -> set[str]:
        command = [self._python, "-m", "twisted_ib.tools.show.ss", "--json"]
        said = subprocess.run(
            command, cwd=self._directory, env=self._environment, check=True, capture_output=True
        )
        rows: list[dict[str, Any]] = json.loads(said.stdout)
        if empty := [row for row in rows if not row["rule"]]:
            raise Failed(f"ib-ss knows no rule of {empty[0]}")
        return {row["provider"] for row in rows if (row["remote"] or "").endswith(f":{port}")}


def report(costs: dict[str, list[Cost]]) -> int:
    """
    Print the medians.

    @return: 0 if C{ib-run} costs no more than C{tcp}.
    """
    print(f"{f'median of {len(costs[TCP])}':<14}{'crawler':>9}{'server':>9}{'both':>9}{'all':>9}")
    columns = {}
    for carrier, found in costs.items():
        columns[carrier] = [
            median(each.crawler for each in found),
            median(each.server for each in found),
            median(each.crawler + each.server for each in found),
            median(each.crawlerAll + each.serverAll for each in found),
        ]
        print(f"{carrier:<14}" + "".join(f"{each:9.2f}" for each in columns[carrier]))
    for carrier in ("sdp", "ib-run"):
        crawling, whole = (columns[carrier][at] / columns[TCP][at] for at in (2, 3))
        print(f"{carrier}: {crawling:.2f} of the CPU time of tcp while it crawls, {whole:.2f} in all")
    return int(columns["ib-run"][3] > columns[TCP][3])


def install(environment: Path) -> str:
    """
    Make the environment.

    @return: why that was not possible, or nothing.
    """
    python = str(environment / "bin" / "python")
    steps = [] if environment.exists() else [[sys.executable, "-m", "venv", str(environment)]]
    steps.append([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(ROOT), "scrapy"])
    for step in steps:
        done = subprocess.run(
            ["timeout", str(INSTALL_SECONDS), *step], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return (done.stderr.strip() or "it took too long").splitlines()[-1]
    return ""


def measure(options: argparse.Namespace, temporary: Path) -> int:
    """
    Crawl, and print what it costs.

    @return: the exit status.
    """
    environment = (options.environment or temporary / "environment").resolve()
    if trouble := install(environment):
        print(f"skipped: Scrapy cannot be installed: {trouble}")
        return SKIPPED
    crawls = Crawls(str(environment / "bin" / "python"), temporary, options.pages, options.looks)
    costs: dict[str, list[Cost]] = {carrier: [] for carrier in CARRIERS}
    try:
        for number in range(options.rounds + 1):
            for carrier in CARRIERS:
                cost = crawls.crawl(carrier)
                # The first round compiles what is imported.
                if number:
                    costs[carrier].append(cost)
                    line = f"{number} {carrier}: crawler {cost.crawler:.2f}, server {cost.server:.2f}"
                    print(f"{line}, all {cost.crawlerAll + cost.serverAll:.2f}", flush=True)
    except Failed as error:
        print(f"failed: {error}")
        return 1
    return report(costs)


def main() -> int:
    """
    Do it, or a process's part of it.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.crawl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int, default=1500)
    parser.add_argument("--looks", type=int, default=1, help="of ib-ss at each crawl (1)")
    parser.add_argument("--environment", type=Path, help="a virtual environment to keep and use again")
    for role in ("--serve", "--crawl", "--port"):
        parser.add_argument(role, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.pages)
    elif options.crawl:
        crawl(options.crawl, options.pages, int(options.port))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            return measure(options, Path(temporary).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
