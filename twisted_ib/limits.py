"""
Every bound of twisted_ib by name: queues, tables, windows, loops and timers.

Sizes are bytes, times are seconds, the rest are counts.
"""

from __future__ import annotations

MEMORY_REGIONS = 1 << 20
"""
Memory regions that one device registers at a time (Linux rxe: 2^20).
"""

PROTECTION_DOMAINS = 1 << 20
"""
Protection domains that one device holds at a time.
"""

REGION_BYTES = 1 << 40
"""
The largest memory region.
"""

COMPLETION_QUEUE_DEPTH = 32768
"""
The deepest completion queue, in completions (Linux rxe: 2^15).
"""

# -- rings and records

#: Bytes of one ring, per direction; a power of two.  Far more than the processors' own caches
#: hold: writing over what another processor's cache still has is three times slower.
RING = 4 * 1024 * 1024
#: Of those, bytes that are used as long as there is no bulk; a power of two.
RING_WINDOW = 256 * 1024
#: Bytes of bulk that the reader of a ring may be behind, and of anything that of a queue in memory:
#: what small messages wait for at most.
RING_BULK = 3 * 1024 * 1024
#: The most stream bytes that one record carries.
INLINE_MESSAGE = 64 * 1024
#: The longest record: a message and its headers.
INLINE_RECORD = INLINE_MESSAGE + 64
#: Bytes of each ring that ordinary records leave free: room for management
#: records and refusals, without which two full rings could block each other.
RING_RESERVE = 8 * 1024
#: Of those, bytes that only refusals use.
REFUSAL_RESERVE = 1024
#: Records that one turn takes from one path before others have theirs.
RECORDS_PER_TURN = 64
#: Inline sends that one queue pair may have waiting for room in the medium.
INLINE_SENDS = 8

RUN_DIRECTORY_ENTRIES = 65536
"""
Entries of one run directory that a search looks at.
"""

ANSWER_BYTES = 16384
"""
The largest answer to a query.
"""

PROGRAM_BYTES = 128
"""
The longest program name in a handshake, in bytes of UTF-8.
"""

LOCAL_ADDRESSES = 256
"""
Addresses of this host that an HCA shows as GIDs.
"""

# -- communication manager

#: Connections that one source has asked for and that are not open yet, if the
#: source is a path to a process that we know.
CM_HALF_OPEN_PER_PATH = 4096
#: The same of all paths together.
CM_HALF_OPEN_PATHS = 65536
#: The same if the source is an address, which anybody can write on a datagram.
CM_HALF_OPEN_PER_ADDRESS = 64
#: The same of all addresses together.
CM_HALF_OPEN_ADDRESSES = 4096
#: Connections in one table, whatever their state.
CM_CONNECTIONS = 1 << 18
#: The same of one path: over it the path's own REQs count as lost, while others
#: have room.
CM_CONNECTIONS_PER_PATH = 1 << 16
#: Events that wait for the consumer; over it a new REQ counts as lost.
CM_EVENTS = 131072
#: Lookups of datagram services that wait for an answer.
CM_LOOKUPS = 65536
#: Requests that wait at one identifier of verbs that was given no backlog.
CM_BACKLOG = 1024

# -- SDP ports and connectors

#: Requests that may wait at one port, whatever its backlog.
LISTEN_BACKLOG = 4096
#: Connections that one port accepts in one turn of the reactor.
ACCEPTS_PER_TURN = 100
#: Port numbers that are tried when any will do, for a port of IPv4 and IPv6
#: and for an active side.
PORT_ATTEMPTS = 64
#: Spellings of IP addresses whose usual or packed form is remembered.
ADDRESSES_REMEMBERED = 256

# -- SDP

