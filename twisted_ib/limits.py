"""
Every bound of twisted_ib by name: queues, tables, windows, loops and timers.

Sizes are bytes, times are seconds, the rest are counts.
"""

from __future__ import annotations
