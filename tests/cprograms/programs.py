"""
The programs: their command lines as server and as client, and what they say when all was right.

C{python -m tests.cprograms.programs} installs all that are tried here, runs them, and prints the table of
docs/c-programs.md (L{tests.cprograms.table}).
"""

from __future__ import annotations

import sys

from attrs import evolve, frozen

#: Devices that they run on: two processes of a host over shared memory, and over RoCE with an address each.
DEVICES = ("shm0", "roce0")


@frozen
class Program:
    """
    A program.  In its words C{{device}} is the device, C{{gid}} the index of its address in the table of
    GIDs, C{{port}} a free port, C{{server}} and C{{client}} the addresses of both sides, C{{group}} that of
    a multicast group.

    @ivar name: of the test.
    @ivar server: the server's command line.
    @ivar client: the client's.
    @ivar package: Debian's package.
    @ivar said: what the client has to print; the exit statuses are 0 in any case.
    @ivar ready: what the server prints when the client may start; C{""} if it listens.
    @ivar isOverTCP: whether the client connects to the server by TCP first.
    @ivar unsaid: what the client prints where something went wrong, with status 0.
    @ivar goesOn: whether the server waits for more clients, instead of ending.
    @ivar files: the server's, in its current directory: their names and texts.
    """

    name: str
    server: str
    client: str
    package: str
    said: str
    ready: str = ""
    isOverTCP: bool = False
    unsaid: str = "\0"
    goesOn: bool = False
    files: tuple[tuple[str, str], ...] = ()


def _pingpong(kind: str, options: str, name: str = "") -> Program:
    command = f"ibv_{kind}_pingpong -d {{device}} -g {{gid}} -p {{port}} {options}"
    return Program(
        name or kind,
        command,
        f"{command} {{server}}",
        "ibverbs-utils",
        "iters in",
        isOverTCP=True,
    )


def _cm(name: str, server: str, client: str, said: str, ready: str = "") -> Program:
    return Program(name, server, client, "rdmacm-utils", said, ready)


def _perftest(operation: str, figure: str, options: str) -> Program:
    name = f"ib_{operation}_{figure}"
    command = f"{name} -d {{device}} -x {{gid}} -p {{port}} -F {options}"
    return Program(name, command, f"{command} {{server}}", "perftest", "#bytes", isOverTCP=True)


#: -c: the received data is checked.
PINGPONGS = (
    _pingpong("rc", "-c -n 100 -s 3000"),
    _pingpong("rc", "-c -n 100 -s 3000 -e", "rc_events"),
    _pingpong("uc", "-c -n 100 -s 3000"),
    _pingpong("uc", "-c -n 100 -s 3000 -e", "uc_events"),
    _pingpong("ud", "-c -n 100 -s 1000"),
    _pingpong("ud", "-c -n 100 -s 1000 -e", "ud_events"),
    _pingpong("srq", "-c -n 20 -q 4 -s 1000"),
    _pingpong("srq", "-c -n 20 -q 4 -s 1000 -e", "srq_events"),
)

#: A hundred connects at once.
CMTIME = Program(
    "cmtime",
    "cmtime -b {server} -p {port} -c 100",
    "cmtime -s {server} -b {client} -p {port} -c 100",
    "rdmacm-utils",
    "destroy      :",
    unsaid="event:",
    goesOn=True,
)

#: Of the communication manager.
CM = (
    _cm(
        "rping",
        "rping -s -a {server} -p {port} -C 20 -S 1000 -V",
        "rping -c -a {server} -I {client} -p {port} -C 20 -S 1000 -V -v",
        "rdma-ping-19:",
    ),
    _cm(
        "ucmatose",
        "ucmatose -b {server} -p {port} -c 3 -C 10 -S 1000",
        "ucmatose -s {server} -b {client} -p {port} -c 3 -C 10 -S 1000",
        "return status 0",
    ),
    # As many connects at once, of one address.
    _cm(
        "ucmatose_1000",
        "ucmatose -b {server} -p {port} -c 1000 -C 1 -S 100",
        "ucmatose -s {server} -b {client} -p {port} -c 1000 -C 1 -S 100",
        "return status 0",
    ),
    CMTIME,
    _cm(
        "udaddy",
        "udaddy -b {server} -c 3 -C 10 -S 1000",
        "udaddy -s {server} -b {client} -c 3 -C 10 -S 1000",
        "return status 0",
    ),
    _cm(
        "mckey",
        "mckey -m {group} -b {server} -C 10 -S 1000",
        "mckey -m {group} -b {client} -s -C 10 -S 1000",
        "return status 0",
        "joined dgid",
    ),
    # Of an address that is a GID: AF_IB.
    _cm(
        "mckey_unmapped",
        "mckey -M ::ffff:{group} -b {server} -C 10 -S 1000",
        "mckey -M ::ffff:{group} -b {client} -s -C 10 -S 1000",
        "return status 0",
        "joined dgid",
    ),
    _cm(
        "rdma_client",
        "rdma_server -s {server} -p {port}",
        "rdma_client -s {server} -p {port}",
        "rdma_client: end 0",
    ),
    _cm(
        "rdma_xclient",
        "rdma_xserver -p {port}",
        "rdma_xclient -s {server} -p {port}",
        "rdma_xclient: end 0",
    ),
    _cm(
        "rstream",
        "rstream -b {server} -p {port} -S 4096 -C 20 -I 2 -T v",
        "rstream -s {server} -b {client} -p {port} -S 4096 -C 20 -I 2 -T v",
        "4k",
    ),
    # Into memory that the peer has mapped, and looks at.
    _cm(
        "riostream",
        "riostream -b {server} -p {port} -S 4096 -C 20 -I 2 -T v",
        "riostream -s {server} -p {port} -S 4096 -C 20 -I 2 -T v",
        "4k",
    ),
)

