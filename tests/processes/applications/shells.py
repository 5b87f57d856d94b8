"""
Children with conch: an SSH server whose only command echoes, and a client.
"""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from twisted.conch.avatar import ConchUser
from twisted.conch.ssh import channel, common, connection, session, userauth
from twisted.conch.ssh.factory import SSHFactory
from twisted.conch.ssh.keys import Key
from twisted.conch.ssh.transport import SSHClientTransport
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
from zope.interface import implementer

from tests.processes.programs.child import Program

USER, PASSWORD = b"user", b"secret"


class EchoBack(Protocol):
    """
    The command: sends back what comes.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Bytes came.
        """
        transport: Any = self.transport
        transport.write(data)


class EchoSession(session.SSHSession):
    """
    A session that runs one command, whatever its name.
    """

    def request_exec(self, data: bytes) -> int:
        """
        Start the command.
        """
        command = EchoBack()
        self.client = session.SSHSessionProcessProtocol(self)
        command.makeConnection(self.client)
        self.client.makeConnection(session.wrapProtocol(command))
        return 1


@implementer(IRealm)
class Realm:
    """
    Everybody may have a session.
    """

    def requestAvatar(self, avatarId: object, mind: object, *interfaces: Any) -> tuple[Any, Any, Any]:
        """
        @return: an avatar with the echo session.
        """
        user = ConchUser()
        user.channelLookup[b"session"] = EchoSession
        return interfaces[0], user, lambda: None


class Authentication(userauth.SSHUserAuthClient):
    """
    Knows the password.
    """

    def getPassword(self, prompt: object = None) -> Deferred[bytes]:
        """
        @return: the password.
        """
        return succeed(PASSWORD)

    def getPublicKey(self) -> None:
        """
        There is none.
        """
        return None


class Channel(channel.SSHChannel):
    """
    The client's session: sends, and collects the echo.
    """

    name = b"session"
    conn: Any

    def channelOpen(self, specificData: bytes) -> None:
        """
        Run the command and send.
        """
        self._missing = len(self.conn.message)
        self._digest = hashlib.sha256()
        self.conn.sendRequest(self, b"exec", common.NS(b"echo"), wantReply=1).addCallback(
            lambda _: self.write(self.conn.message)
        )

    def dataReceived(self, data: bytes) -> None:
        """
        A part of the echo came.
        """
        self._missing -= len(data)
        self._digest.update(data)
        if not self._missing:
            self.conn.done.callback(self._digest.hexdigest())


class Connection(connection.SSHConnection):
    """
    The client's connection: opens one channel.
    """

    def __init__(self, message: bytes, done: Deferred[str]) -> None:
        """
        @param message: what to send.
        @param done: fired with the hash of the echo.
        """
        super().__init__()
        self.message, self.done = message, done

    def serviceStarted(self) -> None:
        """
        We are in.
        """
        self.openChannel(Channel(conn=self))


class Transport(SSHClientTransport):
    """
    The client's transport.
    """

    def __init__(self, wanted: Connection) -> None:
        """
        @param wanted: started behind the authentication.
        """
        self._wanted = wanted

    def verifyHostKey(self, hostKey: bytes, fingerprint: bytes) -> Deferred[int]:
        """
        Any key will do here.
        """
        return succeed(1)

    def connectionSecure(self) -> None:
        """
        Log in.
        """
        self.requestService(Authentication(USER, self._wanted))


class Shell(Program):
    """
    SSH server or client.
    """

    async def do_listen(self, endpoint: str) -> int:
        """
        Listen.

        @param endpoint: the server's endpoint string.

        @return: the port.
        """
        factory: Any = SSHFactory()
        key = Key(Ed25519PrivateKey.generate())
        factory.publicKeys = {key.sshType(): key.public()}
        factory.privateKeys = {key.sshType(): key}
        checker = InMemoryUsernamePasswordDatabaseDontUse(**{USER.decode(): PASSWORD})
        factory.portal = Portal(Realm(), [checker])
        port: Any = await serverFromString(self.reactor, endpoint).listen(factory)
        return int(port.getHost().port)

    async def do_echo(self, endpoint: str, length: int) -> bool:
        """
        Log in, run the command, send so many bytes.

        @param endpoint: the client's endpoint string.
        @param length: how many bytes.

        @return: whether the echo was the same.
        """
        message = bytes(range(256)) * (length // 256)
        done: Deferred[str] = Deferred()
        transport: Any = await clientFromString(self.reactor, endpoint).connect(
            Factory.forProtocol(lambda: Transport(Connection(message, done)))
        )
        digest = await done
        transport.loseConnection()
        return digest == hashlib.sha256(message).hexdigest()
