"""
The engine that drives devices, whoever waits for them, and a process's steps when it forks or ends.

Modules:

  - C{followers}: threads that wait while another one, their leader, drives the devices, and their deputy
  - C{process}: before a fork(2), after it in the parent and in the child, and at the end of the process; its
    descriptors, which a program may close
  - C{sleeper}: how a thread sleeps on descriptors, who wakes it, and the memory barrier before that
  - C{threads}: threads of this package's own, which take no signals
  - C{turn}: how those who drive devices serve them, and sleep in between
  - C{waiter}: threads that wait while another one drives, or for its lock, as handlers of signals do
"""
