"""
The limits of twisted_ib by name: queues, tables, windows, loops and timers.

Sizes are bytes, times are seconds, the rest are counts.
"""

from __future__ import annotations

#: Memory regions of one device (Linux rxe: 2^20).
MEMORY_REGIONS = 1 << 20
#: Protection domains of one device.
PROTECTION_DOMAINS = 1 << 20
#: The largest memory region.
REGION_BYTES = 1 << 40

#: The deepest completion queue (mlx5's): programs ask for hundreds of thousands; memory is taken by use.
COMPLETION_QUEUE_DEPTH = 1 << 22
#: Completions of a queue that a C program can take without Python; a power of 2.
COMPLETION_RING = 64
#: Octets of requests that C programs have posted and Python has not taken, of all their queues.
POSTED = 64 * 1024
#: Polls in vain of a C program's thread that make progress each, since something was found or posted.
EAGER_POLLS = 64
#: Polls in vain after which such a thread makes progress at least once.
POLL_PAUSE = 4096

#: Modules that follow the forks, or the end, of a process.
PROCESS_HANDLERS = 32
#: Objects with finalizers that are older than the package, and remembered one by one.
KEPT_OBJECTS = 256

# -- rings and records

#: One direction's ring, a power of two.  Far larger than the CPU's own caches: overwriting what another CPU
#: still has in its cache is three times slower.
RING = 4 * 1024 * 1024
#: The part of the ring that is used while there is no bulk data; a power of two.
RING_WINDOW = 256 * 1024
#: Bulk data that the reader of a ring may be behind, and any data that the reader of a queue in memory may
#: be: the most that a small message waits for.
RING_BULK = 3 * 1024 * 1024
#: Streams of a path that say what is left of them when their process dies; the end of others is a reset then.
LAST_WORDS = 224
#: The most stream bytes of one record.
INLINE_MESSAGE = 64 * 1024
#: The longest record: a message and its headers.
INLINE_RECORD = INLINE_MESSAGE + 64
#: Ring space that ordinary records leave free for management records and refusals, without which two full
#: rings could block each other.
RING_RESERVE = 8 * 1024
#: The part of it that only refusals use.
REFUSAL_RESERVE = 1024
#: Records processed from one path before other paths have their turn.
RECORDS_PER_TURN = 64
#: Inline sends of one queue pair that wait for space in the medium.
INLINE_SENDS = 8

#: Entries of one run directory that a search reads: other users may fill it.
RUN_DIRECTORY_ENTRIES = 65536
#: The part of them that one other user may have in a shared directory.
RUN_DIRECTORY_ENTRIES_PER_USER = 16384
#: Descriptors of inotify(7) kept for the next HCAs, as closing one takes long: a user has 128.
SPARE_WATCHES = 2

#: The largest answer to a query.
ANSWER_BYTES = 16384

#: The longest program name in a handshake, in bytes of UTF-8.
PROGRAM_BYTES = 128

#: Addresses of this host in an HCA's GID table.
LOCAL_ADDRESSES = 256

# -- communication manager

#: Half-open connections of one source: requested, not yet established (SYN floods: RFC 4987).  For a path to
#: a process, which the kernel has identified.
CM_HALF_OPEN_PER_PATH = 4096
#: The same for all paths together.
CM_HALF_OPEN_PATHS = 65536
#: The same for an IP address, which anyone can forge: as many as one program makes (ucmatose -c 1000).
CM_HALF_OPEN_PER_ADDRESS = 1024
#: Seconds for which an address that has shown itself keeps each of its half-open connections: longer than a
#: peer that lives usually takes from our REP to its RTU, and so short that ten thousand forged REQs a second
#: find CM_HALF_OPEN_PER_ADDRESS places, with the owner's among them.
CM_HALF_OPEN_SECONDS = 0.1
#: The same for all addresses together.  Those that have shown themselves are sure of half, and so are those
#: that have not.
CM_HALF_OPEN_ADDRESSES = 4096
#: Connections in one table, in any state.
CM_CONNECTIONS = 1 << 18
#: The same for one path: above it the path's REQs are dropped, while other paths have space.
CM_CONNECTIONS_PER_PATH = 1 << 16
#: The least time, in seconds, that an answer may take where no message is lost (RFC 9293 section 3.8.3, R2 of
#: a SYN: 3 minutes): the peer's process lives, but may be short of CPU.
CM_ANSWER_SECONDS = 180.0
#: Connections that both ends knew and that have ended, of whose ids a REP or RTU that was overtaken draws no
#: REJ; above it the oldest is forgotten.
CM_ENDED = 8192
#: For so long, in seconds: the longest time after which we repeat a message that draws one.
CM_ENDED_SECONDS = 9.0
#: Events that wait for the consumer; above it new REQs are dropped, and repeated (IBTA vol. 1 12.6.5).
CM_EVENTS = 131072
#: SIDR lookups that wait for an answer (IBTA vol. 1 12.11).
CM_LOOKUPS = 65536
#: Requests that wait at a verbs identifier with backlog 0, as Linux C{ucma.c}, C{max_backlog}.
CM_BACKLOG = 1024