#: Receives that each SDP connection keeps posted; all are announced in Hello.
SDP_RECEIVES = 64
#: When the peer knows of fewer than this many it is told by an empty Data
#: message, unless data carries the news.
SDP_CREDITS_LOW = 40
#: The fewest bytes of the stream that a peer's receives may hold.  OFED's hold
#: 32768; far below that the work per message outweighs the data, and nothing but
#: malice makes one message of each byte.
SDP_LEAST_PAYLOAD = 1024
#: Messages that one connection sends before others have a turn.
MESSAGES_PER_FLUSH = 64
#: A producer is paused above this many bytes waiting, as on any transport.
SEND_BUFFER = 64 * 1024
#: Bytes that one process holds for readers that are paused.  From half of it
#: on connections get L{SDP_RECEIVES_LEAST} receives; beyond it the connection
#: that holds most is aborted: which TCP does not do, so there is room for what all
#: receives of 256 connections can bring.
HELD_BYTES = 1024 * 1024 * 1024
#: Advertisements of zero copy (SrcAvail, SinkAvail) that one connection takes, each way:
#: our MaxAdverts.
SDP_ADVERTS = 16
#: READs and WRITEs that one stream has on their way.
SDP_TRANSFERS = 32
#: Registered memory that is shorter than this is copied and goes as Data.  Between processes of
#: a host that costs less up to here, and is faster; with more the two cross.
SDP_ZERO_COPY_LEAST = 512 * 1024
#: A connection that keeps alive and is idle gives a sign of life after this many seconds
#: (OFED's default, and TCP's).
SDP_KEEP_ALIVE_SECONDS = 7200.0

# -- the shared-memory fabric

#: Pairs (paths and handshakes) that one HCA has, if an eighth of RLIMIT_NOFILE
#: is not less.
PEERS = 1024
#: Of those, the ones that one process has dialled: a quarter of them where
#: RLIMIT_NOFILE is the usual 1024.
PEERS_PER_PROCESS = 32
#: The part of the pairs that one user who is not ours has dialled: one of so many.
PEERS_USER_DIVISOR = 4
#: Management records that one path keeps while its ring is full.
MANAGEMENT_SENDS = 16384
#: Queue pairs of one device (Linux rxe: 2^20).
QUEUE_PAIRS = 1 << 20

# -- work requests

#: The deepest send or receive queue, in requests.
WORK_QUEUE_DEPTH = 16384
#: Elements of one scatter/gather list (Linux rxe: 32).
SCATTER_GATHER_ELEMENTS = 32
#: The longest message (IBTA vol. 1 9.7.7.1.3).
MESSAGE_BYTES = 1 << 31
#: READs and atomics that one queue pair has on the way, each way (Linux rxe: 128).
READS = 128
#: Bytes of offered memory that one record moves: one copy in one turn.
PULL_MOST = 1024 * 1024
#: Bytes of those; more travel in records.  Mapping them costs a 512th, 32 MiB, of
#: page tables, and 1024 peers take an eighth of a process's 128 TiB.
OFFERED_BYTES = 16 << 30

# -- verbs objects

#: Completion queues of one device (Linux rxe: 2^16, rounded up here).
COMPLETION_QUEUES = 1 << 18
#: Completion channels of one device.
COMPLETION_CHANNELS = 1 << 16
#: Shared receive queues of one device.
SHARED_RECEIVE_QUEUES = 1 << 16
#: Address handles of one device (Linux rxe: 2^15).
ADDRESS_HANDLES = 1 << 15
#: Memory windows of one device (Linux rxe: 2^20).
MEMORY_WINDOWS = 1 << 20
#: Multicast groups that one device has queue pairs in (Linux rxe: 8192).
MULTICAST_GROUPS = 8192
#: Queue pairs of one device in one multicast group (Linux rxe: 56).
MULTICAST_QUEUE_PAIRS = 56
#: HCAs of one host in one multicast group that a datagram is sent to.
MULTICAST_MEMBERS = 256
#: The most bytes that a send request carries in itself (Linux rxe: 444).
INLINE_DATA = 1024
#: Asynchronous events that wait for the program; the oldest stay, and what comes on top is
#: counted as lost.
ASYNC_EVENTS = 1024
#: The path MTU of a device of operations, and so the longest datagram.
DATAGRAM_BYTES = 4096
#: Datagrams for one HCA that wait until the way to it is found; more are lost, as on a wire.
DATAGRAMS_UNRESOLVED = 64
#: Receives that wait in one shared receive queue (Linux rxe: 2^20).
SHARED_RECEIVE_DEPTH = 32768
#: The most completions, and the most microseconds, that one event of a completion queue
#: waits for: what verbs has 16 bits for.
COMPLETION_MODERATION = 65535

# -- fabrics of packets

