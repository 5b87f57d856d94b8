"""
Two network namespaces with a wire between them: some programs leave the loopback interface out, as libfabric.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.cprograms.lab import Here

_ADDRESSES = ("10.77.0.1", "10.77.0.2")


def lackingNamespaces() -> str | None:
    """
    @return: why there are none here.
    """
    if os.geteuid():
        return "needs root"
    return None if shutil.which("ip") else "there is no ip here"


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True)


@contextmanager
def apart(device: str) -> Iterator[tuple[Here, Here]]:
    """
    @return: a server's side and a client's, each with a host's network of its own.
    """
    names = [f"tib{os.getpid()}{end}" for end in "ab"]
    with ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
        one, other = names
        _ip("link", "add", "wire", "netns", one, "type", "veth", "peer", "name", "wire", "netns", other)
        for name, address in zip(names, _ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            for interface in ("lo", "wire"):
                _ip("-n", name, "link", "set", interface, "up")
        server, client = (
            Here(device, address, ("ip", "netns", "exec", name))
            for name, address in zip(names, _ADDRESSES, strict=True)
        )
        yield server, client


__all__ = ["apart", "lackingNamespaces"]
