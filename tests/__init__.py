"""Tests of twisted_ib; run them with trial."""

import gc
import os
import signal
import sys

from tests.support import collectDescriptors

# A shell's background jobs ignore it (POSIX, Shell Command Language, 2.11), and so would all processes that
# the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of processes are started: without byte code each would compile all modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Hypothesis keeps there what it has read of all modules, and its table of characters; each process of
# trial -j would make that anew, in a folder of its own.
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(os.path.dirname(__path__[0]), ".hypothesis")
)


class _Frozen:
    """
    Sees, in front of C{sys.meta_path}, that a module of tests is about to be imported, which is when no test
    runs: many modules that are there are no garbage. A full collection takes a hundredth of a second in place
    of a tenth, and hundreds of tests collect before they count.
    """

    #: Collect after so many more modules.
    MODULES = 100

    def __init__(self) -> None:
        self._modules = 0

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """
        Leave it to others.
        """
        if name.rpartition(".")[2].startswith("test_"):
            if len(sys.modules) > self._modules + self.MODULES:
                self._modules = len(sys.modules)
                gc.collect()
                gc.freeze()
            else:
                collectDescriptors()


sys.meta_path.insert(0, _Frozen())
