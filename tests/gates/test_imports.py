"""
Imports within functions: none that what a peer sends would cause.  After C{chroot}, or with no descriptor
left, it would fail, and the error would be the server's.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.gates.facts import facts
from tests.test_layering import ROOT

#: Folders whose functions a peer's messages reach.
REACHED = ("aio", "blocking", "drive", "hca", "internet", "ipoib", "rdma", "rds", "reactor", "sdp", "switch")
#: The functions that import, by who calls them; those that load a name of a package, C{__getattr__}, aside.
CALLED = {
    "by the program, which connects, listens, patches or asks for it": """
        aio/loop.py EventLoop.create_connection, aio/loop.py EventLoop.create_server,
        blocking/files.py changeRoot, blocking/patch.py _reducePlain, blocking/patch.py _ofTLS,
        blocking/patch.py _ofReduction, blocking/patch.py _ofConnection, blocking/patch.py _ofServers,
        blocking/patch.py _ofProcesses,
        blocking/patch.py patch, blocking/select.py _Waits.__getattr__,
        hca/device/device.py Device.sa, internet/strings.py nearest, internet/strings.py _enter,
        rds/networks.py _relayFor, rds/networks.py _mediumFor,
        rds/streams/streamsocket.py listenRDS, reactor/asyncioreactor.py install,
        reactor/base.py IBReactorBase._hasRules, reactor/base.py IBReactorBase.socketReport,
        reactor/base.py IBReactorBase.switch, reactor/base.py IBReactorBase.listenRDMA,
        reactor/base.py IBReactorBase.connectRDMA, reactor/base.py IBReactorBase.listenRDS,
        reactor/ibreactor.py install, switch/connecting.py Attempt.begin,
        switch/connecting.py SwitchedClient.makeTransport, switch/reason.py stayed,
        switch/switch.py Switch.load, switch/switch.py Switch.listenTCP,
        switch/switch.py Switch.adoptStreamPort, switch/switch.py Switch.connectTCP,
        switch/switch.py Switch.candidates, switch/switch.py direct,
        switch/rules/configuration.py _log, switch/rules/configuration.py Configuration._taken,
        switch/rules/rulelog.py logFile, switch/rules/rulelog.py RuleLog.write""",
    "when a device is opened, or named in rules": """
        hca/device/device.py Device._appear, hca/device/device.py Device._open,
        hca/device/device.py Device._trace, hca/device/device.py Device.mads,
        hca/device/registry.py _loopback, hca/device/registry.py _sharedMemory,
        hca/device/registry.py _roce, hca/device/registry.py _prepareRoCE,
        hca/device/registry.py _iwarp, hca/device/registry.py _hardware,
        hca/device/registry.py _addressOfAdapter, hca/device/registry.py _withoutOptions,
        hca/device/registry.py parseRules, hca/fabric/hardware/provider.py loadVerbs,
        hca/fabric/iwarp/protocol/mpa.py _library""",
    "of a module that is in the interpreter, and no file": """
        drive/process.py Objects.settle, drive/process.py Objects.made, drive/process.py _collections""",
    "of a module that is there, or nobody would call": """
        blocking/tls.py _OpenSSLMemory.pending, blocking/tls.py _OpenSSLRecords.drive,
        blocking/tls.py carryOpenSSL""",
    "for ib-ss alone, which is told less if it fails": """
        reactor/socketreport.py SocketReport._isOpen, reactor/socketreport.py SocketReport.appear,
        reactor/socketreport.py SocketReport.rows, reactor/socketreport.py _listens""",
}


class ImportTests(SynchronousTestCase):
    """
    The rule.
    """

    def test_peers(self) -> None:
        """
        Functions that import are those of L{CALLED}, none less.
        """
        package = ROOT / "twisted_ib"
        found = {
            f"{path.relative_to(package)} {name}"
            for folder in REACHED
            for path in Path(package, folder).rglob("*.py")
            for name in facts(path.read_text()).importing
            if name != "__getattr__"
        }
        known = {" ".join(each.split()) for names in CALLED.values() for each in names.split(",")}
        self.assertEqual(found ^ known, set())

    def test_importing(self) -> None:
        """
        Imports are found wherever they stand in a function, and not outside.
        """
        text = "import a\nclass B:\n import c\n def d(self):\n  try:\n   from e import f\n  finally: pass\n"
        self.assertEqual(facts(text).importing, ("B.d",))


__all__ = ["ImportTests"]
