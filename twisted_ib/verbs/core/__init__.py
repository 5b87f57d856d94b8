"""
The devices of a process that has no reactor, and who drives them.  Begin with C{hub}.

Besides:

  - C{attendant}: a thread that serves peers while the program is busy elsewhere
"""
