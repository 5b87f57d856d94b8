"""
What setup.cfg cannot say: with C{TWISTED_IB_COMPILE=1} mypyc compiles these modules; with
C{TWISTED_IB_CLIBRARIES=1} the wheel has the libraries for C programs, built for its Python.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

#: The folder of the libraries.  To setuptools it is an extension module: so the wheel is for one Python and
#: one machine.
LIBRARIES = "twisted_ib.verbs.c.carried"

MODULES = [
    "twisted_ib/blocking/connection.py",
    "twisted_ib/blocking/loop.py",
    "twisted_ib/drive/followers.py",
    "twisted_ib/hca/base/polling.py",
    "twisted_ib/hca/base/refcount.py",
    "twisted_ib/hca/cm/admission.py",
    "twisted_ib/hca/cm/machine.py",
    "twisted_ib/hca/cm/peer.py",
    "twisted_ib/hca/cm/table.py",
    "twisted_ib/hca/cm/timers.py",
    "twisted_ib/hca/cm/transitions.py",
    "twisted_ib/hca/device/connections.py",
    "twisted_ib/hca/device/progress.py",
    "twisted_ib/hca/fabric/base/addressdirectory.py",
    "twisted_ib/hca/fabric/base/fabric.py",
    "twisted_ib/hca/fabric/base/lastwords.py",
    "twisted_ib/hca/fabric/base/management.py",
    "twisted_ib/hca/fabric/base/path.py",
    "twisted_ib/hca/fabric/roce/packet.py",
    "twisted_ib/hca/fabric/roce/qppath.py",
    "twisted_ib/hca/fabric/roce/receive.py",
    "twisted_ib/hca/fabric/roce/roce.py",
    "twisted_ib/hca/fabric/roce/transmit.py",
    "twisted_ib/hca/fabric/shm/hotpaths.py",
    "twisted_ib/hca/fabric/shm/ring.py",
    "twisted_ib/hca/memory/memory.py",
    "twisted_ib/hca/queues/completion.py",
    "twisted_ib/hca/queues/queuepair.py",
    "twisted_ib/hca/queues/receives.py",
    "twisted_ib/hca/queues/streamqueuepair.py",
    "twisted_ib/hca/services/operations/message.py",
    "twisted_ib/hca/services/operations/operation.py",
    "twisted_ib/hca/services/operations/send.py",
    "twisted_ib/hca/services/operations/write.py",
    "twisted_ib/hca/services/requester.py",
    "twisted_ib/hca/services/responder.py",
    "twisted_ib/hca/services/sendqueue.py",
    "twisted_ib/hca/services/work.py",
    "twisted_ib/hca/transport/psn.py",
    "twisted_ib/hca/transport/readrequests.py",
    "twisted_ib/hca/transport/reliable.py",
    "twisted_ib/hca/transport/requester.py",
    "twisted_ib/hca/transport/responder.py",
    "twisted_ib/hca/transport/responses.py",
    "twisted_ib/hca/transport/segmentation.py",
    "twisted_ib/hca/transport/sendwindow.py",
    "twisted_ib/hca/transport/unreliable.py",
    "twisted_ib/hca/wire/icrcflow.py",
    "twisted_ib/internet/addressing/localports.py",
    "twisted_ib/internet/batchedcalls.py",
    "twisted_ib/rds/media/rccarrier.py",
    "twisted_ib/rds/media/rcconnection.py",
    "twisted_ib/rds/protocol/bundle.py",
    "twisted_ib/rds/protocol/congestion.py",
    "twisted_ib/rds/protocol/machine.py",
    "twisted_ib/rds/queues.py",
    "twisted_ib/reactor/driven.py",
    "twisted_ib/reactor/loop.py",
    "twisted_ib/sdp/inbox.py",
    "twisted_ib/sdp/pendingsends.py",
    "twisted_ib/sdp/protocol/machine.py",
    "twisted_ib/sdp/protocol/zerocopy.py",
    "twisted_ib/sdp/stream.py",
    "twisted_ib/verbs/c/cm/rsockets.py",
    "twisted_ib/verbs/c/postings.py",
    "twisted_ib/verbs/c/rings.py",
    "twisted_ib/verbs/c/rsocket/memory.py",
    "twisted_ib/verbs/c/rsocket/protocol.py",
    "twisted_ib/verbs/c/rsocket/stream.py",
    "twisted_ib/verbs/core/progress.py",
]


class BuildExtensions(build_ext):
    """
    Builds the libraries by the package's own code, in a process that imports it from here.
    """

    def build_extension(self, ext: Extension) -> None:
        """
        Build the libraries into the tree of the wheel, and other extensions as ever.
        """
        if ext.name != LIBRARIES:
            super().build_extension(ext)
            return
        folder = Path(self.build_lib, *LIBRARIES.split(".")).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        code = "import sys; sys.path.insert(0, '.'); from pathlib import Path; "
        code += "from twisted_ib.verbs.c.building.build import carry; carry(Path(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", code, str(folder)], cwd=Path(__file__).parent, check=True)


requires: list[str] = []
extensions = []
# Before it builds, pip runs this to ask what to install for it.
isBuilding = "bdist_wheel" in sys.argv
if os.environ.get("TWISTED_IB_COMPILE") == "1":
    # mypyc checks the types of these modules and of all that they import.
    requires += ["mypy >= 2.4", "mypy-zope >= 1.0.11", "attrs >= 22.2", "twisted[tls] >= 26.4"]
    if isBuilding:
        from mypyc.build import mypycify

        extensions += mypycify(
            ["--config-file", "pyproject.toml", *MODULES], debug_level="0", group_name="twisted_ib"
        )
if os.environ.get("TWISTED_IB_CLIBRARIES") == "1":
    requires += ["attrs >= 22.2", "cffi >= 1.15"]
    if isBuilding:
        extensions.append(Extension(LIBRARIES, []))

setup(ext_modules=extensions, setup_requires=requires, cmdclass={"build_ext": BuildExtensions})
