"""
A process that has the servers of streams for a test in another one: C{agent.py DEVICE ADDRESS PORT}.

It is asked by TCP at the port.  A question and its answer are pickled, each behind its length in 4 octets.
"""

from __future__ import annotations

import pickle
import sys
from types import FunctionType
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.protocols.basic import Int32StringReceiver

from tests.internet.remote.standing import standing

#: The longest question.
MOST = 64 << 20
#: In an answer: a value, a method that may be called, what cannot be sent, and an exception.
VALUE, METHOD, UNSENT, RAISED = range(4)


def functionOf(described: tuple[bytes, str]) -> Any:
    """
    @param described: the code, marshalled, and the name of the module whose names it uses.
    @return: the function.
    """
    import marshal
    from importlib import import_module

    code, module = described
    return FunctionType(marshal.loads(code), vars(import_module(module)))


class Agent(Int32StringReceiver):
    """
    Answers one test.
    """

    MAX_LENGTH = MOST
    factory: Agents

    def stringReceived(self, data: bytes) -> None:
        """
        Answer a question: a method of this class, and its arguments.
        """
        name, *rest = pickle.loads(data)
        try:
            found: tuple[int, Any] = getattr(self, f"do_{name}")(*rest)
            answer = pickle.dumps(found)
        except Exception as error:
            try:
                answer = pickle.dumps((RAISED, error))
            except Exception:
                answer = pickle.dumps((RAISED, RuntimeError(repr(error))))
        self.sendString(answer)

    def do_listen(self, protocols: list[tuple[str, dict[str, tuple[bytes, str]]]]) -> tuple[int, Any]:
        """
        Listen with protocols.

        @return: their numbers, that of the port, and its address.
        """
        from tests.internet import carriers

        owner = self.factory
        made = [
            getattr(carriers, kind)(**{name: functionOf(each) for name, each in on.items()})
            for kind, on in protocols
        ]
        port = owner.carrier.listen(owner.reactor, carriers.Accepting(*made))
        first = len(owner.objects)
        owner.objects += [*made, port]
        return VALUE, (list(range(first, first + len(made))), len(owner.objects) - 1, port.getHost())

    def _find(self, number: int, path: str) -> Any:
        found = self.factory.objects[number]
        for name in path.split("."):
            found = getattr(found, name)
        return found

    def do_get(self, number: int, path: str) -> tuple[int, Any]:
        """
        @return: an attribute.
        """
        return self._shown(self._find(number, path))

    def do_call(self, number: int, path: str, arguments: tuple[Any, ...]) -> tuple[int, Any]:
        """
        @return: what a method returns; nothing, of a Deferred.
        """
        found = self._find(number, path)(*arguments)
        if isinstance(found, Deferred):
            found.addErrback(lambda failure: None)
            return VALUE, None
        return self._shown(found)

    def do_standing(self) -> tuple[int, list[str]]:
        """
        @return: how things stand here.
        """
        return VALUE, [f"there: {line}" for line in standing(self.factory.reactor)]

    @staticmethod
    def _shown(found: Any) -> tuple[int, Any]:
        try:
            pickle.dumps(found)
        except Exception:
            return (METHOD if callable(found) else UNSENT), type(found).__name__
        # A method of an object that can be pickled could be, too.
        return (METHOD, "") if callable(found) else (VALUE, found)


class Agents(Factory):
    """
    Has the ends.

    @ivar objects: protocols and ports, by number.
    """

    protocol: Any = Agent
    noisy = False

    def __init__(self, reactor: Any, carrier: Any) -> None:
        self.reactor, self.carrier = reactor, carrier
        self.objects: list[Any] = []


def main(device: str, address: str, port: str) -> None:
    """
    Answer.
    """
    from twisted_ib.reactor import ibreactor

    ibreactor.install()
    from twisted.internet import reactor as installed

    from tests.internet.carriers import SDP

    reactor: Any = installed
    reactor.listenTCP(int(port), Agents(reactor, SDP(device, address)))
    print("listens", flush=True)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
