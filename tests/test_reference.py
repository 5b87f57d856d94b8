"""
Tests for the links of the HTML reference.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from docs.links import PYTHON, TWISTED, ZOPE, isInterface, urlOf


class LinkTests(SynchronousTestCase):
    """
    Names that are documented elsewhere.
    """

    def test_urls(self) -> None:
        """
        A name that exists has a link.
        """
        defer = f"{TWISTED}/twisted.internet.defer"
        for name, url in (
            ("None", f"{PYTHON}/constants.html#None"),
            ("bytes", f"{PYTHON}/stdtypes.html#bytes"),
            ("bytes.join", f"{PYTHON}/stdtypes.html#bytes.join"),
            ("len", f"{PYTHON}/functions.html#len"),
            ("OSError", f"{PYTHON}/exceptions.html#OSError"),
            ("random.SystemRandom.getrandbits", f"{PYTHON}/random.html#random.SystemRandom.getrandbits"),
            ("os.path", f"{PYTHON}/os.path.html"),
            ("os.path.join", f"{PYTHON}/os.path.html#os.path.join"),
            ("twisted.internet.defer", f"{defer}.html"),
            ("twisted.internet.defer.Deferred", f"{defer}.Deferred.html"),
            ("twisted.internet.defer.Deferred.addCallback", f"{defer}.Deferred.html#addCallback"),
            ("twisted.internet.defer.succeed", f"{defer}.html#succeed"),
            (
                "twisted.internet.interfaces.ITransport.write",
                f"{TWISTED}/twisted.internet.interfaces.ITransport.html#write",
            ),
            ("zope.interface.Interface", ZOPE),
        ):
            self.assertEqual(urlOf(name), url, name)

    def test_nothing(self) -> None:
        """
        A name that does not exist has none, nor has one of another project.
        """
        for name in (
            "nosuch",
            "bytes.nosuch",
            "os.nosuch",
            "twisted.nosuch",
            "twisted.internet.defer.Deferred.nosuch",
            "twisted.internet.interfaces.ITransport.nosuch",
            "attrs.frozen",
            "",
        ):
            self.assertIsNone(urlOf(name), name)

    def test_interfaces(self) -> None:
        """
        An interface of Twisted is known as one.
        """
        self.assertTrue(isInterface("twisted.internet.interfaces.ITransport"))
        for name in ("twisted.internet.defer.Deferred", "twisted.internet.interfaces", "bytes", "twisted.no"):
            self.assertFalse(isInterface(name), name)
