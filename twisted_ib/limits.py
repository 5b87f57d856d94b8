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
#: Queue pair numbers, unknown here, that a path remembers to have refused.
ABSENT_NUMBERS = 1024

LOCK_ATTEMPTS = 200
"""
How often a process tries to lock a run directory before it gives up.
"""

LOCK_PAUSE_SECONDS = 0.005
"""
How long it sleeps between two of those attempts.
"""

RUN_DIRECTORY_ENTRIES = 65536
"""
Entries of one run directory that a search looks at.
"""

LOOKUPS_REMEMBERED = 1024
"""
Services whose HCA is remembered while the run directories do not change.
"""

RECLAIMED_ENTRIES = 256
"""
Entries of dead processes that one HCA removes when it opens.
"""

RENDEZVOUS_BACKLOG = 128
"""
Processes whose connection to an HCA the kernel keeps until it is accepted.
"""

HANDSHAKE_BYTES = 512
"""
The largest message of a handshake, an answer to a query excepted.
"""

ANSWER_BYTES = 16384
"""
The largest answer to a query.
"""

PROGRAM_BYTES = 128
"""
The longest program name in a handshake, in bytes of UTF-8.
"""

REFUSAL_BYTES = 256
"""
The longest text of a refusal in a handshake, in bytes of UTF-8.
"""

HANDSHAKE_SECONDS = 5.0
"""
How long a peer may take for its part of a handshake.
"""

QUERY_SECONDS = 0.2
"""
How long an asker waits for the answer of an HCA.
"""

INQUIRIES = 16
"""
Commands that ask about one HCA of packets at a time; the oldest gives way.
"""

LOCAL_ADDRESSES = 256
"""
Addresses of this host that an HCA shows as GIDs.
"""

