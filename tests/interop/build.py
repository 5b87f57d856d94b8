"""
Fetch Debian's packages and build the guests' images of them, where L{tests.interop} looks for them.

    python -m tests.interop.build [--again]

The exit status is 77, and the last line the reason, where that cannot be done.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time

from tests.interop.lab.images import Images, cacheDirectory
from tests.interop.lab.lab import unfit

#: Programs that must be installed.
PROGRAMS = ("apt-get", "apt-cache", "dpkg-deb", "tar", "du", "mke2fs")
#: The exit status if it cannot be done here.
SKIPPED = 77


def main() -> int:
    """
    Do it.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.interop.build")
    parser.add_argument("--again", action="store_true", help="also if they are there")
    again = parser.parse_args().again
    images = Images(cacheDirectory())
    if images.release and not again:
        print(f"Linux {images.release} is in {images.directory}")
        return 0
    reason = unfit()
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if reason is None and missing:
        reason = f"there is no {' and no '.join(missing)} here"
    if reason is not None:
        print(reason)
        return SKIPPED
    began = time.monotonic()
    images.directory.mkdir(parents=True, exist_ok=True)
    try:
        images.build()
    except subprocess.CalledProcessError as error:
        if error.cmd[0] not in ("apt-get", "apt-cache"):
            raise
        print(f"Debian's packages cannot be had: {error}")
        return SKIPPED
    print(f"Linux {images.release} is in {images.directory}, after {time.monotonic() - began:.0f} s")
    if images.noSIW is not None:
        print(images.noSIW)
    return 0


if __name__ == "__main__":
    sys.exit(main())
