"""
C{ib-demo ipoib}: ping, iperf3 and ssh between two networks without privileges, over C{ib0}, and what a
capture has of it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from twisted_ib.errors import WireError
from twisted_ib.hca.mad.attributes.administration import MCMemberRecord
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.lrh import LinkPacket
from twisted_ib.hca.wire.mad.mad import Mad
from twisted_ib.hca.wire.packet import Packet
from twisted_ib.ipoib.protocol.wire import ARP_HEADER, ENCAPSULATION_BYTES, ARPOperation, ARPPacket
from twisted_ib.settings import CAPTURE, RUN_DIR
from twisted_ib.tools.demo.children import Child, Children
from twisted_ib.tools.demo.report import Steps
from twisted_ib.tools.program import ProgramError, childProgram, printable, sentence, write

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


DEVICE = "ib0"
FIRST, SECOND = "10.9.0.1", "10.9.0.2"
SSH_PORT = 2222
#: Octets of the longest ping: an MTU of 65,520 without its headers.
LONG_PING = 65492
IPERF_SECONDS = 3
#: The longest that the demonstration may take.
TIMEOUT_SECONDS = 120.0
#: The longest line of a program that is shown, in characters.
LINE = 400
#: Lines about the capture.
LINES = 40

_READY = "hosts are up"
# pcapng: type and length of a block; an enhanced packet block's fields; an ERF record's header.
_BLOCK: Packed[tuple[int, int]] = struct.Struct("<II")
_PACKET, _PACKET_FIELDS, _ERF = 6, 28, 16
_SA, _SET = 3, 2
#: Of an MCMemberRecord: behind the headers of MADs, of RMPP and of subnet administration (IBTA vol. 1 15.2).
_MGID = slice(56, 72)
_ICRC = 4


def seen(octets: bytes) -> Iterator[str]:
    """
    @param octets: a capture of a device on a subnet.
    @return: a line for each ARP packet, and each request to join a multicast group, in it.
    """
    at = 0
    while at + _BLOCK.size <= len(octets):
        kind, size = _BLOCK.unpack_from(octets, at)
        if size < _PACKET_FIELDS or at + size > len(octets):
            # It was still written when its process ended.
            return
        if kind == _PACKET:
            (captured,) = struct.unpack_from("<I", octets, at + 20)
            start = at + _PACKET_FIELDS + _ERF
            try:
                line = _line(octets[start : at + _PACKET_FIELDS + captured])
            except WireError:
                line = None
            if line:
                yield line
        at += size


def _line(frame: bytes) -> str | None:
    local = LinkPacket.parse(frame)
    body = local.body + bytes(_ICRC)
    payload = bytes(Packet.parse(body, 0, len(body)).payload)
    ends = f"LID {local.source} to {local.destination}:"
    if payload[:ENCAPSULATION_BYTES] == ARP_HEADER:
        arp = ARPPacket.parse(payload, ENCAPSULATION_BYTES, len(payload))
        sender, target = IPv4Address(arp.sender), IPv4Address(arp.target)
        if arp.operation == ARPOperation.REPLY:
            return f"{ends} ARP {sender} is at {arp.senderHardware.hex()}"
        return f"{ends} ARP who has {target}? tell {sender}"
    if len(payload) == MAD_BYTES:
        mad = Mad.parse(payload, 0, MAD_BYTES)
        if (mad.managementClass, mad.method, mad.attribute) == (_SA, _SET, MCMemberRecord.ID):
            return f"{ends} join {IPv6Address(payload[_MGID])}"
    return None


class Shown(ProcessProtocol):
    """
    A program whose output is shown, line by line.

    @ivar ended: fires with its end, whatever that is.
    """

    def __init__(self) -> None:
        self._partial = b""
        self.ended: Deferred[object] = Deferred()

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """
        Show lines.
        """
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-LINE:]
        for line in lines:
            write(f"  {printable(line.decode('utf-8', 'replace'))[:LINE]}")

    def processEnded(self, reason: Failure) -> None:
        # Not the Failure itself, which would make the Deferred fail.
        self.ended.callback(reason.value)


class Demonstration:
    """
    One run.
    """

    def __init__(self, reactor: Any, directory: str, node: str, capture: str | None) -> None:
        """
        @param directory: an empty directory.
        @param node: of the TUN device.
        @param capture: the file of the capture, if it is to stay.
        """
        self._reactor, self._directory, self._node = reactor, directory, node
        # Its process's number is in its name.
        self._captures, self._capture = os.path.join(directory, "capture"), capture
        self._children = Children(reactor)
        # sshd and ssh as the user of the demonstration: root's sshd wants privileges that its namespace has
        # not.
        self._hasSSH = os.geteuid() != 0 and all(map(shutil.which, ("sshd", "ssh", "ssh-keygen")))
        self._hasIperf = shutil.which("iperf3") is not None

    async def run(self) -> int:
        """
        @return: the exit status: 0 if all programs succeeded.
        @raise ProgramError: it cannot be shown here.
        """
        if shutil.which("ping") is None:
            raise ProgramError("ping is not installed (Debian: iputils-ping)")
        # A subnet of its own, in which both are.
        os.environ[RUN_DIR] = os.path.join(self._directory, "run")
        os.mkdir(os.environ[RUN_DIR], 0o700)
        os.mkdir(self._captures)
        server = Child("the first host", _READY, 1)
        command = self._host(FIRST, self._serving())
        with Steps(self._reactor).waiting("Waiting for the first host"):
            await self._children.start(server, command)
        # A capture of streams would show little more, and makes them several times as slow.
        os.environ[CAPTURE] = os.path.join(self._captures, "ipoib.pcapng")
        status = await self._show(self._host(SECOND, self._pings()))
        del os.environ[CAPTURE]
        self._tell()
        streams = self._streams()
        if not status and streams:
            status = await self._show(self._host(SECOND, streams))
        write("")
        write("Try next, in two terminals:")
        write(f"  ib-ipoib run {DEVICE} {FIRST}/24 -- bash")
        write(f"  ib-ipoib run {DEVICE} {SECOND}/24 -- bash")
        return status

    def _host(self, address: str, script: str) -> list[str]:
        arguments = ["run", DEVICE, f"{address}/24", f"--tun={self._node}", "--", "sh", "-c", script]
        write(f"Starting: ib-ipoib run {DEVICE} {address}/24 -- sh")
        return childProgram("from twisted_ib.tools.ipoib import main; sys.exit(main())", arguments)

    def _serving(self) -> str:
        servers = ["sleep 3600"]
        if self._hasIperf:
            servers.append("iperf3 --server > /dev/null")
        prepare = ""
        if self._hasSSH:
            place = shlex.quote(self._directory)
            prepare = (
                f"for each in host id; do ssh-keygen -q -t ed25519 -N '' -f {place}/$each; done;"
                f" cp {place}/id.pub {place}/authorized_keys; "
            )
            servers.append(
                f"$(command -v sshd) -D -f /dev/null -p {SSH_PORT} -h {place}/host -o PidFile=none"
                f" -o UsePAM=no -o StrictModes=no -o AuthorizedKeysFile={place}/authorized_keys 2> /dev/null"
            )
        started = " ".join(f'{each} & p="$p $!";' for each in servers)
        return f"{prepare}{started} trap 'kill $p' TERM; echo {_READY}; wait"

    def _pings(self) -> str:
        return f"set -ex; ping -c 3 {FIRST}; ping -c 3 -i 0.2 -s {LONG_PING} {FIRST}"

    def _streams(self) -> str:
        steps = []
        if self._hasIperf:
            steps.append(f"iperf3 -c {FIRST} -t {IPERF_SECONDS}")
        if self._hasSSH:
            steps.append(
                f"ssh -q -i {shlex.quote(self._directory)}/id -o StrictHostKeyChecking=no"
                f" -o UserKnownHostsFile=/dev/null -p {SSH_PORT} {FIRST} 'echo logged in: $SSH_CONNECTION'"
            )
        return "; ".join(["set -ex", *steps]) if steps else ""

    async def _show(self, command: list[str]) -> int:
        shown = Shown()
        process = self._reactor.spawnProcess(shown, command[0], command, env=dict(os.environ))
        trigger = self._reactor.addSystemEventTrigger("before", "shutdown", self._stop, process, shown)
        guard = self._reactor.callLater(TIMEOUT_SECONDS, self._stop, process, shown)
        end = await shown.ended
        if not guard.active():
            raise ProgramError(f"not done after {TIMEOUT_SECONDS:.0f} seconds")
        guard.cancel()
        self._reactor.removeSystemEventTrigger(trigger)
        if isinstance(end, ProcessDone):
            return 0
        write(f"The second host: {sentence(end)}")
        return 1

    def _stop(self, process: Any, shown: Shown) -> Deferred[object]:
        process.signalProcess("TERM")
        return shown.ended

    def _tell(self) -> None:
        names = os.listdir(self._captures)
        if not names:
            # The second host had no network, and has said why.
            return
        file = os.path.join(self._captures, names[0])
        with open(file, "rb") as capture:
            lines = list(seen(capture.read()))
        write("")
        write("The capture of the second host has these joins and ARP packets, among all others:")
        for line in lines[:LINES]:
            write(f"  {line}")
        if self._capture is not None:
            shutil.copyfile(file, self._capture)
            write(f"Wireshark shows all of it: {self._capture}")
