"""
C{multiprocessing} between processes of one host, through shared memory: L{Pipe} and L{Connection},
L{Listener} and L{Client}, L{wait}, L{Queue}, L{SimpleQueue} and L{JoinableQueue};
and L{Broadcast}, which it has not.

Modules:

  - C{asynchronous}: connections on a reactor
  - C{broadcast}: one writer, many readers
  - C{connection}: both ends, and messages
  - C{futex}: sleeping in shared memory
  - C{futures}: connections on a loop of asyncio
  - C{listening}: listeners and clients
  - C{locks}: locks that outlive their owners
  - C{pickling}: objects as bytes, with large buffers beside
  - C{queue}: with many readers and writers
  - C{ring}: one direction of a connection
  - C{waiting}: for one of several
"""

from twisted_ib.queues.broadcast import Broadcast, BroadcastReader
from twisted_ib.queues.connection import Connection, Pipe
from twisted_ib.queues.listening import Client, Listener
from twisted_ib.queues.queue import JoinableQueue, Queue, SimpleQueue
from twisted_ib.queues.waiting import wait

__all__ = [
    "Broadcast",
    "BroadcastReader",
    "Client",
    "Connection",
    "JoinableQueue",
    "Listener",
    "Pipe",
    "Queue",
    "SimpleQueue",
    "wait",
]
