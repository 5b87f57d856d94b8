"""
The container of L{tests.cprograms.installed.fresh}: what is not there, and what the kernel refuses.
"""

from __future__ import annotations

import subprocess

from twisted.trial.unittest import SynchronousTestCase

from tests.cprograms.installed import fresh
from tests.support.waiting import HANG_SECONDS
from twisted_ib.tools.run.hosts import refusal

#: Says what there is of what builds libraries, and what may be done, by names; and the process's rights.
_LOOK = """
for name in gcc cc x86_64-linux-gnu-gcc; do
    $name --version >/dev/null 2>&1 && echo $name
done
for path in /usr/include/stdio.h "$1"/Python.h /dev/infiniband/uverbs0; do
    [ -e "$path" ] && echo $path
done
unshare --user true 2>&1 && echo unshare
[ -w /sys/kernel ] && echo sysfs
sed -n 's/^\\(CapEff\\|CapBnd\\|NoNewPrivs\\|Seccomp\\):\\t/\\1 /p' /proc/self/status
"""


class ContainerTests(SynchronousTestCase):
    """
    A shell in it.
    """

    def test_nothing(self) -> None:
        """
        There is neither a compiler nor a header, a device or a right, and the kernel refuses what Docker's
        containers are refused.
        """
        reason = refusal()
        if reason:
            self.skipTest(f"there may be no namespaces here: {reason}")
        try:
            interpreter = fresh.reachable()
        except SystemExit as error:
            self.skipTest(str(error))
        words = fresh.filtered(interpreter, ["sh", "-c", _LOOK, "sh", fresh.headers(interpreter)])
        look = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=HANG_SECONDS)
        self.assertEqual(look.stderr, "")
        self.assertEqual(
            look.stdout.splitlines(),
            [
                "unshare: unshare failed: Operation not permitted",
                "CapEff 0000000000000000",
                "CapBnd 0000000000000000",
                "NoNewPrivs 1",
                "Seccomp 2",
            ],
        )