# -- ports and connectors

#: Requests that wait at one port, whatever its backlog.
LISTEN_BACKLOG = 4096
#: Connections that a port accepts in one turn of the reactor (C{twisted.internet.tcp.Port.numberAccepts}).
ACCEPTS_PER_TURN = 100
#: Ports tried when any will do, for a listener of IPv4 and IPv6 and for an active side.
PORT_ATTEMPTS = 64
#: IP addresses whose normalised or packed form is cached.
ADDRESSES_REMEMBERED = 256

# -- SDP

#: Receives that each SDP connection keeps posted; Hello announces all (IBTA vol. 1 annex A4).
SDP_RECEIVES = 64
#: When the peer knows of fewer receives it gets an empty Data message, unless data carries the update.
SDP_CREDITS_LOW = 40
#: The smallest receive buffers of a peer that are accepted.  OFED's hold 32768; with far smaller ones the
#: cost of each message exceeds that of its data, and only an attacker makes one message of each byte.
SDP_LEAST_PAYLOAD = 1024
#: Messages that one connection sends before others have their turn.
MESSAGES_PER_FLUSH = 64
#: Times that one producer is resumed before others have their turn.
PRODUCER_TURNS = 16
#: A producer is paused while more bytes wait (C{twisted.internet.abstract.FileDescriptor}, C{bufferSize}).
SEND_BUFFER = 64 * 1024
#: Bytes that a resumed producer may write beyond that: they leave as soon as it returns.
PRODUCER_AHEAD = 3 * INLINE_MESSAGE
#: Bytes that one process holds for paused readers.  From half of it on connections get L{SDP_RECEIVES_LEAST}
#: receives; beyond it the connection that holds most is aborted.  TCP never aborts for that, so it is enough
#: for all receives of 256 connections.
HELD_BYTES = 1024 * 1024 * 1024
#: Zero copy advertisements (IBTA vol. 1 annex A4) that one connection accepts, each way: our MaxAdverts.
SDP_ADVERTS = 16
#: READs and WRITEs of one stream that are outstanding.
SDP_TRANSFERS = 32
#: Shorter registered memory is copied and sent as Data: between processes of a host that is faster.
SDP_ZERO_COPY_LEAST = 512 * 1024
#: With keep-alive an idle connection probes its peer after so many seconds (RFC 1122 section 4.2.3.6).
SDP_KEEP_ALIVE_SECONDS = 7200.0

# -- the shared-memory fabric

#: Paths and handshakes of one HCA, unless an eighth of RLIMIT_NOFILE is less.
PEERS = 1024
#: The part of them that one process has dialled: a quarter of them with the usual RLIMIT_NOFILE of 1024.
PEERS_PER_PROCESS = 32
#: One in so many of them may be dialled by one other user.
PEERS_USER_DIVISOR = 4
#: Management records that wait for room in a path's medium: while there are so many, new requests to connect
#: are refused locally.
MANAGEMENT_SENDS = 16384
#: The same with the answers that a peer asks for, four for each of its connections: one that asks for more
#: and reads nothing loses its path.
MANAGEMENT_ANSWERS = 4 * CM_CONNECTIONS_PER_PATH
#: Entries of a port's P_Key table (common HCAs: 128).
PARTITIONS = 128
#: GIDs that a port itself has (IBTA vol. 1 14.2.5.5: GUIDInfo has at most 256).
PORT_GIDS = 256
#: Queue pairs of one device (Linux C{rxe_param.h}: 2^20).
QUEUE_PAIRS = 1 << 20