DESCRIBED_GIDS = 96
"""
GIDs that the answer to a query has, which then surely fits into L{ANSWER_BYTES}.
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
#: The longest times that a REQ may ask us to give its sender: a timeout code,
#: about eight seconds.
CM_RESPONSE_TIMEOUT_CODE = 21
#: The shortest, 0.27 s: nobody is sent many answers at once in another's name.
CM_RESPONSE_TIMEOUT_CODE_LEAST = 16
#: The longest time that an MRA may ask for, once per message that it is about.
CM_SERVICE_TIMEOUT_CODE = 21
#: Ended connections whose ids are still reserved; over it the next to expire
#: goes early.
CM_TIMEWAIT = 2048
#: Messages that wait for the medium; over it they count as lost.
CM_OUTPUTS = 65536
#: Events that wait for the consumer; over it a new REQ counts as lost.
CM_EVENTS = 131072
#: Deadlines that are no longer meant, beyond as many as are.
CM_IDLE_DEADLINES = 64
#: Lookups of datagram services that wait for an answer.
CM_LOOKUPS = 65536
#: Lookups of one path that our consumers have not answered; over it more count as lost.
CM_LOOKUPS_PER_PATH = 4096
#: The same of all paths together.
CM_LOOKUPS_PATHS = 65536
#: Answers that are kept in case that the same is asked again; over it the oldest goes.
CM_LOOKUPS_ANSWERED = 2048
#: How long they are kept: longer than RDMA-CM's time between two repetitions.
CM_LOOKUP_SECONDS = 9.0
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
#: Addresses of one name that a connect tries.
RESOLVED_ADDRESSES = 16
#: Rounds of REQs, of about eight seconds each, before a connect without a
#: timeout gives up; about as long as Linux repeats a SYN.
CONNECT_ROUNDS = 16

# -- SDP

#: Receives that each SDP connection keeps posted; all are announced in Hello.
SDP_RECEIVES = 64
#: Below this many they are posted again.
SDP_RECEIVES_LOW = 32
#: When the peer knows of fewer than this many it is told by an empty Data
#: message, unless data carries the news.
SDP_CREDITS_LOW = 40
#: The fewest bytes of the stream that a peer's receives may hold.  OFED's hold
#: 32768; far below that the work per message outweighs the data, and nothing but
#: malice makes one message of each byte.
SDP_LEAST_PAYLOAD = 1024
#: Receives of a connection while memory is short: data needs three credits
#: (annex A4, CA4-82), and one message without data must leave as many.
SDP_RECEIVES_LEAST = 4
#: Receives that are left for control messages when data has come.
SDP_CONTROL_RECEIVES = 2
#: Messages that one connection sends before others have a turn.
MESSAGES_PER_FLUSH = 64
#: A producer is paused above this many bytes waiting, as on any transport.
SEND_BUFFER = 64 * 1024
#: Bytes that one process holds for readers that are paused.  From half of it
#: on connections get L{SDP_RECEIVES_LEAST} receives; beyond it the connection
#: that holds most is aborted: which TCP does not do, so there is room for what all
#: receives of 256 connections can bring.
HELD_BYTES = 1024 * 1024 * 1024
#: Seconds that a closed connection waits for the peer's part of the closing
#: (OFED's SDP_FIN_WAIT_TIMEOUT).
FIN_WAIT_SECONDS = 60.0
#: Closed connections that wait so; the oldest is aborted for one more.
CLOSING_CONNECTIONS = 4096
#: Advertisements of zero copy (SrcAvail, SinkAvail) that one connection takes, each way:
#: our MaxAdverts.
SDP_ADVERTS = 16
#: READs and WRITEs that one stream has on their way.
SDP_TRANSFERS = 32
#: Bytes that one READ brings for C{dataReceived}.
SDP_READ = 256 * 1024
#: The same into registered memory.
SDP_READ_REGISTERED = 1024 * 1024
#: What was read is reported when it is this much, or all.
SDP_REPORT = 1024 * 1024
#: Registered memory that is shorter than this is copied and goes as Data.  Between processes of
#: a host that costs less up to here, and is faster; with more the two cross.
SDP_ZERO_COPY_LEAST = 512 * 1024
#: A READ goes to a place of the application if that has so many bytes, or all that is left.
SDP_PLACE_LEAST = 16 * 1024
#: Bytes that the application wrote are written into a place of the peer's from this many on.
SDP_WRITE_LEAST = 8 * 1024
#: What a SrcAvail in Combined mode carries of its buffer: as much as keeps the rest aligned.
SDP_CARRIED = 64
#: A connection that keeps alive and is idle gives a sign of life after this many seconds
#: (OFED's default, and TCP's).
SDP_KEEP_ALIVE_SECONDS = 7200.0

# -- the shared-memory fabric

#: Bytes of a socket's send buffer where sockets carry the records; Linux doubles
#: it for what it counts besides the data.
CARRIER_BUFFER = 256 * 1024
#: Pairs (paths and handshakes) that one HCA has, if an eighth of RLIMIT_NOFILE
#: is not less.
PEERS = 1024
#: Of those, the ones that one process has dialled: a quarter of them where
#: RLIMIT_NOFILE is the usual 1024.
PEERS_PER_PROCESS = 32
#: Of those, handshakes that are not done.
HANDSHAKES_PER_PROCESS = 16
#: The part of the pairs that one user who is not ours has dialled: one of so many.
PEERS_USER_DIVISOR = 4
#: How long nobody listens when no descriptor is free, in seconds.
ACCEPT_PAUSE_SECONDS = 0.1
#: Descriptors of peers that one turn looks at.
DESCRIPTORS_PER_TURN = 64
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
#: Messages of at least this many bytes may be pulled from offered memory.
PULL_LEAST = 16 * 1024
#: Bytes of offered memory that one record moves: one copy in one turn.
PULL_MOST = 1024 * 1024
#: Regions that one end of a path offers the other to map.
OFFERED_SEGMENTS = 64
#: Bytes of those; more travel in records.  Mapping them costs a 512th, 32 MiB, of
#: page tables, and 1024 peers take an eighth of a process's 128 TiB.
OFFERED_BYTES = 16 << 30
#: Offered regions that one device maps (Linux: 65530 mappings per process).
OFFERED_SEGMENTS_PER_DEVICE = 16384
#: Batches that one turn of a reactor without polling serves of a device.
BATCHES_PER_TURN = 16

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
#: HCAs that queue pairs of one device wait to meet.
MEETINGS = 4096
#: The first pause of a queue pair that looks for an HCA which is not there, in seconds.
MEETING_SECONDS = 0.02
#: The pauses double up to this.
MEETING_SECONDS_MOST = 0.32
#: The most bytes that a send request carries in itself (Linux rxe: 444).
INLINE_DATA = 1024
#: Asynchronous events that wait for the program; the oldest stay, and what comes on top is
#: counted as lost.
ASYNC_EVENTS = 1024
#: The path MTU of a device of operations, and so the longest datagram.
DATAGRAM_BYTES = 4096
#: Datagrams for one HCA that wait until the way to it is found; more are lost, as on a wire.
DATAGRAMS_UNRESOLVED = 64
#: Datagrams of one device that wait, for their way or for room on it: 16 MiB.
DATAGRAMS_WAITING = 4096
#: How long messages of an unreliable connection wait until the way to the peer is found.
UNRELIABLE_WAIT_SECONDS = 5.0
#: Receives that wait in one shared receive queue (Linux rxe: 2^20).
SHARED_RECEIVE_DEPTH = 32768
#: The most completions, and the most microseconds, that one event of a completion queue
#: waits for: what verbs has 16 bits for.
COMPLETION_MODERATION = 65535
#: Binds of one memory window of type 1 that are posted and not done.
WINDOW_PROMISES = WORK_QUEUE_DEPTH

# -- fabrics of packets

#: Sockets that one device sends from, so that a flow has a source port of its own; more flows share them.
PACKET_SOCKETS = 64
#: Octets that such a device asks the kernel to keep for it, each way.
PACKET_BUFFER = 8 * 1024 * 1024
#: Datagrams of one call, and octets.
PACKET_BURST = 62
PACKET_BURST_BYTES = 62 * 1024
#: Packets that one queue pair sends before others have their turn.
PACKET_OUTPUTS = 128
#: Peers' flows whose checksums are remembered in part, and for each of them the sizes of packets.
PACKET_FLOWS = 1024
PACKET_SIZES = 128
#: The same for those that go to no connection.
PACKET_SIZES_OF_STRANGERS = 8
#: Exchanges of peers by whose transaction they are answered; the oldest are forgotten.
PACKET_TRANSACTIONS = 1024
#: Requests for something new that wait until the rest is taken, over which the oldest goes; and how many
#: are answered before the next look at what has arrived.
PACKET_QUESTIONS = 512
PACKET_QUESTIONS_PER_TURN = 32
#: How long what does not fit into a socket waits, in seconds.
PACKET_PAUSE_SECONDS = 0.001
#: Queue pairs of streams that are gone and still send what they had, and how long, in seconds.
PACKET_LINGERING = 1024
PACKET_LINGER_SECONDS = 10.0
#: Multicast groups that one device listens to, each by a socket.
PACKET_GROUPS = 256
#: Connections of streams that have a part of a message, each at most INLINE_RECORD; others wait (RNR).
PACKET_PARTIAL = 1024
#: The least time between two congestion notifications for one queue pair, in seconds.
PACKET_NOTIFICATION_SECONDS = 50e-6
#: Messages of streams of so many bytes leave before the end of a batch.
PACKET_PROMPT = 1024
#: For how long a reactor looks for an answer before it sleeps, if that pays, in seconds: from another
#: process that looks, too, and by packets from who has to wake up first.
ANSWER_SECONDS = 50e-6
PACKET_ANSWER_SECONDS = 0.0002
#: Who is heard of again within this time, in seconds, waits for acknowledgements until nothing comes.
PACKET_PATIENCE_SECONDS = 0.0005
#: The longest time from a message of connection management to its answer that counts as a round trip,
#: in seconds.
PACKET_ROUND_TRIP_SECONDS = 3.0
#: What a REQ of ours says of the time to an acknowledgement, a timeout code: 0.5 s.
PACKET_ACK_TIMEOUT_CODE = 17
#: How long a stream waits for one at least, eight times, a timeout code: 4.3 s.
PACKET_STREAM_TIMEOUT_CODE = 20

# -- messages and RDMA for Twisted (ib:)

#: The longest message of a connection, unless its user says otherwise.
RDMA_MESSAGE = 64 * 1024
#: What a user may say: a message is put together in memory.
RDMA_MESSAGE_MOST = 64 * 1024 * 1024
#: Receives that one connection promises while its protocol reads.
RDMA_RECEIVES = 64
#: Send requests that one connection has on the way; more wait behind them.
RDMA_SENDS = 128
#: READs and atomics that one connection has on the way, each way.
RDMA_READS = 16
#: Messages and requests that wait behind those leave in one turn, before others have theirs.
RDMA_SENDS_PER_FLUSH = 64

# -- streams over reliable datagrams (rds: endpoints)

#: Bytes of a stream in one datagram: with the frame's header one fragment of an operation fabric.
RDS_SEGMENT = 64 * 1024 - 32
#: Bytes of a stream that wait at the end that reads.
RDS_STREAM_WINDOW = 512 * 1024
#: Streams of one RDS port, and those with one (address, port) of a peer.
RDS_STREAMS = 16384
RDS_STREAMS_PER_PEER = 4096
#: Bytes that all streams of one port hold for protocols that do not read.
RDS_STREAMS_HELD = 128 * 1024 * 1024
#: What each piece of them counts for besides its bytes: a peer may send pieces of two.
RDS_STREAM_PIECE = 64
#: Answers to datagrams of no stream that wait; more are dropped.
RDS_STREAM_ANSWERS = 256
#: The time between two OPENs, and how long nothing is heard until a peer is asked, in seconds.
RDS_STREAM_OPEN_SECONDS = 1.0
RDS_STREAM_PROBE_SECONDS = 10.0
#: How often a peer is asked in vain: then it is gone.
RDS_STREAM_PROBES = 3
#: How long a socket with streams may have no room at all: then the peers that most of what waits is for
#: lose their streams, in seconds.
RDS_STREAM_STALL_SECONDS = 5.0

# -- reliable datagrams (RDS)

#: The longest datagram (Linux: RDS_MAX_MSG_SIZE).
RDS_MESSAGE = 1 << 20
#: What the small datagrams count for that leave together, between processes of a host; each as below.
RDS_BUNDLE = 32 * 1024
#: Bytes of datagrams that one socket has waiting or on the way; the one that reaches this is taken.
RDS_SEND_BUDGET = 2 * 1024 * 1024
#: What a datagram counts for besides its bytes, here and where it waits to be read: empty ones wait too.
RDS_DATAGRAM_OVERHEAD = 256
#: Of the bytes, what may wait for one destination that is congested: it does not use up what others have.
RDS_CONGESTED_BUDGET = 1024 * 1024
#: The same for all its congested destinations.
RDS_HELD_BUDGET = 16 * 1024 * 1024
#: Destinations whose path one process and device remembers.
RDS_ROUTES = 65536
#: Bytes that wait to be read at one socket before its port is marked as congested.
RDS_RECEIVE_BUDGET = 2 * 1024 * 1024
#: Bytes that one socket holds in any case: what is on its way when its port is marked is taken.  Over
#: it the connections that bring more are not read.
RDS_RECEIVE_MOST = 16 * 1024 * 1024
#: Answers to pings that wait on one path; more are not given.
RDS_PONGS = 256
#: Pings of one socket that wait for their answer.
RDS_PINGS = 1024
#: How long a peer has to answer the first probe once it has acknowledged it, in seconds.
RDS_PROBE_SECONDS = 1.0
#: A message asks for an acknowledgement when so many, or so many bytes, have not (RC; Linux:
#: max_unacked_packets, max_unacked_bytes).
RDS_UNACKNOWLEDGED = 8
RDS_UNACKNOWLEDGED_BYTES = 16 * 1024 * 1024
#: The pauses between attempts to connect double from the first to the second, in seconds.
RDS_RECONNECT_SECONDS = 0.001
RDS_RECONNECT_SECONDS_MOST = 1.0
#: The least of them where the peer has to connect, and is reminded.
RDS_NUDGE_SECONDS = 0.2
#: How long who asks says no to who asks him: longer than a REQ takes to be answered, in seconds.
RDS_DUEL_SECONDS = 0.5
#: How long one attempt may take, in seconds.
RDS_CONNECT_SECONDS = 10.0
#: A peer that cannot be reached for so long is told as gone, in seconds.
RDS_GONE_SECONDS = 10.0
#: How often a peer is sent something while all that there is for it is held back, in seconds.
RDS_HELD_SECONDS = 10.0
#: Paths of one process and device; an idle one makes place for another.
RDS_PATHS = 4096
#: Those that one process of the host may announce.
RDS_SESSION_PATHS = RDS_PATHS // 4
#: Sockets of one process and device.
RDS_SOCKETS = 65534
#: How long a socket that is closed goes on sending what waits, in seconds.
RDS_LINGER_SECONDS = 5.0
#: Datagrams that one socket that was paused is given, or one process to itself, before others have a turn.
RDS_MESSAGES_PER_TURN = 64
#: Bytes that wait for a TCP socket before it has no room, and that are read from one at a time.
RDS_TCP_BUFFER = 256 * 1024
#: Bytes that are still read from a TCP connection when it ends: more than Linux holds (tcp_rmem: 6 MiB).
RDS_TCP_DRAIN = 16 * 1024 * 1024
#: Seconds between two looks at what a TCP peer has acknowledged: doubling from the first to the second.
RDS_TCP_LOOK_SECONDS = 0.001
RDS_TCP_LOOK_SECONDS_MOST = 0.05
#: TCP keepalive: idle, interval (seconds), probes (Linux net/rds/tcp.c).
RDS_TCP_KEEPALIVE = (5, 5, 5)
#: Bytes of a message in one fragment between processes of a host; and the receives and sends of one
#: queue pair.
RDS_FRAGMENT = INLINE_MESSAGE
RDS_RECEIVES = 256
RDS_SENDS = 256
#: Bytes that come between processes of a host from one that was told to send nothing: a ring, and what
#: was before it.
RDS_PAUSED = 16 * 1024 * 1024
#: How long an acknowledgement between processes of a host waits for more of them, in seconds.
RDS_ACK_SECONDS = 0.005
#: The longest RDMA operation, in bytes; how many of one socket, and on one queue pair, are on their way.
RDS_OPERATION = 16 * 1024 * 1024
RDS_OPERATIONS = 256
RDS_OPERATIONS_POSTED = 64
#: Regions of memory of one socket.
RDS_REGIONS = 4096
#: How often a masked atomic is tried that others come in between of.
RDS_ATOMIC_ATTEMPTS = 64
#: Queue pairs of one process and device.
RDS_SESSIONS = 4096
#: HCAs that were not there, and how long what they have published is not looked at, in seconds.
RDS_DEAD = 4096
RDS_DEAD_SECONDS = 60.0

# -- rules of the offload switch

#: Bytes of a file of rules.
POLICY_FILE_BYTES = 256 * 1024
#: Statements of one file: each listen and connect may look at all of them.
POLICY_STATEMENTS = 4096
#: Devices that one file adds.
POLICY_DEVICES = 64
#: Errors that are told of one file.
POLICY_ERRORS = 20
#: The longest time of a C{timeout} statement, in seconds.
POLICY_SECONDS = 86400.0
#: Programs for which a policy remembers which of its rules are theirs.
POLICY_PROGRAMS = 64

# -- the packet transport

#: Packets that a requester has on the way without an acknowledgement (Linux rxe: 128).
TRANSPORT_WINDOW = 128
#: Of those, the first ones of a connection, until it is known what the way takes.
TRANSPORT_WINDOW_FIRST = 32
#: A requester asks for an acknowledgement after so many packets, at the latest.
TRANSPORT_ACKNOWLEDGE = 64
#: A responder that is patient acknowledges after so many, at the latest.
TRANSPORT_DEFERRED = 16
#: Packets of the answer to a READ that are asked for at a time: a longer READ is asked for in
#: parts, so that what is lost of it costs no more than a part.
TRANSPORT_READ = 64
#: Records, and bytes of them, that a connection keeps until they are acknowledged; it takes one
#: record more than that.
TRANSPORT_RECORDS = 512
TRANSPORT_BYTES = 1024 * 1024
#: Bytes of answers to a peer's READs that wait to be sent; one record more than that.
TRANSPORT_ANSWERS = 512 * 1024
#: The shortest and the longest time, in seconds, until what is not acknowledged is sent again;
#: the longest is three round trips if those take longer.
TRANSPORT_RESEND_LEAST = 0.01
TRANSPORT_RESEND_MOST = 2.0
#: The same before a round trip was measured.
TRANSPORT_RESEND_FIRST = 0.5
#: Packets of an unreliable connection that come so far behind the expected one are copies.
TRANSPORT_BEHIND = 1024

# -- ib-perf

#: The longest message; perftest's -a ends here too.
PERF_MESSAGE = 8 * 1024 * 1024
#: Queue pairs of one test.
PERF_QUEUE_PAIRS = 16384
#: Bytes that all its queue pairs have for one message each.
PERF_MEMORY = 1024 * 1024 * 1024
#: Repetitions of one measurement on each queue pair, and the seconds of a timed one.
PERF_ITERATIONS = 1_000_000_000
PERF_SECONDS = 24 * 3600
#: Bytes of one line of the talk between server and client.
PERF_LINE = 4096
#: Connections of a server that have not said yet what they are for, and how long they may.
PERF_STRANGERS = 256
PERF_HELLO_SECONDS = 10.0
#: Connections that a client makes at a time.
PERF_CONNECTING = 32
#: Requests that a queue pair has on the way while bandwidth is measured.
PERF_DEPTH = 16
#: Distinct times that are kept beside the histogram.
PERF_DISTINCT = 65536

# -- ib-ping

#: Of rds-stress: tasks of one side, and requests of one on the way to another.
PERF_TASKS = 64
PERF_DEPTH = 4096
#: How long it goes on answering at its end, in seconds.
PERF_SETTLE_SECONDS = 0.2
#: Rounds that a client may be asked for.
PING_COUNT = (1 << 31) - 1
#: Connections of one program.
PING_CONNECTIONS = 1024
#: The least time between two pings of RDS, and how long the answer to the last is waited for, in seconds.
RDS_PING_INTERVAL = 0.001
RDS_PING_SECONDS = 5.0
#: Clients that a persistent server has at a time; more are refused.
PING_CLIENTS = 256
#: Bytes of one message of ucmatose's, and of those that all connections of a program have memory for.
PING_MESSAGE = 64 * 1024 * 1024
PING_MEMORY = 1024 * 1024 * 1024

# -- captures

#: Bytes of a capture file that wait to be written.
CAPTURE_BUFFER = 256 * 1024
#: How long they wait at most, while packets come, in nanoseconds.
CAPTURE_NANOSECONDS = 1_000_000_000
#: Queue pairs and connections that a capture has heard of, each kind; the oldest are forgotten.
CAPTURE_ENDS = 65536
#: Flows that a capture remembers whose queue pair is gone or never was.
CAPTURE_ENDED_FLOWS = 1024

# -- the offload protocol switch

#: TCP sockets on one port that are looked at; with more a connection goes over TCP.
TCP_LISTENERS = 1024
#: Lines of the kernel's table of TCP sockets that are read where netlink is refused.
TCP_TABLE_LINES = 16384
#: Counters of a switch that its devices show, those that count most.
SWITCH_COUNTERS_SHOWN = 32
#: The longest place of a rule in the name of such a counter.
SWITCH_COUNTER_NAME = 96
#: Listeners whose SDP has failed that one reactor remembers; the oldest are forgotten.
OFFLOADS_REMEMBERED = 1024

# -- ib-ss

#: Rows of one page of an answer about listeners and connections, and places where one is looked for.
SOCKETS_PER_PAGE = 100
#: The longest text of a row, in characters, that of a rule's place excepted.
SOCKET_TEXT = 256
#: The longest place of a rule.
SOCKET_RULE = 1024
#: How long one page may take to come, and all pages of one process, in seconds.
SOCKETS_PAGE_SECONDS = 1.0
SOCKETS_SECONDS = 20.0
#: Rows that are taken of one process.
SOCKETS_LISTED = 1 << 18
#: Bytes of answers that are taken of one process: enough for so many rows as they mostly are.
SOCKETS_BYTES = 1 << 26
#: The shortest and the longest time between two pictures of C{--watch}, in seconds.
WATCH_SECONDS_LEAST = 0.1
WATCH_SECONDS_MOST = 3600.0
