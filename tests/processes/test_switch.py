"""
Programs that know of TCP only, in two and more processes, under the C{ib} reactor and beside others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest

from tests.internet.twistedapi import NO_BINDINGS, makeBinding
from tests.processes.processes import Child, ChildError, ProcessTestCase
from tests.support.waiting import PATIENCE, waitUntil


def reachedTCP(port: int) -> bool:
    """
    @return: Whether a client has a TCP connection to a port, which the kernel makes for a frozen server too.
    """
    # proc(5), /proc/net/tcp: local and remote address and the state, of which 1 is ESTABLISHED.
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(words[2].endswith(f":{port:04X}") and words[3] == "01" for words in lines)


class SwitchTestCase(ProcessTestCase):
    """
    Base of these tests.
    """

    program = "tests.processes.programs.switching.Switching"
    reactor = "ib"

    def setUp(self) -> None:
        """
        Have a file of rules, which is empty unless a test writes it.
        """
        super().setUp()
        home = Path(self.runDirectory + ".home")
        (home / ".config").mkdir(parents=True)
        self.rules = home / "rules.conf"
        self._environment = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}

    def start(self, reactor: str | None = None, rules: str | None = None) -> Child:
        """
        Start a child.

        @param rules: The contents of its rule file; there is none by default.
        """
        environment = dict(self._environment)
        if rules is not None:
            path = f"{self.rules}.{len(os.listdir(self.rules.parent))}"
            Path(path).write_text(rules)
            environment["TWISTED_IB_CONFIG"] = path
        return self.spawn(reactor, environment=environment)

    def assertCarried(self, found: dict[str, Any], provider: str, server: str = "server") -> None:
        """
        A connection must go to a server and over something, and be told of once.
        """
        expected = (provider, server, 1, 0)
        seen = tuple(found[name] for name in ("provider", "server", "made", "failed"))
        self.assertEqual(seen, expected, found)


class DefaultTests(SwitchTestCase):
    """
    Without any rules.
    """

    def test_both(self) -> None:
        """
        A server answers SDP and TCP on one port; a client gets SDP, one on another reactor TCP.
        """
        server = self.start()
        port = server.ask("listen")
        self.assertEqual((port["provider"], port["rule"], port["device"]), ("both", "default", "shm0"))
        client = self.start()
        found = client.ask("connect", port=port["port"])
        self.assertCarried(found, "sdp")
        self.assertEqual((found["device"], found["fallback"], found["fileno"]), ("shm0", None, -1))
        server.event("accepted", transport="RedirectedServer")
        self.assertCarried(self.start("epoll").ask("connect", port=port["port"]), "tcp")
        server.event("accepted", transport="Server")

    def test_endpoints(self) -> None:
        """
        The same with endpoint strings, by name and over IPv6; C{direct:} is TCP at either end.
        """
        server, client = self.start(), self.start()
        port = server.ask("listenEndpoint", endpoint="tcp:0")["port"]
        self.assertCarried(client.ask("connectEndpoint", endpoint=f"tcp:localhost:{port}"), "sdp")
        found = client.ask("connectEndpoint", endpoint=f"direct:localhost:{port}")
        self.assertCarried(found, "tcp")
        self.assertEqual(found["rule"], "explicit")
        found = server.ask("listenEndpoint", endpoint="direct:0:interface=127.0.0.1")
        self.assertEqual((found["provider"], found["rule"]), ("tcp", "explicit"))
        self.assertCarried(client.ask("connect", port=found["port"]), "tcp")
        port = server.ask("listen", interface="::")["port"]
        for host in ("::1", "127.0.0.1"):
            self.assertCarried(client.ask("connect", host=host, port=port), "sdp")

    def test_noListener(self) -> None:
        """
        To a server without SDP a client goes over TCP, and opens no device for it.
        """
        server, client = self.start("epoll"), self.start()
        found = client.ask("connect", port=server.ask("listen")["port"])
        self.assertCarried(found, "tcp")
        self.assertEqual(found["fallback"], "no_listener")
        self.assertEqual(client.ask("polled"), 0)
        counters = {"switch_rule_default": 1, "switch_fallback_no_listener": 1}
        self.assertEqual(client.ask("counters"), counters)

    def test_refused(self) -> None:
        """
        Where nobody listens there is one failure, with the reason of each provider.
        """
        server, client = self.start(), self.start()
        port = server.ask("listen")["port"]
        server.ask("stop", port=port)
        error = self.assertRaises(ChildError, client.ask, "connect", port=port)
        self.assertEqual(error.kind, "ConnectionRefusedError")
        for text in ("Connection refused", f"SDP: nobody offers SDP on 127.0.0.1:{port}"):
            self.assertIn(text, str(error))

    def test_counters(self) -> None:
        """
        The counters of the switch show on the device.
        """
        server = self.start()
        server.ask("listen")
        self.assertEqual(server.ask("deviceCounters"), {"switch_rule_default": 1})

    def test_killed(self) -> None:
        """
        The entries of a killed server mislead no client.
        """
        server, client = self.start(), self.start()
        port = server.ask("listen")["port"]
        server.kill()
        error = self.assertRaises(ChildError, client.ask, "connect", port=port)
        self.assertEqual(error.kind, "ConnectionRefusedError")
        self.start("epoll").ask("listen", port=port, name="other")
        self.assertCarried(self.start().ask("connect", port=port), "tcp", "other")

    def test_bound(self) -> None:
        """
        The local number that a client binds is the one that the server sees, and taken for TCP as long
        as the connection lives.
        """
        server, client = self.start(), self.start()
        port = server.ask("listen")["port"]
        found = client.ask("connect", port=port, bind=["127.0.0.1", 0])
        self.assertCarried(found, "sdp")
        host, number = found["local"]
        self.assertEqual(host, "127.0.0.1")
        self.assertFalse(server.ask("bindable", host=host, port=number))
        error = self.assertRaises(ChildError, client.ask, "connect", port=port, bind=found["local"])
        self.assertEqual(error.kind, "ConnectBindError")
        client.ask("close", wire=found["wire"])
        client.event("lost")
        self.assertTrue(server.ask("bindable", host=host, port=number))
        found = client.ask("connect", port=port, bind=["127.0.0.1", number])
        self.assertCarried(found, "sdp")
        self.assertEqual(found["local"], [host, number])


class WrongServerTests(SwitchTestCase):
    """
    A client reaches whom TCP would reach, and nobody else.
    """

    def test_explicit(self) -> None:
        """
        Another program's C{sdp:} of the same number is not what a client of TCP means, nor the other
        way about.
        """
        tcp, sdp, client = self.start("epoll"), self.start(), self.start()
        port = tcp.ask("listen", name="tcp")["port"]
        sdp.ask("listenEndpoint", endpoint=f"sdp:{port}:interface=127.0.0.1", name="sdp")
        found = client.ask("connect", port=port)
        self.assertCarried(found, "tcp", "tcp")
        self.assertEqual(found["fallback"], "no_listener")
        self.assertCarried(client.ask("connectEndpoint", endpoint=f"sdp:127.0.0.1:{port}"), "sdp", "sdp")

    def test_moreSpecific(self) -> None:
        """
        A listener on an address precedes one on the wildcard, whichever transport they have.
        """
        if makeBinding is None:
            raise SkipTest(NO_BINDINGS)
        wide, narrow, client = self.start(), self.start("epoll"), self.start()
        port = wide.ask("listen", name="wide", interface="0.0.0.0", reusePort=True)["port"]
        narrow.ask("listen", name="narrow", port=port, reusePort=True)
        found = client.ask("connect", port=port)
        self.assertCarried(found, "tcp", "narrow")
        self.assertEqual(found["fallback"], "other_listener")
        self.assertCarried(client.ask("connect", host="127.0.0.2", port=port), "sdp", "wide")

    def test_families(self) -> None:
        """
        IPv4's listener on all addresses comes before IPv6's.
        """
        if makeBinding is None:
            raise SkipTest(NO_BINDINGS)
        six, four, client = self.start(), self.start("epoll"), self.start()
        port = six.ask("listen", name="six", interface="::", reusePort=True)["port"]
        self.assertCarried(client.ask("connect", port=port), "sdp", "six")
        four.ask("listen", name="four", interface="0.0.0.0", port=port, reusePort=True)
        self.assertCarried(client.ask("connect", port=port), "tcp", "four")
        self.assertCarried(client.ask("connect", port=port, host="::1"), "sdp", "six")

    def test_shared(self) -> None:
        """
        Processes that share a number (SO_REUSEPORT), whether they bound or adopted their sockets, share its
        clients over SDP as over TCP; those of one that stops or is killed go to the others (issue 16, point
        3).
        """
        if makeBinding is None:
            raise SkipTest(NO_BINDINGS)
        servers = {name: self.start() for name in ("one", "two", "three")}
        client, port = self.start(), 0
        for name, server in servers.items():
            found = server.ask("listen", name=name, port=port, reusePort=True, adopt=name == "three")
            self.assertEqual((found["provider"], found["rule"]), ("both", "default"))
            port = found["port"]

        def reached(times: int) -> set[str]:
            found = [client.ask("connect", port=port) for _ in range(times)]
            self.assertEqual({each["provider"] for each in found}, {"sdp"})
            return {each["server"] for each in found}

        # That 40 draws of 1 in 3 leave one out has a probability of 3e-7.
        self.assertEqual(reached(40), {"one", "two", "three"})
        servers["one"].ask("stop", port=port)
        self.assertEqual(reached(20), {"two", "three"})
        servers["two"].kill()
        self.assertEqual(reached(5), {"three"})

    def test_race(self) -> None:
        """
        Of two servers that want one number at the same time one has it, with SDP.
        """
        servers = [self.start(), self.start()]
        client = self.start()
        for _ in range(5):
            port = self.start("epoll").ask("listen")["port"] % 1000 + 20000
            for each in servers:
                each.begin("listen", port=port, name=str(servers.index(each)))
            outcomes = []
            for each in servers:
                try:
                    outcomes.append(each.answer())
                except ChildError as e:
                    self.assertEqual(e.kind, "CannotListenError")
                    outcomes.append(None)
            (winner,) = [servers.index(each) for each, got in zip(servers, outcomes, strict=True) if got]
            self.assertEqual(outcomes[winner]["provider"], "both")
            self.assertCarried(client.ask("connect", port=port), "sdp", str(winner))
            servers[winner].ask("stop", port=port)

    def test_namespace(self) -> None:
        """
        In another network namespace the same address and number are others.
        """
        far, near, client = self.start(), self.start("epoll"), self.start()
        port = near.ask("listen", name="near")["port"]
        if not far.ask("namespace"):
            return
        self.assertRaises(ChildError, far.ask, "connect", port=port)
        far.ask("listen", name="far", port=port, interface="0.0.0.0")
        self.assertCarried(client.ask("connect", port=port), "tcp", "near")

    def test_otherUser(self) -> None:
        """
        Another user's server is reached over TCP.
        """
        if os.getuid():
            return
        other, client = self.start(), self.start()
        os.chmod(os.path.dirname(self.runDirectory), 0o755)
        other.ask("become", uid=65534)
        port = other.ask("listen", name="other")
        self.assertEqual((port["provider"], port["fallback"]), ("tcp", "listen"))
        self.assertCarried(client.ask("connect", port=port["port"]), "tcp", "other")


class TroubleTests(SwitchTestCase):
    """
    Failures during the connect.
    """

    def test_frozen(self) -> None:
        """
        A server that does not answer over SDP is left to TCP after its part of the time, and at once the
        next time.
        """
        server, client = self.start(), self.start(rules="timeout sdp 0.3\nuse both connect * *:*\n")
        port = server.ask("listen")["port"]
        server.freeze()
        client.begin("connect", port=port)
        waitUntil(lambda: reachedTCP(port))
        server.thaw()
        found = client.answer()
        self.assertCarried(found, "tcp")
        self.assertEqual(found["fallback"], "timeout")
        self.assertEqual(client.ask("connect", port=port)["fallback"], "remembered")

    def test_dies(self) -> None:
        """
        A server that dies while it is asked: one failure, with the reason of each provider.
        """
        server, client = self.start(), self.start()
        port = server.ask("listen")["port"]
        server.freeze()
        client.begin("connect", port=port)
        self.assertRaises(ChildError, client.answer, 0.3)
        server.kill()
        self.assertDied(self.assertRaises(ChildError, client.answer))

    def assertDied(self, error: ChildError) -> None:
        """
        A server that dies is refused by both; or TCP's socket was not closed yet, and the connection is reset
        before it is made, or lost afterwards.
        """
        texts = {"ConnectionRefusedError": "Connection refused", "ConnectError": "Connection reset"}
        if error.kind != "ConnectionLost":
            self.assertIn(error.kind, texts)
            self.assertIn(texts[error.kind], str(error))
            # A client that looks only now finds nobody.
            self.assertRegex(str(error), r"SDP 127\.0\.0\.1:|SDP: nobody offers SDP on 127\.0\.0\.1:")

    def test_diesLater(self) -> None:
        """
        The same when the two processes know each other already, and the request was sent.
        """
        server, client = self.start(), self.start()
        port = server.ask("listen")["port"]
        self.assertCarried(client.ask("connect", port=port), "sdp")
        server.freeze()
        client.begin("connect", port=port)
        self.assertRaises(ChildError, client.answer, 0.3)
        server.kill()
        self.assertDied(self.assertRaises(ChildError, client.answer))
        client.event("lost", reason="ConnectionDone")

    def test_timeout(self) -> None:
        """
        The application's timeout is for all providers together: SDP has a part of it.
        """
        server, client = self.start(), self.start(rules="timeout sdp 60\nuse both connect * *:*\n")
        port = server.ask("listen")["port"]
        server.freeze()
        client.begin("connect", port=port, timeout=1.5 * PATIENCE)
        waitUntil(lambda: reachedTCP(port))
        server.thaw()
        self.assertCarried(client.answer(), "tcp")

    def test_noRunDirectory(self) -> None:
        """
        Without a place to meet everything is TCP.
        """
        environment = {"TWISTED_IB_RUN_DIR": "/proc/none"}
        server, client = (self.spawn(environment=environment) for _ in range(2))
        port = server.ask("listen")
        self.assertEqual((port["provider"], port["fallback"]), ("tcp", "listen"))
        self.assertCarried(client.ask("connect", port=port["port"]), "tcp")


class RuleTests(SwitchTestCase):
    """
    With rules.
    """

    def test_sdp(self) -> None:
        """
        Under C{sdp} a server has no TCP, and a client wants nothing else.
        """
        rules = "use sdp listen * *:*\nuse sdp connect * *:*\n"
        server, client = self.start(rules=rules), self.start(rules=rules)
        for port in (0, 21345):
            listening = server.ask("listen", port=port)
            self.assertEqual((listening["provider"], listening["device"]), ("sdp", "shm0"))
            self.assertTrue(listening["rule"].endswith(":1"))
            found = client.ask("connect", port=listening["port"])
            self.assertCarried(found, "sdp")
            self.assertTrue(found["rule"].endswith(":2"))
            error = self.assertRaises(ChildError, self.start("epoll").ask, "connect", port=listening["port"])
            self.assertEqual(error.kind, "ConnectionRefusedError")
            server.ask("stop", port=listening["port"])
            error = self.assertRaises(ChildError, client.ask, "connect", port=listening["port"])
            self.assertEqual(error.kind, "ConnectionRefusedError")
        port = self.start("epoll").ask("listen")["port"]
        self.assertRaises(ChildError, client.ask, "connect", port=port)

    def test_explicit(self) -> None:
        """
        A rule C{sdp} reaches a server that asked for SDP by name.
        """
        server, client = self.start(), self.start(rules="use sdp connect * *:*\n")
        port = server.ask("listenEndpoint", endpoint="sdp:0:interface=127.0.0.1")["port"]
        self.assertCarried(client.ask("connect", port=port), "sdp")

    def test_tcp(self) -> None:
        """
        Under C{tcp} there is no switch, and no device.
        """
        rules = "use tcp listen * *:*\nuse tcp connect * *:*\n"
        server, client = self.start(rules=rules), self.start(rules=rules)
        port = server.ask("listen")
        self.assertEqual(port["provider"], "tcp")
        self.assertCarried(client.ask("connect", port=port["port"]), "tcp")
        self.assertCarried(self.start().ask("connect", port=port["port"]), "tcp")
        self.assertEqual((server.ask("polled"), client.ask("polled")), (0, 0))

    def test_bothIsBusy(self) -> None:
        """
        Where a rule says C{both}, a number that somebody else has for SDP cannot be had.
        """
        other, server = self.start(), self.start(rules="use both listen * *:*\n")
        port = other.ask("listenEndpoint", endpoint="sdp:0:interface=127.0.0.1")["port"]
        error = self.assertRaises(ChildError, server.ask, "listen", port=port)
        self.assertEqual(error.kind, "CannotListenError")
        self.assertIn("Address already in use", str(error))
        self.assertTrue(other.ask("bindable", host="127.0.0.1", port=port))


class DeviceTests(SwitchTestCase):
    """
    Devices that come and go.
    """

    def test_removed(self) -> None:
        """
        When its device is removed a connection is lost; the port goes on over TCP, and over SDP when
        there is a device again.
        """
        server, client = self.start(), self.start()
        port = server.ask("listen", interface="0.0.0.0")["port"]
        found = client.ask("connect", port=port)
        self.assertCarried(found, "sdp")
        server.ask("removeDevice", name="shm0")
        server.event("serverLost", reason="ConnectionLost")
        client.event("lost", reason="ConnectionLost")
        self.assertEqual(server.ask("port", port=port)["provider"], "tcp")
        self.assertCarried(client.ask("connect", port=port), "tcp")
        server.ask("addDevice", name="shm0", fabric="shm")
        self.assertEqual(server.ask("port", port=port)["provider"], "both")
        self.assertCarried(client.ask("connect", port=port), "sdp")
        client.ask("removeDevice", name="shm0")
        client.event("lost", reason="ConnectionLost")
        self.assertCarried(client.ask("connect", port=port), "tcp")

    def test_second(self) -> None:
        """
        A port listens on a device that is added, and on that alone when the first one goes.
        """
        server, client = self.start(), self.start()
        port = server.ask("listen", interface="0.0.0.0")["port"]
        server.ask("addDevice", name="shm1", fabric="shm")
        self.assertEqual(server.ask("port", port=port)["device"], "shm0,shm1")
        server.ask("removeDevice", name="shm0")
        self.assertEqual(server.ask("port", port=port)["device"], "shm1")
        self.assertCarried(client.ask("connect", port=port), "sdp")

    def test_infiniSock(self) -> None:
        """
        Programs of sockets and programs of messages share a number on one device; either side may know
        one of the two only.
        """
        server, client = self.start(), self.start()
        port = server.ask("listen")["port"]
        server.ask("listenEndpoint", endpoint=f"ib:{port}:interface=127.0.0.1", name="messages")
        self.assertCarried(client.ask("connect", port=port), "sdp")
        found = client.ask("connectEndpoint", endpoint=f"ib:127.0.0.1:{port}")
        self.assertEqual((found["provider"], found["server"]), ("rdma", "messages"))
        sockets = server.ask("listen")["port"]
        messages = server.ask("listenEndpoint", endpoint="ib:0:interface=127.0.0.1")["port"]
        for call, arguments in (
            ("connect", {"port": messages}),
            ("connectEndpoint", {"endpoint": f"sdp:127.0.0.1:{messages}"}),
            ("connectEndpoint", {"endpoint": f"ib:127.0.0.1:{sockets}"}),
        ):
            error = self.assertRaises(ChildError, client.ask, call, **arguments)
            self.assertEqual(error.kind, "ConnectionRefusedError")
