"""
The devices of a process that has no reactor, and who drives them.  Begin with C{hub}:
there, work requests are posted and completions polled.

Besides:

  - C{asleep}: the threads that wait, two of which drive the devices
  - C{attendant}: a thread that serves peers while the program is busy elsewhere
  - C{closes}: objects that a program has dropped instead of closing them
  - C{progress}: the part of the hub that each message passes
  - C{readable}: descriptors that a program watches
"""
