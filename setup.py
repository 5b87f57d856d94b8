"""
What setup.cfg cannot say: with C{TWISTED_IB_COMPILE=1} mypyc compiles these modules.
"""

import os
import sys

from setuptools import setup

MODULES = [
    "twisted_ib/blocking/connection.py",
    "twisted_ib/blocking/loop.py",
    "twisted_ib/hca/base/polling.py",
    "twisted_ib/hca/cm/admission.py",
    "twisted_ib/hca/cm/machine.py",
    "twisted_ib/hca/cm/messages.py",
    "twisted_ib/hca/cm/peer.py",
    "twisted_ib/hca/cm/table.py",
    "twisted_ib/hca/cm/timers.py",
    "twisted_ib/hca/cm/transitions.py",
    "twisted_ib/hca/device/connections.py",
    "twisted_ib/hca/device/progress.py",
    "twisted_ib/hca/fabric/base/addressdirectory.py",
    "twisted_ib/hca/fabric/base/fabric.py",
    "twisted_ib/hca/fabric/base/management.py",
    "twisted_ib/hca/fabric/base/path.py",
    "twisted_ib/hca/fabric/roce/packet.py",
    "twisted_ib/hca/fabric/roce/qppath.py",
    "twisted_ib/hca/fabric/roce/receive.py",
    "twisted_ib/hca/fabric/roce/roce.py",
    "twisted_ib/hca/fabric/roce/transmit.py",
    "twisted_ib/hca/fabric/shm/hotpaths.py",
    "twisted_ib/hca/fabric/shm/ring.py",
    "twisted_ib/hca/queues/queuepair.py",
    "twisted_ib/hca/queues/receiver.py",
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
    "twisted_ib/internet/batchedcalls.py",
    "twisted_ib/internet/localports.py",
    "twisted_ib/rds/media/rccarrier.py",
    "twisted_ib/rds/media/rcconnection.py",
    "twisted_ib/rds/protocol/bundle.py",
    "twisted_ib/rds/protocol/congestion.py",
    "twisted_ib/rds/protocol/machine.py",
    "twisted_ib/rds/queues.py",
    "twisted_ib/reactor/loop.py",
    "twisted_ib/sdp/pendingsends.py",
    "twisted_ib/sdp/protocol/machine.py",
    "twisted_ib/sdp/protocol/zerocopy.py",
    "twisted_ib/sdp/stream.py",
]

requires: list[str] = []
extensions = []
if os.environ.get("TWISTED_IB_COMPILE") == "1":
    # mypyc checks the types of these modules and of all that they import.
    requires = ["mypy >= 2.4", "mypy-zope >= 1.0.11", "attrs >= 22.2", "twisted[tls] >= 26.4"]
    # Before it builds, pip runs this to ask what to install for it.
    if "bdist_wheel" in sys.argv:
        from mypyc.build import mypycify

        extensions = mypycify(
            ["--config-file", "pyproject.toml", *MODULES], debug_level="0", group_name="twisted_ib"
        )

setup(ext_modules=extensions, setup_requires=requires)