#: Sets of rsockets that a C program waits for by C{repoll_wait}.
RSOCKET_POLLS = 256

# -- work requests

#: The deepest send or receive queue, in work requests (Linux C{rxe_param.h}: RXE_MAX_QP_WR once was this).
WORK_QUEUE_DEPTH = 16384
#: The longest send queue that is a list, for an idle one; taking its first entry moves the others.
SHORT_SEND_QUEUE = 256
#: Elements of one scatter/gather list (Linux C{rxe_param.h}: 32).
SCATTER_GATHER_ELEMENTS = 32
#: The longest message (IBTA vol. 1 9.7.7).
MESSAGE_BYTES = 1 << 31
#: READs and atomics of one queue pair that are outstanding, each way (Linux C{rxe_param.h}: 128).
READS = 128
#: Bytes of offered memory that one record moves: one copy in one turn.
PULL_MOST = 1024 * 1024
#: Bytes of offered memory that is mapped; more travels in records.  Mapping costs a 512th in page tables, 32
#: MiB, and 1024 peers take an eighth of a process's 128 TiB.
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
#: Senders of datagrams that one consumer's queue pair remembers.
DATAGRAM_SOURCES = 1024
#: Multicast groups of one device (Linux C{rxe_param.h}: 8192).
MULTICAST_GROUPS = 8192
#: Queue pairs of one device in one multicast group (Linux C{rxe_param.h}: 56).
MULTICAST_QUEUE_PAIRS = 56
#: HCAs of one host in one multicast group that a datagram is copied to.
MULTICAST_MEMBERS = 256
#: The most inline data of a send request (Linux rxe: 444).
INLINE_DATA = 1024
#: Asynchronous events that wait for the program; further ones are dropped and counted.
ASYNC_EVENTS = 1024
#: The path MTU of a device of operations, and so its longest datagram (IBTA vol. 1 9.8.3).
DATAGRAM_BYTES = 4096
#: Datagrams for one HCA that wait for the path to it, or for room there: at most 4 MiB; more are lost, as in
#: the queue of a network interface (Linux has C{txqueuelen} 1000).
DATAGRAMS_QUEUED = 1024
#: Receives of one shared receive queue (Linux rxe: 2^20).
SHARED_RECEIVE_DEPTH = 32768
#: The most completions, and microseconds, that one event of a completion queue waits for: 16 bits in verbs.
COMPLETION_MODERATION = 65535

# -- fabrics of packets

#: Bytes of one send call with UDP segmentation: an IP packet before it has at most 65535 (C{udp(7)}).
PACKET_BURST_BYTES = 62 * 1024
#: Packets that one queue pair sends before others have their turn.
PACKET_OUTPUTS = 128
#: Flows whose partial invariant CRCs are cached, and packet sizes for each of them.
PACKET_FLOWS = 1024
PACKET_SIZES = 128
#: Services that one of the processes of an address listens for: rows of a table that they share.
PACKET_SERVICES = 4096
#: Connections of one of them that another ends if it dies, likewise.
PACKET_CONNECTIONS = 4096
#: The longest time, in seconds, that a reactor polls for an answer before it sleeps, if that pays.
ANSWER_SECONDS = 50e-6
#: The shortest local ACK timeout of a stream, a timeout code: 4.3 s, times eight tries.
PACKET_STREAM_TIMEOUT_CODE = 20

# -- messages and RDMA for Twisted (ib:)

#: The longest message of a connection, by default.
RDMA_MESSAGE = 64 * 1024
#: The longest that a user may choose: a message is reassembled in memory.
RDMA_MESSAGE_MOST = 64 * 1024 * 1024
#: Receives that one connection keeps posted while its protocol reads.
RDMA_RECEIVES = 64
#: The most bytes of a SEND of several messages; what each message counts beyond its own, for its length field
#: and so that a SEND of empty ones ends; and the longest message that is copied once more to go with others.
RDMA_GATHERED = 64 * 1024
RDMA_GATHERED_MESSAGE = 4096
RDMA_GATHERED_EACH = 32
#: A message waits for others to go with it when so many SENDs before it are on their way: answers go at once.
RDMA_GATHERS_BEHIND = 4
#: READs and atomics of one connection that are outstanding, each way.
RDMA_READS = 16

