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
