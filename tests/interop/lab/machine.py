"""
One guest: a Linux kernel in QEMU, and commands that run in it.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.interop.lab.images import LIBRARIES, Images
from tests.interop.lab.network import IPV4, IPV6, LARGEST, Network
from tests.support.waiting import HANG_SECONDS

#: How long a guest may take to boot, seconds; it takes ten, and more where others want the processors.
BOOT_SECONDS = 4 * HANG_SECONDS
#: How long a command may take if nothing else is said, seconds.
COMMAND_SECONDS = HANG_SECONDS
#: How much longer than a command its answer may take.
ANSWER_SECONDS = HANG_SECONDS / 2
#: How long QEMU may take to be there, seconds.
START_SECONDS = HANG_SECONDS / 2
#: How much is shown of what a kernel has written last, octets.
WORDS = 1000
#: The memory of a guest, and of QEMU for translated code, MiB.
MEMORY, TRANSLATED = 512, 96
_KERNEL = (
    "console=ttyS0 loglevel=5 panic=-1 tsc=unstable random.trust_cpu=on mitigations=off "
    "interop.ip={ipv4}/24 interop.ip6={ipv6}/64 interop.mtu={mtu}"
)
#: The cards of each guest; ports of the second ones have numbers that are so much larger.
CARDS, PORTS = 2, 100
#: No offloads: what a capture shows is what a wire would carry.
_CARD = (
    "-netdev tap,id=n{card},ifname={port},script=no,downscript=no,vnet_hdr=off "
    "-device virtio-net-pci,netdev=n{card},mac=52:54:00:77:{card:02x}:{last:02x},romfile=,host_mtu={mtu},"
    "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
)


class Lines:
    """
    Talks in lines of JSON with what is behind a socket in the file system.

    @ivar silence: why it is not asked any more; L{None} while it answers.
    """

    silence: str | None = None

    def __init__(self, path: Path) -> None:
        """
        @raise OSError: nobody listens there.
        """
        self._pending = b""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))
        except OSError:
            self.close()
            raise

    def say(self, value: dict[str, Any]) -> None:
        """
        Write one.

        @raise OSError: nobody reads it.
        """
        with self._heard():
            self._socket.sendall(b"\n" + json.dumps(value).encode() + b"\n")

    def hear(self, seconds: float) -> dict[str, Any]:
        """
        @return: the next line that is one.
        @raise TimeoutError: none comes.
        @raise ConnectionError: none will.
        """
        deadline = time.monotonic() + seconds
        while True:
            line, found, rest = self._pending.partition(b"\n")
            if not found:
                with self._heard():
                    self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                    data = self._socket.recv(65536)
                    if not data:
                        raise ConnectionError("it has ended")
                self._pending += data
                continue
            self._pending = rest
            with suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    return value

    @contextmanager
    def _heard(self) -> Iterator[None]:
        # Who has once not answered is not asked again: each question would take its whole time.
        if self.silence is not None:
            raise ConnectionError(self.silence)
        try:
            yield
        except OSError as error:
            self.silence = f"the guest does not answer ({error})"
            raise

    def close(self) -> None:
        """
        Be done.
        """
        self._socket.close()


@frozen
class Ended:
    """
    How a command ended.
    """

    status: int
    output: str
    errors: str

    @property
    def text(self) -> str:
        """
        All of it, for who has to find out why.
        """
        return f"status {self.status}\n{self.output}{self.errors}"


class Machine:
    """
    A guest, whose second card is down, and has no address.

    @ivar ipv4: its address.
    @ivar ipv6: its other address.
    """

    def __init__(self, images: Images, network: Network, directory: Path, number: int) -> None:
        """
        Boot it.

        @param directory: where its sockets and the kernel's messages are; the name is short.
        @param number: from 1 on.
        @raise TimeoutError: it does not come up.
        """
        self.ipv4, self.ipv6 = f"{IPV4}{number + 1}", f"{IPV6}{number + 1}"
        self.console = directory / f"console{number}"
        self._lines: list[Lines] = []
        self._numbers = count()
        self._captures = count()
        ports = [network.port(number + PORTS * card) for card in range(CARDS)]
        cards = " ".join(
            _CARD.format(card=card, port=port, last=number + 1, mtu=LARGEST)
            for card, port in enumerate(ports)
        )
        kernel = _KERNEL.format(ipv4=self.ipv4, ipv6=self.ipv6, mtu=LARGEST)
        commands, monitor = directory / f"commands{number}", directory / f"qmp{number}"
        share = images.host / "usr/share"
        options = f"""
            -L {share}/qemu -L {share}/seabios -accel tcg,thread=multi,tb-size={TRANSLATED} -cpu max
            -machine q35 -m {MEMORY} -smp 1 -nodefaults -no-user-config -display none -no-reboot
            -kernel {images.kernel} -initrd {images.initial} -append '{kernel}' -serial file:{self.console}
            -drive file={images.root},if=none,id=d0,format=raw,snapshot=on
            -device virtio-blk-pci,drive=d0 -device virtio-rng-pci
            {cards}
            -device virtio-serial-pci -chardev socket,id=c0,path={commands},server=on,wait=off
            -device virtserialport,chardev=c0,name=interop.0,nr=1
            -qmp unix:{monitor},server=on,wait=off
        """
        # It ends when this process does, however that happens.
        tied = ["setpriv", "--pdeathsig", "KILL"]
        command = [*tied, *images.program("qemu-system-x86_64"), *shlex.split(options)]
        self._log = directory / f"qemu{number}"
        modules = str(images.host / LIBRARIES / "qemu")
        environment = dict(os.environ, TMPDIR=str(directory), QEMU_MODULE_DIR=modules)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                network.within(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        try:
            self._commands, self._monitor = self._connect(commands), self._connect(monitor)
            self._ask({"execute": "qmp_capabilities"})
            self.run("true", BOOT_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def silence(self) -> str | None:
        """
        Why it is not asked any more; L{None} while it answers.
        """
        return next((each.silence for each in self._lines if each.silence is not None), None)

    @property
    def words(self) -> str:
        """
        The end of what its kernel has written to its console.
        """
        return self.console.read_bytes()[-WORDS:].decode("utf-8", "replace")

    def _connect(self, path: Path) -> Lines:
        """
        @return: the way to QEMU, or through it.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._lines.append(Lines(path))
                return self._lines[-1]
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise TimeoutError(f"QEMU does not start: {self._log.read_text()}") from None
                time.sleep(0.05)

    def _ask(self, request: dict[str, Any]) -> None:
        """
        Ask QEMU itself.
        """
        self._monitor.say(request)
        while True:
            answer = self._monitor.hear(ANSWER_SECONDS)
            if "error" in answer:
                raise RuntimeError(f"{request}: {answer['error']}")
            if "return" in answer:
                return

    def _request(self, seconds: float, **request: Any) -> dict[str, Any]:
        """
        @return: the guest's answer.
        @raise TimeoutError: none comes: the kernel is busy, or stands still.
        """
        number = next(self._numbers)
        self._commands.say({"id": number, "seconds": seconds, **request})
        deadline = time.monotonic() + seconds + ANSWER_SECONDS
        while True:
            answer = self._commands.hear(deadline - time.monotonic())
            if answer["id"] == number:
                return answer

    def run(self, command: str, seconds: float = COMMAND_SECONDS) -> Ended:
        """
        Run a command to its end.

        @param seconds: after which it is killed.
        """
        return _ended(self._request(seconds, command=command))

    def must(self, command: str, seconds: float = COMMAND_SECONDS) -> str:
        """
        @return: what a command writes, which has to succeed.
        """
        ended = self.run(command, seconds)
        assert ended.status == 0, f"{command}: {ended.text}"
        return ended.output

    def start(self, command: str) -> int:
        """
        @return: the number of a process that runs a command, and that leads a group of its own.
        """
        return int(self._request(0, command=command, stay=True)["status"])

    def finish(self, process: int, seconds: float = COMMAND_SECONDS) -> Ended:
        """
        Wait for a process that was started.

        @param seconds: after which it is killed.
        """
        return _ended(self._request(seconds, process=process))

    def kill(self, process: int) -> None:
        """
        Kill a process that was started, with all its children.
        """
        self.run(f"kill -9 -{process}")

    def capture(self, file: Path) -> str:
        """
        Write all frames of its card into a file from now on.

        @return: what L{release} takes.
        """
        name = f"capture{next(self._captures)}"
        arguments = {"qom-type": "filter-dump", "id": name, "netdev": "n0", "file": str(file)}
        self._ask({"execute": "object-add", "arguments": arguments})
        return name

    def release(self, name: str) -> None:
        """
        The file is whole.
        """
        self._ask({"execute": "object-del", "arguments": {"id": name}})

    def close(self) -> None:
        """
        Pull its plug.
        """
        self._process.kill()
        self._process.wait()
        for each in self._lines:
            each.close()


def _ended(answer: dict[str, Any]) -> Ended:
    """
    @return: the answer about a process that has ended.
    """
    return Ended(answer["status"], answer["output"], answer["errors"])
