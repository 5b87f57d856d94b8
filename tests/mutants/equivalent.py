"""
Mutants that behave as the module does: no test can tell them, and none is asked to.

An entry is found by its module and the text of its line, not the line's number: it moves with its line, and
one that matches nothing any more is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from tests.mutants.mutations import Mutation, mutations


@frozen
class Equivalent:
    """
    One mutant that cannot be told from its module.

    @ivar path: The module's, below the root.
    @ivar line: The line on which the change begins, without the blanks around it.
    @ivar before: What is changed.
    @ivar after: What comes there.
    @ivar reason: Why nobody can see it.
    @ivar times: On so many lines of this text.
    """

    path: str
    line: str
    before: str
    after: str
    reason: str
    times: int = 1

    def matches(self, path: str, source: str, mutation: Mutation) -> bool:
        """
        @return: Whether this is that mutant of a module.
        """
        return (
            self.path == path
            and (self.before, self.after) == (mutation.before, mutation.after)
            and self.line == source.splitlines()[mutation.line - 1].strip()
        )


_AIO = "twisted_ib/aio"
_DRIVE = "twisted_ib/drive"
_REACTOR = "twisted_ib/reactor"
_BLOCKING = "twisted_ib/blocking"
_CONNECTION = f"{_BLOCKING}/connection.py"
_INBOX = "twisted_ib/sdp/inbox.py"
_RSOCKET = "twisted_ib/verbs/c/rsocket"

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        f"{_AIO}/listening.py",
        "_draws = False",
        "False",
        "True",
        "adopt(), which makes all of these servers, sets it",
    ),
    Equivalent(
        f"{_AIO}/loop.py",
        "server_side: bool = False,",
        "False",
        "True",
        "the default of an argument that asyncio always gives",
    ),
    Equivalent(
        f"{_AIO}/named.py",
        'flags=options.get("flags", 0),',
        "0",
        "1",
        "AI_PASSIVE says nothing where a host is given (getaddrinfo(3)), as it is here",
    ),
    Equivalent(
        f"{_AIO}/streamsocket.py",
        'warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)',
        "2",
        "3",
        "a finalizer's caller is whatever ran just then",
    ),
    Equivalent(
        f"{_AIO}/streamsocket.py",
        "os.eventfd_write(first._descriptor, 1)",
        "1",
        "2",
        "every write is an event, whatever is added (eventfd(2))",
    ),
    Equivalent(
        f"{_AIO}/transport.py",
        "if self._protocol_paused and self._stream.unsent() <= self._low_water:",
        "self._protocol_paused and self._stream.unsent() <= self._low_water",
        "(self._protocol_paused or self._stream.unsent() <= self._low_water)",
        "asyncio's own method, which is called then, asks the same",
    ),
    Equivalent(
        _CONNECTION,
        '_ERRQUEUE: Final = int(getattr(kernel, "MSG_ERRQUEUE", 0))',
        "0",
        "1",
        "Linux has it",
    ),
    Equivalent(
        _CONNECTION,
        "self.descriptor, self.inode, self.forks, self.looked = -1, 0, 0, 0",
        "1",
        "2",
        "no descriptor either",
    ),
    Equivalent(
        _CONNECTION,
        "self.descriptor, self.inode, self.forks, self.looked = -1, 0, 0, 0",
        "0",
        "1",
        "offload() sets the others with the descriptor, before which nobody asks; a fork counts twice",
        times=3,
    ),
    Equivalent(
        _CONNECTION,
        'self.kept, self.holder = -1, ""',
        "1",
        "2",
        "no descriptor either",
    ),
    Equivalent(
        _CONNECTION,
        "return timeout",
        "timeout",
        "None",
        "only L{None} comes here: no other asks the descriptor",
    ),
    Equivalent(
        _CONNECTION,
        "if inbox.start or not len(pieces[0]) == inbox.size <= size:",
        "len(pieces[0]) == inbox.size <= size",
        "(len(pieces[0]) == inbox.size < size)",
        "the longer way takes the same",
    ),
    Equivalent(
        _INBOX,
        "if start or len(data) > size:",
        "len(data) > size",
        "(len(data) >= size)",
        "all of a piece is the piece",
    ),
    Equivalent(
        _INBOX,
        "if pieces and len(data) < size:",
        "pieces and len(data) < size",
        "(pieces or len(data) < size)",
        "with no more to take, or nothing to take it from, nothing is taken",
    ),
    Equivalent(
        _INBOX,
        "if pieces and len(data) < size:",
        "len(data) < size",
        "(len(data) <= size)",
        "with no more to take nothing is taken",
    ),
    Equivalent(
        _CONNECTION,
        "elif len(data) > SEND_BYTES:",
        "len(data) > SEND_BYTES",
        "(len(data) >= SEND_BYTES)",
        "all of it is it",
    ),
    Equivalent(
        _CONNECTION,
        "if data.__class__ is bytes and len(data) <= SEND_BYTES:",
        "data.__class__ is bytes",
        "(data.__class__ is not bytes)",
        "one piece or many are sent alike",
    ),
    Equivalent(
        _CONNECTION,
        "if data.__class__ is bytes and len(data) <= SEND_BYTES:",
        "len(data) <= SEND_BYTES",
        "(len(data) < SEND_BYTES)",
        "one piece or many are sent alike",
    ),
    Equivalent(
        f"{_BLOCKING}/socket.py",
        "octets = found.to_bytes(4, sys.byteorder, signed=True) if isinstance(found, int) else found",
        "4",
        "5",
        "an octet more of the sign",
    ),
    *(
        Equivalent(
            f"{_BLOCKING}/select.py",
            "return (result if maxevents < 0 else result[:maxevents]), isOver",
            before,
            after,
            "poll() has refused 0",
        )
        for before, after in (("0", "1"), ("maxevents < 0", "(maxevents <= 0)"))
    ),
    Equivalent(
        "twisted_ib/reactor/driven.py",
        "isEarly = monotonic() < self._askAt",
        "monotonic() < self._askAt",
        "(monotonic() <= self._askAt)",
        "the clock has nanoseconds",
    ),
    Equivalent(
        "twisted_ib/reactor/driven.py",
        "result = self._aside(call, seconds if limit is None or seconds < limit else limit)",
        "seconds < limit",
        "(seconds <= limit)",
        "of two equal times it is the same which is taken",
    ),
    Equivalent(
        "twisted_ib/reactor/driven.py",
        "elif calm is not None and (limit is None or calm < limit):",
        "calm < limit",
        "(calm <= limit)",
        "of two equal times it is the same which is taken",
    ),
    Equivalent(
        "twisted_ib/reactor/driven.py",
        "self._sleep(BRIEF_SECONDS if limit is None or limit > BRIEF_SECONDS else limit, kernel)",
        "limit > BRIEF_SECONDS",
        "(limit >= BRIEF_SECONDS)",
        "of two equal times it is the same which is taken",
    ),
    Equivalent(
        f"{_BLOCKING}/loop.py",
        "while self.isUnsent() and monotonic() < end:",
        "monotonic() < end",
        "(monotonic() <= end)",
        "a turn of no time more",
    ),
    Equivalent(
        f"{_BLOCKING}/loop.py",
        "over: bool | None = False",
        "False",
        "True",
        "of a lead that raises it counts only that this is not L{None}",
    ),
    Equivalent(
        f"{_DRIVE}/sleeper.py",
        "return MOST_SECONDS if seconds is None or seconds > MOST_SECONDS else max(seconds, 0.0)",
        "seconds > MOST_SECONDS",
        "(seconds >= MOST_SECONDS)",
        "of two equal times it is the same which is taken",
    ),
    Equivalent(
        f"{_DRIVE}/turn.py",
        "elif (due := each.deadline()) is not None and due < until:",
        "due < until",
        "(due <= until)",
        "of two equal times it is the same which is taken",
    ),
    Equivalent(
        f"{_DRIVE}/turn.py",
        "if most is not None and most < seconds:",
        "most < seconds",
        "(most <= seconds)",
        "of two equal times it is the same which is taken",
    ),
    Equivalent(
        f"{_DRIVE}/turn.py",
        "return MOST_SECONDS if seconds > MOST_SECONDS else max(seconds, 0.0)",
        "seconds > MOST_SECONDS",
        "(seconds >= MOST_SECONDS)",
        "of two equal times it is the same which is taken",
    ),
    Equivalent(
        f"{_DRIVE}/waiter.py",
        "self.bell, self.alarm, self.grace, self.leaves = -1, -1, grace, 0",
        "1",
        "2",
        "no descriptor either",
        times=2,
    ),
    Equivalent(
        f"{_DRIVE}/waiter.py",
        "self.bell, self.alarm, self.grace, self.leaves = -1, -1, grace, 0",
        "0",
        "1",
        "who becomes the deputy sets it",
    ),
    Equivalent(
        f"{_DRIVE}/waiter.py",
        "os.eventfd_write(self.bell, 1)",
        "1",
        "2",
        "every write is an event, whatever is added (eventfd(2))",
    ),
    Equivalent(
        f"{_REACTOR}/loop.py",
        "return calm if calm > 0.0 else 0.0",
        "calm > 0.0",
        "(calm >= 0.0)",
        "0.0 is 0.0 either way",
        times=2,
    ),
    Equivalent(
        f"{_REACTOR}/tcprows.py",
        "_INFO_BYTES = 136",
        "136",
        "137",
        "an octet more of the kernel's structure, which nobody reads",
    ),
    Equivalent(
        f"{_REACTOR}/ibreactor.py",
        "if self.bell >= 0 and not self.registered:",
        "self.bell >= 0",
        "(self.bell > 0)",
        "the pipe of Twisted's waker comes first, and takes descriptor 0",
    ),
    Equivalent(
        f"{_REACTOR}/ibreactor.py",
        "os.eventfd_write(self.bell, 1)",
        "1",
        "2",
        "every write is an event, whatever is added (eventfd(2))",
    ),
    Equivalent(
        "twisted_ib/hca/device/addressing/subnet.py",
        "def check(self, key: int, number: int = 0) -> int:",
        "0",
        "1",
        "other kinds of peers read it",
    ),
    Equivalent(
        "twisted_ib/hca/host/addresses.py",
        "_DISCARD_PORT = 9",
        "9",
        "10",
        "any port would do",
    ),
    Equivalent(
        "twisted_ib/drive/process.py",
        "fd, self.fd = self.fd, -1",
        "1",
        "2",
        "no descriptor either",
    ),
    Equivalent(
        "twisted_ib/hca/host/query.py",
        "dead: bool = False",
        "False",
        "True",
        "askSockets(), which makes all of these, sets it",
    ),
    Equivalent(
        "twisted_ib/hca/host/rendezvous.py",
        "os.chmod(self.name, 0o666 if home.shared else 0o600, dir_fd=home.fd)",
        "0o666",
        "439",
        "nobody executes a socket",
    ),
    Equivalent(
        "twisted_ib/hca/host/rendezvous.py",
        "inode = self._inodes.pop(key, 0)",
        "0",
        "1",
        "what has none here has no name either, and nothing is undone",
    ),
    Equivalent(
        "twisted_ib/hca/host/rendezvous.py",
        "watch, self.watch = self.watch, -1",
        "1",
        "2",
        "no descriptor either",
    ),
    Equivalent(
        "twisted_ib/hca/host/rendezvous.py",
        "self.watch = -1",
        "1",
        "2",
        "no descriptor either",
    ),
    Equivalent(
        "twisted_ib/hca/host/rundirectory.py",
        "for extra in (0, os.O_CREAT | os.O_EXCL, 0):",
        "0",
        "1",
        "flock(2) asks not for what the file is open",
        times=2,
    ),
    Equivalent(
        "twisted_ib/hca/host/search.py",
        "if found and max(stamps) < time_ns() - _SETTLED_NANOSECONDS:",
        "max(stamps) < time_ns() - _SETTLED_NANOSECONDS",
        "(max(stamps) <= time_ns() - _SETTLED_NANOSECONDS)",
        "the clock has nanoseconds",
    ),
    Equivalent(
        "twisted_ib/queues/broadcast.py",
        "memory, self._memory = self._memory, -1",
        "1",
        "2",
        "no descriptor either",
    ),
    Equivalent(
        "twisted_ib/queues/futex.py",
        "_call(_FUTEX, addressOf(cells, cell), _WAIT, value & 0xFFFFFFFF, ctypes.addressof(until), None, 0)",
        "0",
        "1",
        "FUTEX_WAIT has no sixth argument (futex(2))",
    ),
    Equivalent(
        "twisted_ib/queues/futex.py",
        "_call(_FUTEX, addressOf(cells, cell), _WAKE, _EVERYBODY, None, None, 0)",
        "0",
        "1",
        "FUTEX_WAKE has no sixth argument (futex(2))",
    ),
    Equivalent(
        "twisted_ib/queues/queue.py",
        "SINCE: Final = SENDER + 1",
        "1",
        "2",
        "one of the cells that nobody has",
    ),
    Equivalent(
        "twisted_ib/queues/queue.py",
        "TAKING: Final = SINCE + 1",
        "1",
        "2",
        "one of the cells that nobody has",
    ),
    Equivalent(
        "twisted_ib/queues/locks.py",
        "def __init__(self, fd: int = -1) -> None:",
        "1",
        "2",
        "no descriptor either",
    ),
    Equivalent(
        "twisted_ib/queues/locks.py",
        "if result == 0:",
        "0",
        "1",
        "the way for what is no error ends in the same",
    ),
    Equivalent(
        "twisted_ib/rdma/gathering.py",
        "count = _COUNT.unpack_from(buffer, start)[0] if size >= _COUNT.size else 0",
        "size >= _COUNT.size",
        "(size > _COUNT.size)",
        "a SEND of the number alone is refused, whatever it says",
    ),
    Equivalent(
        "twisted_ib/rdma/requests.py",
        "self._numbers = number = self._numbers + 1",
        "1",
        "2",
        "a number that no other request has",
        times=3,
    ),
    Equivalent(
        "twisted_ib/rdma/requests.py",
        "while sent and (first := next(iter(sent))) < number:",
        "(first := next(iter(sent))) < number",
        "((first := next(iter(sent))) <= number)",
        "the number is a READ's, and none of those is among what was sent",
    ),
    Equivalent(
        "twisted_ib/rdma/successor.py",
        "def startTLS(self, contextFactory: object, normal: bool = True) -> None:",
        "True",
        "False",
        "it always raises",
    ),
    Equivalent(
        "twisted_ib/rdma/transport.py",
        "def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:",
        "False",
        "True",
        "nobody reads it",
    ),
    Equivalent(
        "twisted_ib/rdma/receiving.py",
        "self._takesMessages = False",
        "False",
        "True",
        "the first message asks the protocol",
    ),
    Equivalent(
        "twisted_ib/switch/switch.py",
        "break",
        "break",
        "continue",
        "nothing changes any more in the few turns that are left",
    ),
    Equivalent(
        "twisted_ib/verbs/c/cm/rsockets.py",
        "if not canRead and waits and isPolled:",
        "not canRead and waits and isPolled",
        "(not canRead or waits or isPolled)",
        "a look more finds nothing that a later one would not",
    ),
    Equivalent(
        "twisted_ib/verbs/c/verbs/queues.py",
        "made.pd = pdAt(attr.pd) if attr.comp_mask & _S.IBV_SRQ_INIT_ATTR_PD else None",
        "attr.comp_mask & _S.IBV_SRQ_INIT_ATTR_PD",
        "(attr.comp_mask | _S.IBV_SRQ_INIT_ATTR_PD)",
        "without that bit it is EINVAL, whatever the domain",
    ),
    *(
        Equivalent(
            "twisted_ib/verbs/c/functions.py",
            "AGAIN = -(1 << 30)",
            before,
            after,
            "any number that no function gives would do",
        )
        for before, after in (("1", "2"), ("30", "31"))
    ),
    Equivalent(
        "twisted_ib/verbs/c/rsocket/stream.py",
        "requester.enqueue(request, True)",
        "True",
        "False",
        "what fits is looked at once more",
        times=2,
    ),
    Equivalent(
        "twisted_ib/verbs/c/building/sharedobject.py",
        "buckets = [0] * max(1, len(names) // 2)",
        "1",
        "2",
        "each symbol is found with any number of buckets",
    ),
    Equivalent(
        "twisted_ib/verbs/c/building/sharedobject.py",
        "size += -size % 16",
        "16",
        "17",
        "where code begins is all the same to the processor",
    ),
    Equivalent(
        "twisted_ib/verbs/c/umad/ports.py",
        "return AddressVector(0, lid=lid, serviceLevel=sl, isGlobal=False)",
        "0",
        "1",
        "without a GRH there is no GID, and nobody reads it",
    ),
    Equivalent(
        "twisted_ib/verbs/c/verbs/queues.py",
        "send_ops_flags=attr.send_ops_flags if extended else 0,",
        "0",
        "1",
        "nobody reads what the mask does not name",
    ),
    Equivalent(
        f"{_RSOCKET}/stream.py",
        "self.edges += 1",
        "1",
        "2",
        "a number that is not the one before is another edge",
        times=4,
    ),
    Equivalent(
        f"{_RSOCKET}/protocol.py",
        "self.peerMaps = 0",
        "0",
        "1",
        "only a connection is asked for it, which has the peer's greeting",
    ),
    Equivalent(
        f"{_RSOCKET}/protocol.py",
        "_HALF_SEQUENCE: Final = 0x8000",
        "0x8000",
        "32769",
        "two numbers are no further apart than a queue is deep",
    ),
    Equivalent(
        f"{_RSOCKET}/protocol.py",
        "return self._unshown >= self._half or (self._read - self._due & _SEQUENCE) < _HALF_SEQUENCE",
        "(self._read - self._due & _SEQUENCE) < _HALF_SEQUENCE",
        "(self._read - self._due & _SEQUENCE <= _HALF_SEQUENCE)",
        "two numbers are no further apart than a queue is deep",
    ),
)


def without(
    modules: Mapping[str, str], known: Iterable[Equivalent] = EQUIVALENT
) -> list[tuple[str, Mutation]]:
    """
    @param modules: Sources by path.

    @return: All mutations of modules but those that are known to be equivalent, each with its path.

    @raise LookupError: An entry for one of these modules matches no mutant, or more than it says.
    """
    every = {path: mutations(source) for path, source in modules.items()}
    for entry in known:
        if entry.path in modules:
            own = every[entry.path]
            found = [each for each in own if entry.matches(entry.path, modules[entry.path], each)]
            if len(found) != entry.times:
                raise LookupError(f"{len(found)} mutants match {entry}")
            every[entry.path] = [each for each in own if each not in found]
    return [(path, each) for path, own in every.items() for each in own]
