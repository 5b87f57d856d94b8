"""
C{ib-ping --as} C{ucmatose}, C{udaddy} and C{mckey} against those programs.
"""

from __future__ import annotations

from tests.interop.case import GuestTestCase, InteropTestCase, Program
from tests.support.waiting import HANG_SECONDS

SECONDS = HANG_SECONDS
#: A group, and its GID's end.
GROUP = "239.1.2.3"


class Messages(GuestTestCase):
    """
    C{ucmatose}: messages over connections, port 7471.
    """

    options = ("-C", "20", "-S", "3000", "-c", "3")

    def asClient(self) -> None:
        """
        Send to C{ucmatose}'s server, and receive.
        """
        server = self.listening(f"ucmatose -b {self.there} {' '.join(self.options)}")
        client = self.ping("--as", "ucmatose", "-s", self.there, "-b", self.host, *self.options)
        self.succeeded(client.finish(SECONDS))
        self.succeeded(self.guest.finish(server, SECONDS))

    def asServer(self) -> None:
        """
        Serve C{ucmatose}.
        """
        server = self.ping("--as", "ucmatose", "-d", "-b", self.host, *self.options)
        self.until(server, "waits")
        client = self.start(f"ucmatose -s {self.host} -b {self.there} {' '.join(self.options)}")
        self.succeeded(self.guest.finish(client, SECONDS))
        self.succeeded(server.finish(SECONDS))


class MessagesTests(Messages, InteropTestCase):
    """
    With rxe, IPv4.
    """

    def test_client(self) -> None:
        """
        We are the client.
        """
        self.asClient()

    def test_server(self) -> None:
        """
        We are the server.
        """
        self.asServer()


class MessagesIPv6Tests(MessagesTests):
    """
    IPv6.
    """

    ipv6 = True


class RepliesTests(InteropTestCase):
    """
    C{udaddy}: datagrams and their answers, port 7174; who has which queue pair is asked for by SIDR.
    """

    options = ("-C", "20", "-S", "900")

    def test_client(self) -> None:
        """
        We are the client.
        """
        server = self.listening(f"udaddy -b {self.there} {' '.join(self.options)}", "UDP")
        client = self.ping("--as", "udaddy", "-s", self.there, "-b", self.host, *self.options)
        self.succeeded(client.finish(SECONDS))
        self.succeeded(self.guest.finish(server, SECONDS))

    def test_server(self) -> None:
        """
        We are the server.
        """
        server = self.ping("--as", "udaddy", "-d", "-b", self.host, *self.options)
        self.until(server, "waits")
        client = self.start(f"udaddy -s {self.host} -b {self.there} {' '.join(self.options)}")
        self.succeeded(self.guest.finish(client, SECONDS))
        self.succeeded(server.finish(SECONDS))


class RepliesIPv6Tests(RepliesTests):
    """
    IPv6.
    """

    ipv6 = True


class GroupTests(InteropTestCase):
    """
    C{mckey}: datagrams to a multicast group.  rxe joins no IPv6 group.
    """

    options = ("-m", GROUP, "-C", "10", "-S", "900")

    def test_sender(self) -> None:
        """
        We send.
        """
        receiver = self.start(f"mckey -b {self.there} {' '.join(self.options)}")
        self.guest.must(f"until ip maddr show dev eth0 | grep -q {GROUP}; do sleep 0.1; done; sleep 1")
        sender = self.ping("--as", "mckey", "-s", "-b", self.host, *self.options)
        self.succeeded(sender.finish(SECONDS))
        self.succeeded(self.guest.finish(receiver, SECONDS))

    def test_receiver(self) -> None:
        """
        We receive; rxe, too, is in the group.
        """
        self.looped = 10
        receiver: Program = self.ping("--as", "mckey", "-d", "-b", self.host, *self.options)
        self.until(receiver, "joined")
        sender = self.start(f"mckey -s -b {self.there} {' '.join(self.options)}")
        self.succeeded(self.guest.finish(sender, SECONDS))
        self.succeeded(receiver.finish(SECONDS))
