"""
A user's programs pass C{mypy --strict}, with the plug-in that Twisted's interfaces need (mypy-zope): the
blocks of README, joined, and one that asks for the types of sockets.  README's pass pyright as well, which
has no such plug-in.  It runs as C{python -m tests.gates.readme}.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

README = Path(__file__).resolve().parents[2] / "README.md"
#: The names of L{twisted_ib.socket}, C{select} and C{selectors} have the types that a reader expects.
SOCKETS = """
from socket import AddressFamily

from typing_extensions import assert_type

from twisted_ib import select, selectors, socket

with socket.create_server(("127.0.0.1", 0), family=socket.AF_INET) as listener:
    assert_type(listener, socket.socket)
    connection = socket.create_connection(("127.0.0.1", 7000), timeout=1.0)
    assert_type(connection.recv(65536), bytes)
    assert_type(connection.send(b"request"), int)
    connection.useTCP()
    family: AddressFamily = socket.AF_INET
    assert_type(socket.gethostname(), str)
    assert_type(socket.socket(family, socket.SOCK_STREAM).fileno(), int)
    assert_type(socket.socket(socket.AF_IB).sdp is None, bool)
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
try:
    connection.recv("many")  # type: ignore[arg-type]
except socket.timeout:
    pass
"""
_CONFIGURATION = "[mypy]\nstrict = True\nplugins = mypy_zope:plugin\n"


def program(text: str) -> str:
    """
    @return: The Python programs of a page, one below the other.
    """
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def main() -> int:
    """
    @return: The exit status: 0 if there are programs, and neither has anything against them.
    """
    blocks = program(README.read_text())
    if not blocks or "type: ignore" in blocks:
        print("README has no program, or one that hides something")
        return 1
    with TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(blocks)
        Path(folder, "mypy.ini").write_text(_CONFIGURATION)
        Path(folder, "sockets.py").write_text(SOCKETS)
        # There the package is one that is installed, as users have it, and no source to be checked.
        python = sys.executable
        commands = (
            [python, "-m", "mypy", "program.py", "sockets.py"],
            [python, "-m", "pyright", "--pythonpath", python, "program.py"],
        )
        return max([subprocess.run(each, cwd=folder).returncode for each in commands])


if __name__ == "__main__":
    sys.exit(main())
