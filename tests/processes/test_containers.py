"""
Containers of one pod, without a program that makes containers: processes in namespaces of their own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS, waitUntil

ROOT = Path(__file__).resolve().parents[2]

#: All but the network is a container's own; a user namespace lets anyone make the others.
UNSHARE = [
    "unshare",
    "--user",
    "--map-current-user",
    "--mount",
    "--ipc",
    "--uts",
    "--cgroup",
    "--pid",
    "--fork",
]
#: After this there is no capability, and none can be had again.
DROP = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
PROGRAMS = {"twistd": "twisted.scripts.twistd", "ib-get": "twisted_ib.tools.get"}


def commandOf(service: str) -> list[str]:
    """
    @return: The command of a service of C{compose.yaml}.
    """
    text = (ROOT / "compose.yaml").read_text()
    found = re.search(rf"^  {service}:\n(?:    .*\n)*?    command: (.*)$", text, re.MULTILINE)
    assert found is not None, service
    return shlex.split(found[1])


class PodTests(SynchronousTestCase):
    """
    C{compose.yaml}, the server and its client.
    """

    def setUp(self) -> None:
        """
        Find out whether there may be namespaces.
        """
        for program in ("unshare", "setpriv"):
            if shutil.which(program) is None:
                raise SkipTest(f"{program} of util-linux is not installed")
        tried = subprocess.run(
            [*UNSHARE, *DROP, "true"], capture_output=True, text=True, timeout=HANG_SECONDS
        )
        if tried.returncode:
            raise SkipTest(f"there may be no namespaces here: {tried.stderr.strip()}")
        ownRunDirectory(self)
        self.directory = Path(self.mktemp()).resolve()
        self.directory.mkdir()

    def contained(self, command: list[str]) -> subprocess.Popen[str]:
        """
        Start a command in a container.
        """
        name, *arguments = command
        module = PROGRAMS[name]
        main = "run" if name == "twistd" else "main"
        program = f"import sys; from {module} import {main}; sys.argv[0] = {name!r}; sys.exit({main}())"
        process = subprocess.Popen(
            [*UNSHARE, "--kill-child", *DROP, sys.executable, "-c", program, *arguments],
            cwd=self.directory,
            env=dict(os.environ, PYTHONPATH=str(ROOT), HOME=str(self.directory)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_pod(self) -> None:
        """
        They share the network namespace and the run directory, and so memory.
        """
        served = self.directory / "served"
        served.mkdir()
        content = bytes(range(256)) * 4096
        (served / "file").write_bytes(content)
        *server, path = commandOf("server")
        self.assertEqual(path, "--path=/usr/share")
        # 8080 may be another program's on this host: the server takes a free port, which its entry tells.
        self.contained([*(word.replace("8080", "0") for word in server), f"--path={served}"])
        run = Path(os.environ["TWISTED_IB_RUN_DIR"])
        waitUntil(lambda: [*run.glob("svc-*")])
        [entry] = run.glob("svc-*")
        port = str(int(entry.name.split("-")[1], 16) & 0xFFFF)
        name, url, *options, _, file = [word.replace("8080", port) for word in commandOf("client")]
        self.assertEqual(file, "/tmp/listing.html")
        getting = self.contained([name, url + "file", *options, "-o", str(self.directory / "fetched")])
        said, _ = getting.communicate(timeout=HANG_SECONDS)
        self.assertEqual(getting.returncode, 0, said)
        self.assertEqual((self.directory / "fetched").read_bytes(), content)
