"""
A server that is away: C{python -m tests.soak.stopped --device roce0 --kind sdp --seconds 20 --connects 20}.

A server in a process of its own is stopped (SIGSTOP) for some time, while clients connect, each with the
timeout that a program has by default.  Then it goes on.  Each connect must work at both ends, that is a
message must come back, or fail at the client with a reason.  What became of them is printed as a line of
JSON, and the status is 1 if one did neither, or if the server holds a connection that its client does not.
On C{ib0} the client's process hosts the subnet.  With C{--hosts server} the server's does, and with C{--hosts
other} a third one, which is stopped in place of the server.

C{python -m tests.soak.stopped --all} tells the story for each device, each kind and each of L{LENGTHS}, some
beside one another: a line for each, with how many connects worked, failed with a reason, and did neither.
The status is 1 if one story is not good.  C{--device}, C{--kind} and C{--seconds} then take a part of them.

Kinds are C{sdp}, C{ib}, C{rds} (one datagram is one connect) and C{cmid}, a program that waits in verbs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Thread
from typing import Any

from twisted.internet import protocol
from twisted.internet.error import CannotListenError
from twisted.python.failure import Failure

from tests.support.commands import stop
from tests.support.counting import Counted, Echo
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS
from twisted_ib.internet.readers import channelsOf
from twisted_ib.ipoib import interfaceFor
from twisted_ib.rds import listenRDS
from twisted_ib.reactor import ibreactor
from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import enums

PORT, SIZE = 4000, 64
#: How long a connect, or what follows it, may go on when the server is back, in seconds: longer than the
#: default timeout of every kind.
AFTER = 120.0
DEVICES = "roce0", "ib0", "iwarp0", "shm0"
KINDS = "sdp", "ib", "rds", "cmid"
#: How long the server is away in the stories of C{--all}, in seconds, around that of a REQ's repeats.
LENGTHS = 1, 5, 10, 16, 17, 18, 20, 30, 45, 60


class Result:
    """
    What became of the connects of one process.
    """

    def __init__(self, count: int) -> None:
        self.count, self.begin = count, time.monotonic()  # The connects' begin, as soon as they do.
        self.ended: Counter[str] = Counter()
        self.last = 0.0

    def add(self, how: str) -> None:
        """
        One has ended; after the last of them say so.
        """
        self.ended[how] += 1
        self.last = time.monotonic() - self.begin
        if self.ended.total() == self.count:
            self.tell()

    def tell(self) -> None:
        """
        Print it; those that have not ended are silent.
        """
        silent = self.count - self.ended.total()
        found = {**self.ended, **({"silent": silent} if silent else {})}
        print(json.dumps({"ended": found, "seconds": round(self.last, 1)}), flush=True)


class Caller(protocol.Protocol):
    """
    The client's end.
    """

    left = SIZE

    def __init__(self, result: Result) -> None:
        self._result = result

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.write(bytes(SIZE))

    def dataReceived(self, data: bytes) -> None:
        """
        Part of the echo came.
        """
        self.left -= len(data)
        if not self.left:
            self._result.add("echoed")

    messageReceived = dataReceived

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        """
        It was told that it is connected, and nothing came of that.
        """
        if self.left > 0:
            self._result.add(f"dead: {reason.value}")


class Datagrams(protocol.DatagramProtocol):
    """
    A socket of RDS: the server's, or a client's.
    """

    def __init__(self, server: str = "", result: Result | None = None) -> None:
        self._server, self._result = server, result

    def startProtocol(self) -> None:
        if self._result is not None:
            self.transport.write(bytes(SIZE), (self._server, PORT))

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        Answer, or be answered.
        """
        if self._result is None:
            self.transport.write(datagram, addr)
        else:
            self._result.add("echoed")


