"""
The engine that drives devices, whoever waits for them, and a process's steps when it forks or ends.

Modules:

  - C{process}: before a fork(2), after it in the parent and in the child, and at the end of the process
  - C{rest}: how long those who drive devices may rest, and what ends that early
  - C{sleeper}: how a thread sleeps on descriptors, and who wakes it
"""