# -- streams over reliable datagrams (rds: endpoints)

#: Streams of one RDS port, and those with one (address, port) of a peer.
RDS_STREAMS = 16384
RDS_STREAMS_PER_PEER = 4096
#: The overhead that each piece of a stream counts for: a peer may send pieces of two bytes.
RDS_STREAM_PIECE = 64

# -- reliable datagrams (RDS)

#: The longest datagram (Linux net/rds/rds.h: RDS_MAX_MSG_SIZE).
RDS_MESSAGE = 1 << 20
#: Bytes of a socket's datagrams that wait or fly; what reaches this is accepted (Linux: SO_SNDBUF).
RDS_SEND_BUDGET = 2 * 1024 * 1024
#: The overhead that each datagram counts for, sending and receiving: empty ones wait too.
RDS_DATAGRAM_OVERHEAD = 256
#: Destinations whose path one process caches for each device.
RDS_ROUTES = 65536
#: Unread bytes of one socket before its port is marked as congested (Linux: SO_RCVBUF).
RDS_RECEIVE_BUDGET = 2 * 1024 * 1024
#: Paths of one process and device; an idle one is evicted for another.
RDS_PATHS = 4096
#: Sockets of one process and device.
RDS_SOCKETS = 65534
#: Datagrams delivered to one resumed socket, or within one process, before others have their turn.
RDS_MESSAGES_PER_TURN = 64
#: Bytes still read from a TCP connection that ends: more than Linux buffers (C{tcp(7)}, tcp_rmem: 6 MiB).
RDS_TCP_DRAIN = 16 * 1024 * 1024
#: The longest RDMA operation, in bytes.
RDS_OPERATION = 16 * 1024 * 1024
#: Memory regions of one socket.
RDS_REGIONS = 4096

# -- IP over InfiniBand (IPoIB)

#: Neighbours of one interface; the one that was confirmed longest ago is forgotten for another.
IPOIB_NEIGHBOURS = 4096
#: Packets that wait for a group, or requests for a path (Linux C{ipoib.h}: IPOIB_MAX_PATH_REC_QUEUE).
IPOIB_WAITING = 3
#: Octets of packets that wait for one neighbour (Linux C{unres_qlen_bytes}); over it the oldest gives way.
IPOIB_WAITING_BYTES = 212_992
#: A packet counts so many octets at least, about the memory of a small one in Linux.
IPOIB_WAITING_LEAST = 768
#: Addresses that users wait for at one neighbour.
IPOIB_LOOKUPS = 1024
#: Multicast groups of one interface; one only sent to, not for so many seconds, is left for another.
IPOIB_GROUPS = 1024
IPOIB_GROUP_SECONDS = 10.0
#: Connections of one interface, both directions together.
IPOIB_CONNECTIONS = 1024
#: Of them those that peers make, and those that peers at one port make: the rest are for packets to peers.
IPOIB_CONNECTIONS_INCOMING = 768
IPOIB_CONNECTIONS_PER_GID = 16
#: A connection, or a group only sent to, ends after so long without traffic (IPOIB_CM_RX_TIMEOUT).
IPOIB_IDLE_SECONDS = 512.0
#: A neighbour in use is confirmed this often.  With the next three it sets how long packets are lost when a
#: peer has been restarted with another queue pair, and has not been heard.
IPOIB_REACHABLE_SECONDS = 1.0
#: A neighbour that was not used for so long is forgotten.
IPOIB_STALE_SECONDS = 600.0
#: A neighbour is asked this often, in seconds, and so many times.
IPOIB_RETRY_SECONDS = 0.5
IPOIB_TRIES = 6
#: The first and longest wait before a group or a path is asked for again (Linux C{ipoib.h}, BACKOFF_SECONDS).
IPOIB_BACKOFF_LEAST = 1.0
IPOIB_BACKOFF_SECONDS = 16.0
#: After a connection was refused, packets go as datagrams for so many seconds.
IPOIB_RECONNECT_SECONDS = 10.0
#: ICMP errors that one interface makes in a second (Linux C{icmp_msgs_per_sec}), and its stack besides.
IPOIB_ERRORS_PER_SECOND = 1000
#: The same at once (Linux C{icmp_msgs_burst}).
ICMP_ERROR_BURST = 50