def _call(source: str | None, server: str) -> verbs.CMID:
    space = enums.RDMA_PS_IB if ":" in server else enums.RDMA_PS_TCP
    if source is None:
        info = verbs.AddrInfo(server, None, str(PORT), None, space, enums.RAI_PASSIVE)
    else:
        info = verbs.AddrInfo(source, server, None, str(PORT), space)
    domain = next((each for each in kept if isinstance(each, verbs.PD)), None)
    return verbs.CMID(info, verbs.QPInitAttr(cap=verbs.QPCap(max_recv_wr=1)), domain)


def _answerCMID(cmid: verbs.CMID) -> None:
    # The server's end.
    try:
        memory = cmid.reg_msgs(SIZE)
        cmid.post_recv(memory)
        cmid.accept(verbs.ConnParam(resources=1, depth=1))
        cmid.get_recv_comp()
        cmid.post_send(memory)
        cmid.get_send_comp()
    except Exception:
        cmid.close()
    else:
        Counted.live += 1
        kept.append(cmid)


def _own(device: str, address: str) -> str:
    # On C{ib0} the ends of verbs have GIDs: IP addresses are those of an interface.
    if not device.startswith("ib"):
        return address
    context = verbs.Context(name=device)
    kept.append(verbs.PD(context))
    return str(context.query_gid(1, 0))


def _serveCMID(server: str) -> None:
    # One thread takes the calls, another serves each.
    with _call(None, server) as listener:
        listener.listen(128)
        print("listening", server, flush=True)
        while True:
            Thread(target=_answerCMID, args=[listener.get_request()], daemon=True).start()


def _callCMID(source: str, server: str, result: Result) -> None:
    # A client.
    step = "failed"
    try:
        cmid = _call(source, server)
        kept.append(cmid)
        memory = cmid.reg_msgs(SIZE)
        cmid.post_recv(memory)
        cmid.connect(verbs.ConnParam(resources=1, depth=1))
        step = "dead"
        sent = cmid.reg_msgs(SIZE)
        cmid.post_send(sent)
        for done in (cmid.get_send_comp(), cmid.get_recv_comp()):
            if done.status:
                raise ConnectionError(f"status {done.status}")
    except Exception as error:
        result.add(f"{step}: {error}")
    else:
        result.add("echoed")


#: What lives as long as the process.
kept: list[Any] = []


def serve(device: str, kind: str, server: str) -> None:
    """
    Be the server: it says that it listens, and at each line that it reads how many connections it has.
    """

    def told() -> None:
        for _ in sys.stdin:
            print(Counted.live, flush=True)

    Thread(target=told, daemon=True).start()
    if kind == "cmid":
        _serveCMID(_own(device, server))
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import serverFromString

    reactor: Any = installed
    if kind == "rds":
        hasGID = device.startswith("ib")  # So its sockets of RDS have.
        listenRDS(reactor, PORT, Datagrams(), "" if hasGID else server, device=device)
        # On roce0 there is one more, for the processes of this host.
        found = [each.device for each in channelsOf(reactor) if each.device.name == device]
        text = f"listening {found[0].gids()[0] if hasGID else server}"
    else:
        endpoint = serverFromString(reactor, f"{kind}:{PORT}:interface={server}:device={device}")
        endpoint.listen(protocol.Factory.forProtocol(Echo)).addErrback(print)
        text = f"listening {server}"
    whenUp(reactor, device, server, lambda _: print(text, flush=True))
    reactor.run()


def whenUp(reactor: Any, device: str, address: str, then: Callable[[Any], object]) -> None:
    """
    Call a function when the device can be reached by its address.
    """
    if device.startswith("ib"):
        interfaceFor(reactor, device, f"{address}/24").ready().addCallbacks(then, print)
    else:
        reactor.callWhenRunning(then, None)


