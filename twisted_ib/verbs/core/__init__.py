"""
The devices of a process that has no reactor, and who drives them.  Begin with C{hub}:
there, work requests are posted and completions polled.

Besides:

  - C{attendant}: a thread that serves peers while the program is busy elsewhere
  - C{closes}: objects that a program has dropped instead of closing them
  - C{pipes}: pipes that a program watches
"""