# -- rules of the offload switch

#: Errors reported for one file.
POLICY_ERRORS = 20

# -- the packet transport

#: Unacknowledged packets of a requester (Linux C{rxe_param.h}: RXE_MAX_UNACKED_PSNS, 128).
TRANSPORT_WINDOW = 128
#: Response packets that one READ asks for: a longer one is split, so that a loss costs a part only.
TRANSPORT_READ = 64
#: Records, and their bytes, that a connection keeps until they are acknowledged; it accepts one record more.
TRANSPORT_RECORDS = 512
TRANSPORT_BYTES = 1024 * 1024
#: The shortest time, in seconds, until unacknowledged packets are sent again (RFC 6298 section 2.4).
TRANSPORT_RESEND_LEAST = 0.01

# -- subnets

#: Nodes of a subnet, and traps of their ports that are sent or were sent just now.
SUBNET_NODES = 8192
SUBNET_TRAPS = 16384
#: Notices of one port that wait until a manager has read them; with a new one the oldest is forgotten.
SUBNET_NOTICES = 16
#: The shortest time, in seconds, until a trap is sent again, whatever SubnetTimeOut a subnet manager has set:
#: its codes begin with 4 us.
SUBNET_TRAP_LEAST = 0.1
#: Nodes of a topology file, its lines, and the characters of a line.
TOPOLOGY_NODES = 8192
TOPOLOGY_LINES = 262144
TOPOLOGY_LINE = 1024
#: A topology file, in octets.
TOPOLOGY_BYTES = 16 * 1024 * 1024
#: Links that a LID-routed packet passes at most: a wrong forwarding table may have made a loop.
SUBNET_HOPS = 64
#: How often a port looks whether it and another one reach each other before it says that they do not, and the
#: seconds from one look to the next.
SUBNET_ROUTE_LOOKS = 50
SUBNET_ROUTE_SECONDS = 0.02
#: Ways of packets, and of packets to groups, that a subnet keeps.
SUBNET_ROUTES = 65536
#: Processes that are attached to the host of a subnet, or about to be.
SUBNET_DEVICES = 256
#: MADs that wait until the device of a port takes them.
SUBNET_MADS = 1024
#: Queue pairs of a peer whose P_Keys are known.
SUBNET_MEMBERS = 65536
#: Bound queue pairs that a device looks at in one turn when ways through its subnet have changed.
SUBNET_CHECKS = 1024
#: Programs that are attached to a subnet by ibsim's protocol (C{IBSIM_MAX_CLIENTS}).
UMAD_CLIENTS = 10

# -- tables of management datagrams (RMPP)

#: Packets that one from a receiver draws that has not proved itself.
RMPP_REFLECTED = 2
#: Of these, so many are left for segments that get lost before chance decides about another.
RMPP_SPARED = 3
#: The proof of a receiver, in half bits: a forger has it once in 512 transfers, and draws two windows of 256
#: segments with it at most, that is one packet of a transfer by chance.
RMPP_PROOF = 18

# -- subnet administration

#: Users of a port's groups, services and subscriptions, and users that wait for answers to queries.
SA_REGISTRATIONS = 4096
SA_WAITING = 4096
#: Registrations renewed at a time, and the longest wait before the next try (C{ipoib.h}, BACKOFF_SECONDS).
SA_RENEWALS = 32
SA_RETRY_SECONDS = 16.0
#: What has not answered for so many seconds may be stopped.
SA_SILENT_SECONDS = 0.5
#: Paths that a port remembers, and for how many seconds.
SA_PATHS = 4096
SA_PATH_SECONDS = 60.0
#: Reports whose repetitions are known.
SA_REPORTS_KNOWN = 256

# -- the subnet manager