def call(device: str, kind: str, source: str, count: int, seconds: float, isLate: bool) -> None:
    """
    Be the clients: they begin when a line comes, which says where the server is.

    @param isLate: whether they open their device only then.
    """
    # On C{ib0} this process hosts the subnet from now on, or belongs to it.
    own = "" if isLate else _own(device, source)
    result = Result(count)
    if kind == "cmid":
        print("ready", flush=True)
        server = sys.stdin.readline().strip()
        source = own or _own(device, source)
        result.begin = time.monotonic()
        for _ in range(count):
            Thread(target=_callCMID, args=[source, server, result], daemon=True).start()
        time.sleep(seconds + AFTER)
        result.tell()
        return
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import clientFromString

    reactor: Any = installed
    factory = protocol.Factory.forProtocol(lambda: Caller(result))  # type: ignore[arg-type]

    def begin() -> None:
        print("ready", flush=True)
        server = sys.stdin.readline().strip()
        reactor.callFromThread(connect, server)

    def connect(server: str) -> None:
        reactor.callLater(seconds + AFTER, result.tell)
        result.begin = time.monotonic()
        for _ in range(count):
            if kind == "rds":
                interface = "" if device.startswith("ib") else source
                try:
                    listenRDS(reactor, 0, Datagrams(server, result), interface, device=device)
                except CannotListenError as error:
                    result.add(f"failed: {error}")
            else:
                text = f"{kind}:{server}:{PORT}:bindAddress={source}:device={device}"
                connecting = clientFromString(reactor, text).connect(factory)
                connecting.addErrback(lambda failure: result.add(f"failed: {failure.value}"))

    run = Thread(target=begin, daemon=True).start
    if isLate:
        reactor.callWhenRunning(run)
    else:
        whenUp(reactor, device, source, lambda _: run())
    reactor.run()


def story(
    device: str,
    kind: str,
    seconds: float,
    connects: int,
    start: Any,
    hosts: str = "client",
    isLate: bool = False,
) -> dict[str, Any]:
    """
    Stop a server while clients connect.

    @param hosts: who hosts the subnet of C{ib0}: C{other} is a third process, which is stopped.
    @param isLate: whether clients open their device only then.
    @param start: starts this module with arguments and an environment, as a process with pipes.
    @return: C{ended}, how often connects ended how; C{seconds}, after which the last did; C{server}, how many
        connections the server has then.
    """
    if device.startswith("ib"):
        server, source = "10.9.0.2", "10.9.0.1"
        ends = [f"{device}=ib:{address}/24" for address in (server, source)]
    elif device.startswith("shm"):
        server = source = "127.0.0.1"
        ends = ["", ""]
    else:
        server, source = ownAddress(1), ownAddress(2)
        ends = [f"{device}={device.rstrip('0123456789')}:{address}" for address in (server, source)]
    first, second = ({**os.environ, "TWISTED_IB_DEVICES": each} for each in ends)
    common = ["--device", device, "--kind", kind, "--seconds", str(seconds), "--connects", str(connects)]
    common += ["--late"] if isLate else []
    begun: dict[str, Any] = {}
    said: dict[str, str] = {}
    # On C{ib0} the first process hosts the subnet.
    roles = {
        "client": ("client", "server"),
        "server": ("server", "client"),
        "other": ("host", "server", "client"),
    }
    for role in roles[hosts]:
        environment = first if role == "server" else second
        begun[role] = start([*common, "--role", role, "--addresses", server, source], environment)
        said[role] = begun[role].stdout.readline()
    client, listener, told = begun["client"], begun["server"], said["server"].split()
    assert (said["client"], told[:1]) == ("ready\n", ["listening"]), said
    away = begun.get("host", listener)
    stop(away.pid)
    client.stdin.write(f"{told[1]}\n")
    client.stdin.flush()
    time.sleep(seconds)
    away.send_signal(signal.SIGCONT)
    found: dict[str, Any] = json.loads(client.stdout.readline())
    # What has failed at the client, or has just been answered, the server learns of a little later.
    end = time.monotonic() + HANG_SECONDS
    while time.monotonic() < end:
        listener.stdin.write("\n")
        listener.stdin.flush()
        found["server"] = int(listener.stdout.readline())
        if isGood(kind, found):
            break
        time.sleep(0.1)
    return found