#: With its defaults.
PERFTEST = tuple(
    _perftest(operation, figure, f"-n 100 {options}")
    for operation, options in (("send", "-s 64"), ("write", "-s 64"), ("read", "-s 64"), ("atomic", ""))
    for figure in ("lat", "bw")
)


def _qperf(test: str) -> Program:
    server = "qperf -lp {port}"
    # By default it waits 5 s for its server, which a busy machine may need.
    client = f"{server} {{server}} -cm 1 -to 60 -t 1 {test}"
    return Program(f"qperf_{test}", server, client, "qperf", "  =  ", isOverTCP=True, goesOn=True)


#: Its tests of connections that the communication manager makes.
QPERF = tuple(
    _qperf(f"{prefix}{test}")
    for prefix, tests in (
        ("rc_", ("bi_bw", "bw", "lat", "compare_swap_mr", "fetch_add_mr")),
        ("rc_rdma_", ("read_bw", "read_lat", "write_bw", "write_lat", "write_poll_lat")),
        ("ver_rc_", ("compare_swap", "fetch_add")),
    )
    for test in tests
)

_SOCKETS = "env LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
#: A program of sockets, whose calls are led to rsockets.
IPERF = Program(
    "iperf3",
    f"{_SOCKETS} iperf3 -s -1 -B {{server}} -p {{port}}",
    f"{_SOCKETS} iperf3 -c {{server}} -B {{client}} -p {{port}} -n 1M",
    "iperf3",
    "iperf Done.",
)
#: Servers that wait by epoll(7), one of them by EPOLLET, and send a file by sendfile(2).
SERVERS = (
    Program(
        "redis",
        f"{_SOCKETS} redis-server --bind {{server}} --port {{port}} --protected-mode no",
        f"{_SOCKETS} redis-cli -h {{server}} -p {{port}} eval return(string.rep('ab',50000)..'end') 0",
        "redis-server",
        "ababend",
        goesOn=True,
    ),
    Program(
        "nginx",
        f"{_SOCKETS} nginx -p . -c nginx.conf",
        f"{_SOCKETS} curl -s http://{{server}}:{{port}}/page",
        "nginx",
        "xxxxend",
        goesOn=True,
        files=(
            ("page", 500_000 * "x" + "end"),
            (
                "nginx.conf",
                "daemon off; master_process off; pid nginx.pid; error_log stderr; events {{}}\n"
                "http {{ sendfile on; server {{ listen {server}:{port}; root .; access_log off; }} }}\n",
            ),
        ),
    ),
)


def _fio(verb: str) -> Program:
    # A client that sends is told by no retry that its server has no receive: that one has one for each block
    # of a client's, as it may wait for a processor meanwhile.
    command = "fio --name=job --ioengine=rdma --hostname={server} --port={port} --size=4m --minimal"
    server, client = f"{command} --rw=read --iodepth=1024", f"{command} --rw=write --verb={verb}"
    return Program(f"fio_{verb}", server, client, "fio", ";fio-")


#: Blocks of 4 KiB into the server's memory, out of it, and in messages.
FIO = tuple(_fio(verb) for verb in ("write", "read", "send"))

#: All of them.
PROGRAMS = (*PINGPONGS, *CM, *PERFTEST, *QPERF, IPERF, *SERVERS, *FIO)
#: What of them wants datagrams or groups, which iWARP has none of, and says so.
_DATAGRAMS = ("udaddy", "mckey", "mckey_unmapped")
#: Of these one, whose client does not come so far as to need its server.
REFUSED_IWARP = tuple(evolve(each, ready="starting server") for each in CM if each.name == "udaddy")
#: What runs over it: connections by the communication manager.
IWARP = (*(each for each in CM if each.name not in _DATAGRAMS), IPERF, *SERVERS)

if __name__ == "__main__":
    from tests.cprograms.table import main

    sys.exit(main())