#: SMPs that wait for their responses.
SM_WINDOW = 32
#: How long each attempt waits, in seconds (C{OSM_DEFAULT_TRANS_TIMEOUT_MILLISEC}), and how many more follow.
SM_TIMEOUT_SECONDS = 0.2
SM_RETRIES = 3
#: Light sweeps come this often (OpenSM's C{sweep_interval}), and no sweep begins sooner after another,
#: whatever traps say.
SM_SWEEP_SECONDS = 10.0
SM_SWEEP_GAP_SECONDS = 0.1
#: A standby asks the master this often, and takes its place when so many have not been answered (OpenSM's
#: C{sminfo_polling_timeout} and C{polling_retry_number}).
SM_POLL_SECONDS = 10.0
SM_POLLS = 4
#: An external subnet manager that ended without closing its port is waited for so long.
SM_RETURN_SECONDS = SM_POLL_SECONDS * SM_POLLS
#: MADs that wait to be sent, without those of the window: responses, and what subnet administration sends.
SM_ANSWERS = 16384
#: Multicast groups: those that the tables of switches have room for are fewer.
SM_GROUPS = 0x3FFF
#: MADs that it sends in one turn of the reactor.
SM_MADS_PER_TURN = 256
#: A partition file, in octets.
PARTITION_FILE_BYTES = 1024 * 1024

# -- subnet administration

#: Requests of one port that are kept: memberships of multicast groups, services, subscriptions.  It makes no
#: more groups when it has as many memberships as multicast LIDs are left.
SA_PORT_GROUPS = 1024
SA_PORT_SERVICES = 256
SA_PORT_SUBSCRIPTIONS = 64
#: Services and subscriptions of all ports.
SA_SERVICES = 16384
SA_SUBSCRIPTIONS = 16384
#: Reports that wait for their responses: of all subscribers, of one port, and of these of one other's traps.
SA_REPORTS = 8192
SA_PORT_REPORTS = 256
SA_TRAP_REPORTS = 32
#: Paths that one query is about, and those whose MTU and rate are remembered.
SA_TABLE_PATHS = 16384
SA_PATH_QUALITIES = 65536

# -- UDP over IPoIB, in user space

#: Addresses and ports of senders whose receiving port is remembered, and destinations of one port.
IPOIB_FLOWS = 4096
IPOIB_SEND_FLOWS = 1024
#: Datagrams that wait for the interface, and packets of the interface to itself that wait for the next turn.
IPOIB_STARTING_DATAGRAMS = 64
IPOIB_LOCAL_PACKETS = 1024
#: Paths whose MTU is below the interface's, and for how long (RFC 1191 section 6.3).
IPOIB_PATH_MTUS = 1024
IPOIB_PATH_MTU_SECONDS = 600.0
#: Packets of which fragments wait for others, and for how long (Linux C{ip_frag.h}, IP_FRAG_TIME); fragments
#: of one: 119 of 576 octets are the longest packet.
IP_REASSEMBLIES = 64
IP_REASSEMBLY_SECONDS = 30.0
IP_FRAGMENTS = 128

# -- ib-perf

#: The longest message, as of perftest's C{-a}.
PERF_MESSAGE = 8 * 1024 * 1024
#: Queue pairs of one test.
PERF_QUEUE_PAIRS = 16384
#: Iterations of one measurement on each queue pair, and the seconds of a timed one.
PERF_ITERATIONS = 1_000_000_000
PERF_SECONDS = 24 * 3600
PERF_HELLO_SECONDS = 10.0
#: Connections that a client attempts at a time.
PERF_CONNECTING = 32
#: Outstanding requests of a queue pair in bandwidth tests.
PERF_DEPTH = 16

#: ib-perf compare: rounds, seconds of one figure, and those for which processes may do nothing.
COMPARE_ROUNDS = 1000
COMPARE_SECONDS = 60.0
COMPARE_PATIENCE = 600.0

#: rds-stress: tasks of one side, and outstanding requests of one task.
PERF_TASKS = 64
PERF_RDS_DEPTH = 4096

# -- ib-ping

#: Rounds of a client.
PING_COUNT = (1 << 31) - 1

# -- ib-ss

#: The longest place of a rule, in characters.
SOCKET_RULE = 1024