PACKET_BURST_BYTES = 62 * 1024
#: Packets that one queue pair sends before others have their turn.
PACKET_OUTPUTS = 128
#: Peers' flows whose checksums are remembered in part, and for each of them the sizes of packets.
PACKET_FLOWS = 1024
PACKET_SIZES = 128
#: For how long a reactor looks for an answer before it sleeps, if that pays, in seconds: from another
#: process that looks, too, and by packets from who has to wake up first.
ANSWER_SECONDS = 50e-6
#: How long a stream waits for one at least, eight times, a timeout code: 4.3 s.
PACKET_STREAM_TIMEOUT_CODE = 20

# -- messages and RDMA for Twisted (ib:)

#: The longest message of a connection, unless its user says otherwise.
RDMA_MESSAGE = 64 * 1024
#: What a user may say: a message is put together in memory.
RDMA_MESSAGE_MOST = 64 * 1024 * 1024
#: Receives that one connection promises while its protocol reads.
RDMA_RECEIVES = 64
#: READs and atomics that one connection has on the way, each way.
RDMA_READS = 16

# -- streams over reliable datagrams (rds: endpoints)

#: Streams of one RDS port, and those with one (address, port) of a peer.
RDS_STREAMS = 16384
RDS_STREAMS_PER_PEER = 4096
#: What each piece of them counts for besides its bytes: a peer may send pieces of two.
RDS_STREAM_PIECE = 64

# -- reliable datagrams (RDS)

#: The longest datagram (Linux: RDS_MAX_MSG_SIZE).
RDS_MESSAGE = 1 << 20
#: Bytes of datagrams that one socket has waiting or on the way; the one that reaches this is taken.
RDS_SEND_BUDGET = 2 * 1024 * 1024
#: What a datagram counts for besides its bytes, here and where it waits to be read: empty ones wait too.
RDS_DATAGRAM_OVERHEAD = 256
#: Destinations whose path one process and device remembers.
RDS_ROUTES = 65536
#: Bytes that wait to be read at one socket before its port is marked as congested.
RDS_RECEIVE_BUDGET = 2 * 1024 * 1024
#: Paths of one process and device; an idle one makes place for another.
RDS_PATHS = 4096
#: Sockets of one process and device.
RDS_SOCKETS = 65534
#: Datagrams that one socket that was paused is given, or one process to itself, before others have a turn.
RDS_MESSAGES_PER_TURN = 64
#: Bytes that are still read from a TCP connection when it ends: more than Linux holds (tcp_rmem: 6 MiB).
RDS_TCP_DRAIN = 16 * 1024 * 1024
#: The longest RDMA operation, in bytes; how many of one socket, and on one queue pair, are on their way.
RDS_OPERATION = 16 * 1024 * 1024
#: Regions of memory of one socket.
RDS_REGIONS = 4096

# -- rules of the offload switch

#: Errors that are told of one file.
POLICY_ERRORS = 20

# -- the packet transport

#: Packets that a requester has on the way without an acknowledgement (Linux rxe: 128).
TRANSPORT_WINDOW = 128
#: Packets of the answer to a READ that are asked for at a time: a longer READ is asked for in
#: parts, so that what is lost of it costs no more than a part.
TRANSPORT_READ = 64
#: Records, and bytes of them, that a connection keeps until they are acknowledged; it takes one
#: record more than that.
TRANSPORT_RECORDS = 512
TRANSPORT_BYTES = 1024 * 1024
#: The shortest and the longest time, in seconds, until what is not acknowledged is sent again;
#: the longest is three round trips if those take longer.
TRANSPORT_RESEND_LEAST = 0.01

# -- ib-perf

#: The longest message; perftest's -a ends here too.
PERF_MESSAGE = 8 * 1024 * 1024
#: Queue pairs of one test.
PERF_QUEUE_PAIRS = 16384
#: Repetitions of one measurement on each queue pair, and the seconds of a timed one.
PERF_ITERATIONS = 1_000_000_000
PERF_SECONDS = 24 * 3600
PERF_HELLO_SECONDS = 10.0
#: Connections that a client makes at a time.
PERF_CONNECTING = 32
#: Requests that a queue pair has on the way while bandwidth is measured.
PERF_DEPTH = 16

# -- ib-ping

#: Of rds-stress: tasks of one side, and requests of one on the way to another.
PERF_TASKS = 64
PERF_DEPTH = 4096
#: Rounds that a client may be asked for.
PING_COUNT = (1 << 31) - 1

# -- captures

# -- the offload protocol switch

# -- ib-ss

#: The longest place of a rule.
SOCKET_RULE = 1024
