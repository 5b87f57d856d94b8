"""
Ends of streams in another process, perhaps on another host, for the contracts of streams.

  - C{agent}: has them
  - C{mirrors}: stand for them, in the test's process
  - C{cases}: the contracts whose servers are there
  - C{standing}: how things stand in a process whose test waits in vain
"""