# -- the offload switch

#: Reasons by which the connections of a process are counted; all others are one more.
OUTCOMES = 64
#: Peers of which a socket page says why connections go over TCP; beyond it the oldest is forgotten.
PEERS_SHOWN = 64
#: Ports known to have short-lived connections of blocking sockets; beyond it the oldest is forgotten.
GAINLESS_PORTS = 1024
#: Classes of asyncio's sockets that have streams (L{twisted_ib.aio.given}); over it all are made anew.
GIVEN_CLASSES = 64
#: Seconds that the TCP connect of such a socket may take, when the program uses it itself.
GIVEN_SECONDS = 5.0

# -- blocking sockets

#: Connections of descriptors that were detached and that no socket has taken; beyond it the oldest is closed.
BLOCKING_DETACHED = 1024
#: Connections that only descriptors have, which no socket knows; beyond it the oldest is reset.
BLOCKING_HELD = 1024
#: Looks at the list of all processes for those that have one of them, as long as new ones appear.
BLOCKING_PROCESS_LOOKS = 8
#: Seconds after which it is seen that another process has closed a descriptor.
BLOCKING_HELD_SECONDS = 0.1

# -- IP over InfiniBand: interfaces

#: Users that wait for the answers of look-ups.
IPOIB_RESOLUTIONS = 4096
#: The longest wait, in seconds, until subnet administration has answered that groups are left.
IPOIB_LEAVE_SECONDS = 2.0

# -- IP over InfiniBand: TUN devices

#: Packets read from a TUN in one turn of the reactor.
TUN_PACKETS_PER_TURN = 64

# -- ib-run

#: Hosts of one command.
RUN_HOSTS = 64

# -- C libraries

#: Folders with a program's view of devices that are kept; beyond it the one that was used longest ago goes.
DEVICE_VIEWS = 64

#: Different reasons why devices cannot be opened that those of one process say.
SAID_REASONS = 16

# -- queues between processes

#: One direction's ring, a power of two.
QUEUE_RING = 512 * 1024
#: The longest record in it: longer messages are cut into several.
QUEUE_RECORD = 128 * 1024
#: Buffers of an object from this size on are not pickled, but cross the ring as they are.
QUEUE_BUFFER_BYTES = 64 * 1024
#: Such buffers of one object; further ones are pickled.
QUEUE_BUFFERS = 1024
#: Seconds after which who sleeps looks again: a peer may be killed between a message and its wake-up.
QUEUE_LOOK_SECONDS = 0.5
#: Processes with buffers whose room a queue with a bound has again if they are killed.
QUEUE_FEEDERS = 48
#: Calls of a connection that wait on a reactor or an event loop, to receive, and as many to send.
QUEUE_CALLS = 4096
#: Bytes that such a connection moves in one turn of the loop; each record counts as 4096 more.
QUEUE_TURN_BYTES = 1024 * 1024
#: Its calls in such a turn that are over before they return: what follows one may be within its callback.
QUEUE_CALLS_AT_ONCE = 16
#: Bytes of the ring of a broadcast by default, and its most readers.
BROADCAST_BYTES = 8 * 1024 * 1024
BROADCAST_READERS = 63
#: Seconds that a listener waits for the shared memory of who has connected.
QUEUE_HANDSHAKE_SECONDS = 5.0
#: Clients that a listener does this with at a time; over it the oldest gives way.
QUEUE_HANDSHAKES = 64

# -- Dask (ib:// of distributed)

#: Frames from this size on are lent, and read by the receiver; shorter ones travel together.
DASK_FRAME_BYTES = 32 * 1024
#: The longest frame that is read.
DASK_FRAME_MOST = 1 << 40
#: Frames of one message that are lent; further ones travel with the short ones.
DASK_FRAMES = 1024
#: Messages of one connection that are lent and not read yet, before who writes waits.
DASK_LENT = 64
#: Messages that have arrived and that nobody reads, before the peer is held up.
DASK_UNREAD = 256
#: The most bytes that one READ asks for; longer frames take several.
DASK_READ = 1 << 30
#: How often a listener looks for a number that is free on all its devices, and waits for one that stops.
DASK_TRIES = 5
