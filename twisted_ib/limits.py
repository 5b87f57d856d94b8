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

#: Bytes of one ring, per direction; a power of two.
RING = 256 * 1024
#: The most stream bytes that one record carries.
INLINE_MESSAGE = 64 * 1024
#: The longest record: a message and its headers.
INLINE_RECORD = INLINE_MESSAGE + 64
#: A RDMA extended transport header (IBTA vol. 1, 9.2.3).
RETH_BYTES = 16
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

LOCAL_ADDRESSES = 256
"""
Addresses of this host that an HCA shows as GIDs.
"""
