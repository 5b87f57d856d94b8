"""
Runs commands in a guest: requests and answers are lines of JSON, over a virtual serial port.

C{id, command, seconds} is answered, at the command's end, with C{id, status, output, errors}; with C{stay} at
once, the status being the process's number.  C{id, process, seconds} waits for that one; if the time runs out
it is killed with all its children, and the status is 124.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

jobs: dict[int, tuple[subprocess.Popen[bytes], Path, Path]] = {}


def start(command: str) -> int:
    """
    @return: the number of a process that runs a command line.
    """
    output, errors = Path(f"/tmp/{len(jobs)}.output"), Path(f"/tmp/{len(jobs)}.errors")
    with output.open("wb") as first, errors.open("wb") as second:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=first,
            stderr=second,
            cwd="/tmp",
            start_new_session=True,
        )
    jobs[process.pid] = process, output, errors
    return process.pid


def finish(number: int, seconds: float) -> dict[str, Any]:
    """
    @return: how a process ended.
    """
    process, output, errors = jobs[number]
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(number, signal.SIGKILL)
        process.wait()
        status = 124
    written = [each.read_bytes().decode("utf-8", "replace") for each in (output, errors)]
    return {"status": status if status >= 0 else 128 - status, "output": written[0], "errors": written[1]}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """
    Do what is asked.
    """
    if "process" in request:
        return finish(request["process"], request["seconds"])
    number = start(request["command"])
    return {"status": number} if request.get("stay") else finish(number, request["seconds"])


def serve(device: str) -> None:
    """
    Serve one port.
    """
    port = os.open(device, os.O_RDWR)
    pending = b""
    while True:
        try:
            data = os.read(port, 65536)
        except OSError:
            data = b""
        if not data:  # Nobody is at the other end.
            time.sleep(0.05)
            continue
        *lines, pending = (pending + data).split(b"\n")
        for line in filter(bytes.strip, lines):
            identity = None
            try:
                request = json.loads(line)
                identity = request["id"]
                result = answer(request)
            except Exception as error:
                result = {"status": 125, "output": "", "errors": repr(error)}
            rest = json.dumps({"id": identity, **result}).encode() + b"\n"
            while rest:
                rest = rest[os.write(port, rest) :]


def main() -> None:
    """
    Serve the port that is meant for it.
    """
    for name in sorted(Path("/sys/class/virtio-ports").glob("*/name")):
        if name.read_text().startswith("interop."):
            serve(f"/dev/{name.parent.name}")


if __name__ == "__main__":
    main()