def isGood(kind: str, found: dict[str, Any]) -> bool:
    """
    @return: whether each connect worked, or failed with a reason, and the server has none but these.
    """
    ended = dict(found["ended"])
    echoed = ended.pop("echoed", 0)
    isToldWhy = all(how.startswith("failed: ") for how in ended)
    return isToldWhy and (kind == "rds" or found["server"] == echoed)


def outcomes(found: dict[str, Any]) -> tuple[int, int, int]:
    """
    @return: how many connects worked, how many failed with a reason, and how many did neither.
    """
    ended = Counter(found["ended"])
    echoed = ended.pop("echoed", 0)
    failed = sum(times for how, times in ended.items() if how.startswith("failed: "))
    return echoed, failed, ended.total() - failed


def tell(given: argparse.Namespace) -> dict[str, Any]:
    """
    Tell a story in a directory of its own, and end its processes.
    """
    processes: list[subprocess.Popen[str]] = []

    def start(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.soak.stopped", *arguments]
        pipe, environment = subprocess.PIPE, {**environment, "TWISTED_IB_RUN_DIR": run}
        processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment))
        return processes[-1]

    with tempfile.TemporaryDirectory() as directory:
        run = os.path.join(directory, "run")
        try:
            return story(
                given.device, given.kind, given.seconds, given.connects, start, given.hosts, given.late
            )
        finally:
            for process in processes:
                process.kill()
                process.wait()


def tellAll(given: argparse.Namespace) -> int:
    """
    Tell a story for each device, kind and length, each by a process with addresses of its own.

    @return: how many are not good.
    """

    def one(cell: tuple[str, str, float]) -> bool:
        device, kind, seconds = cell
        words = "--device", device, "--kind", kind, "--seconds", str(seconds)
        command = [sys.executable, "-m", "tests.soak.stopped", *words, "--connects", str(given.connects)]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        name = f"{device:<6} {kind:<4} {seconds:>4g} s"
        if not ran.stdout:
            print(name, "no result:", ran.stderr[-500:], flush=True)
            return False
        found = json.loads(ran.stdout)
        echoed, failed, other = outcomes(found)
        told = f"{echoed:>3} echoed, {failed:>3} failed with a reason, {other:>3} neither"
        why = f": {found}" if failed or ran.returncode else ""
        print(f"{name}: {told}; the last after {found['seconds']} s{why}", flush=True)
        return not ran.returncode

    devices, kinds = ([given.device] if given.device else DEVICES), ([given.kind] if given.kind else KINDS)
    lengths = [given.seconds] if given.seconds else sorted(LENGTHS, reverse=True)
    with ThreadPoolExecutor(given.beside) as pool:
        good = list(pool.map(one, [(d, k, s) for s, d, k in product(lengths, devices, kinds)]))
    print(f"{sum(good)} of {len(good)} stories are good")
    return len(good) - sum(good)


def main() -> int:
    """
    Run a story, or a process of it.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=DEVICES)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--connects", type=int, default=20)
    parser.add_argument("--hosts", default="client", choices=("client", "server", "other"))
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--beside", type=int, default=8, help="stories of --all at once")
    parser.add_argument("--role", choices=("server", "client", "host"))
    parser.add_argument("--addresses", nargs=2)
    given = parser.parse_args()
    if given.all:
        return min(tellAll(given), 1)
    given.device, given.kind = given.device or DEVICES[0], given.kind or KINDS[0]
    given.seconds = given.seconds or 20.0
    if given.role is not None:
        ibreactor.install()
        server, source = given.addresses
        if given.role == "host":
            _own(given.device, source)
            print("ready", flush=True)
            sys.stdin.read()
        elif given.role == "server":
            serve(given.device, given.kind, server)
        else:
            call(given.device, given.kind, source, given.connects, given.seconds, given.late)
        return 0
    found = tell(given)
    print(json.dumps(found))
    return not isGood(given.kind, found)


if __name__ == "__main__":
    sys.exit(main())
