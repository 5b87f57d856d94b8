"""
Tests for the plugin: the reactor C{ib} and the endpoints C{sdp:} and C{ib:} by name.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from twisted.application.reactors import IReactorInstaller
from twisted.internet import endpoints
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import (
    IStreamClientEndpoint,
    IStreamClientEndpointStringParserWithReactor,
    IStreamServerEndpoint,
    IStreamServerEndpointStringParser,
)
from twisted.internet.testing import MemoryReactorClock
from twisted.plugin import IPlugin, getPlugins
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.support.calls import called
from tests.support.waiting import HANG_SECONDS
from twisted.plugins import twisted_ib_plugin
from twisted_ib.internet.strings import EndpointParser

ROOT = Path(__file__).resolve().parent.parent


def runPython(program: str) -> str:
    """
    Run a program in a Python process of its own, started in the checkout.

    @param program: the program's text.

    @return: what it printed.
    """
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    if result.returncode:
        raise AssertionError(result.stderr)
    return result.stdout


class PluginTests(SynchronousTestCase):
    """
    Twisted finds the plugin, and the plugin does not spoil Twisted's start.
    """

    def test_reactorListed(self) -> None:
        """
        C{ib} is among the reactors that C{--reactor} can name, once.
        """
        names = [installer.shortName for installer in getPlugins(IReactorInstaller)]
        self.assertEqual(names.count("ib"), 1)

    def test_parserListed(self) -> None:
        """
        One parser with each prefix is found for servers and one for clients.
        """
        for interface in (IStreamServerEndpointStringParser, IStreamClientEndpointStringParserWithReactor):
            prefixes = [parser.prefix for parser in getPlugins(interface)]
            self.assertEqual((prefixes.count("sdp"), prefixes.count("ib")), (1, 1))

    def test_parserInterfaces(self) -> None:
        """
        The parser provides what it says.
        """
        parser = EndpointParser("sdp", object, "Server", "Client")
        verifyObject(IPlugin, parser)
        verifyObject(IStreamServerEndpointStringParser, parser)
        verifyObject(IStreamClientEndpointStringParserWithReactor, parser)

    def test_pluginIsLight(self) -> None:
        """
        Importing the plugin module imports no reactor, no endpoint and no
        HCA: Twisted imports it before it chooses a reactor.
        """
        loaded = runPython(
            "import sys, twisted.plugins.twisted_ib_plugin\n"
            "print(*[name for name in sys.modules if name.startswith('twisted_ib.')"
            " or name.endswith('reactor')])"
        ).split()
        package = "twisted_ib.internet"
        self.assertEqual(sorted(loaded), [package, f"{package}.strings"])

    def test_reactorModuleHasNoSideEffect(self) -> None:
        """
        Importing the reactor's module, as C{trial --help-reactors} does,
        installs nothing.
        """
        loaded = runPython(
            "import sys, twisted_ib.reactor.ibreactor as module\n"
            "print(callable(module.install), 'twisted.internet.reactor' in sys.modules)"
        ).split()
        self.assertEqual(loaded, ["True", "False"])

    def test_installByName(self) -> None:
        """
        Twisted's own way to install a reactor by its name installs ours.
        """
        name = runPython(
            "from twisted.application.reactors import installReactor\n"
            "print(type(installReactor('ib')).__name__)"
        )
        self.assertEqual(name.strip(), "IBReactor")


class StringTests(SynchronousTestCase):
    """
    Endpoint strings, as C{serverFromString} and C{clientFromString} take them.

    @cvar prefix: Their prefix.
    """

    prefix = "sdp"

    def setUp(self) -> None:
        """
        Make a reactor that opens nothing.
        """
        self.reactor = MemoryReactorClock()

    def refused(self, error: type[Exception], description: str, *words: str, server: bool) -> None:
        """
        Assert that an endpoint string is refused, in one line.

        @param error: the exception's type.
        @param description: the string.
        @param words: what the exception's text has to contain.
        @param server: whether the string is for a server.
        """
        parse = serverFromString if server else clientFromString
        text = str(self.assertRaises(error, parse, self.reactor, description))
        for word in words:
            self.assertIn(word, text)
        self.assertNotIn("\n", text)

    def test_server(self) -> None:
        """
        A server string with every argument gives a server endpoint.
        """
        for description in (
            f"{self.prefix}:8080",
            f"{self.prefix}:0",
            f"{self.prefix}:65535",
            f"{self.prefix}:port=8080",
            f"{self.prefix}:8080:interface=127.0.0.1:backlog=7:device=shm0",
            f"{self.prefix}:8080:interface=\\:\\:1",
        ):
            verifyObject(IStreamServerEndpoint, serverFromString(self.reactor, description))

    def test_client(self) -> None:
        """
        A client string with every argument gives a client endpoint.
        """
        for description in (
            f"{self.prefix}:localhost:8080",
            f"{self.prefix}:host=localhost:port=1",
            f"{self.prefix}:127.0.0.1:65535:timeout=3:bindAddress=127.0.0.1:device=shm0",
            f"{self.prefix}:127.0.0.1:8080:timeout=0.5",
            f"{self.prefix}:fe80\\:\\:1%ib0:7000",
        ):
            verifyObject(IStreamClientEndpoint, clientFromString(self.reactor, description))

    def test_serverNumbers(self) -> None:
        """
        A port or backlog that is no number, or out of range, is a
        L{ValueError} when the string is parsed, and its text has the number.
        """
        for text in ("http", "-1", "65536", "80a", "8_0", "1.5", "9" * 5000):
            self.refused(ValueError, f"{self.prefix}:{text}", "port", text, server=True)
        for text in ("-1", "-0", "65536", "9" * 5000, "-" + "9" * 5000):
            words = f"port {text} is out of range (0 to 65535)"
            self.refused(ValueError, f"{self.prefix}:{text}", words, server=True)
        for text in ("-", "--1", "+1", "\u0665"):
            self.refused(ValueError, f"{self.prefix}:{text}", f"port {text!r} is not a number", server=True)
        self.refused(ValueError, f"{self.prefix}:", "port", server=True)
        self.refused(ValueError, f"{self.prefix}:80:backlog=many", "backlog", "many", server=True)
        self.refused(ValueError, f"{self.prefix}:80:backlog=-1", "backlog", "-1", server=True)

    def test_clientNumbers(self) -> None:
        """
        A port or timeout that is no number, or out of range, is a
        L{ValueError} when the string is parsed, and its text has the number.
        """
        for text in ("http", "0", "-1", "65536"):
            self.refused(ValueError, f"{self.prefix}:localhost:{text}", "port", text, server=False)
        for text in ("soon", "-1", "nan", "inf"):
            where = f"{self.prefix}:localhost:80"
            self.refused(ValueError, f"{where}:timeout={text}", "timeout", text, server=False)
        self.refused(ValueError, f"{self.prefix}::7000", "host", "7000", server=False)

    def test_arguments(self) -> None:
        """
        A missing, unknown or repeated argument is a L{TypeError} when the
        string is parsed, and its text has the string.
        """
        self.refused(TypeError, f"{self.prefix}:80:colour=red", f"{self.prefix}:80", "colour", server=True)
        self.refused(TypeError, f"{self.prefix}:interface=127.0.0.1", "port", server=True)
        self.refused(TypeError, f"{self.prefix}:80:127.0.0.1:50:shm0:5", f"{self.prefix}:80", server=True)
        self.refused(TypeError, f"{self.prefix}:80:port=81", f"{self.prefix}:80", "port", server=True)
        self.refused(TypeError, f"{self.prefix}:localhost", f"{self.prefix}:localhost", "port", server=False)
        where = f"{self.prefix}:localhost:80"
        self.refused(TypeError, f"{where}:backlog=5", where, "backlog", server=False)
        self.refused(TypeError, f"{self.prefix}:localhost:80:reactor=mine", "reactor", server=False)

    def test_warm(self) -> None:
        """
        Only the first string is looked up among the plugins, which costs more than most connections
        (issue 16, point 4).
        """
        strings = f"{self.prefix}:8080", f"{self.prefix}:localhost:8080"
        parse = {serverFromString: strings[0], clientFromString: strings[1]}
        before = [repr(vars(each(self.reactor, string))) for each, string in parse.items()]
        self.patch(endpoints, "getPlugins", None)
        after = [repr(vars(each(self.reactor, string))) for each, string in parse.items()]
        self.assertEqual(before, after)
        # 61 and 101 calls of functions, most of them in Twisted's tokenizer; a look-up makes thousands.
        for each, string in parse.items():
            self.assertLess(called(partial(each, self.reactor, string)).total(), 200)


class PluginStringTests(StringTests):
    """
    The same where Twisted has no table that a parser could enter itself in.
    """

    def setUp(self) -> None:
        """
        Twisted's tables are elsewhere, or of another form.
        """
        super().setUp()
        self.patch(twisted_ib_plugin.sdp, "_entered", False)
        self.tables: dict[str, dict[str, Any]] = {}
        for name in (
            "_serverParsers",
            "_clientParsers",
            "_endpointServerFactories",
            "_endpointClientFactories",
        ):
            table = {key: value for key, value in getattr(endpoints, name).items() if key.lower() != "sdp"}
            self.tables[name] = table
            self.patch(endpoints, name, table)

    def test_warm(self) -> None:
        """
        The plugin is found each time, and the tables that there are stay as they are.
        """
        for name in self.tables:
            with self.subTest(without=name):
                self.setUp()
                self.patch(endpoints, name, {})
                for _ in range(2):
                    verifyObject(
                        IStreamServerEndpoint, twisted_ib_plugin.sdp.parseStreamServer(self.reactor, "80")
                    )
                for table in self.tables.values():
                    self.assertNotIn("sdp", {key.lower() for key in table})
        for _ in range(2):
            self.patch(twisted_ib_plugin.sdp, "_entered", True)
            verifyObject(IStreamServerEndpoint, serverFromString(self.reactor, "sdp:80"))
            verifyObject(IStreamClientEndpoint, clientFromString(self.reactor, "sdp:localhost:80"))


class MessageStringTests(StringTests):
    """
    C{ib:} takes what C{sdp:} does.
    """

    prefix = "ib"


class DatagramStringTests(StringTests):
    """
    And so does C{rds:}.
    """

    prefix = "rds"
