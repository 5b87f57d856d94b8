"""
A user's program passes C{mypy --strict}, with the plug-in that Twisted's interfaces need (mypy-zope): the
blocks of README, joined.  It runs as C{python -m tests.gates.readme}.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

README = Path(__file__).resolve().parents[2] / "README.md"
_CONFIGURATION = "[mypy]\nstrict = True\nplugins = mypy_zope:plugin\n"


def program(text: str) -> str:
    """
    @return: The Python programs of a page, one below the other.
    """
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def main() -> int:
    """
    @return: The exit status: 0 if there are programs, and mypy has nothing against them.
    """
    blocks = program(README.read_text())
    if not blocks or "type: ignore" in blocks:
        print("README has no program, or one that hides something from mypy")
        return 1
    with TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(blocks)
        Path(folder, "mypy.ini").write_text(_CONFIGURATION)
        # There the package is one that is installed, as users have it, and no source to be checked.
        return subprocess.run([sys.executable, "-m", "mypy", "program.py"], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
