"""
C{ib-perf compare}: Twisted's transports and others, side by side.  Begin with C{comparison}.

Each subject is a server and a client, both processes.  The driver, which has no reactor, tells the client
over a pipe what to measure, and reads the figures.

Besides:

  - C{asyncioprocess}: the subjects of other event loops
  - C{measuring}: how all clients measure
  - C{plot}: the results of C{ib-perf compare} as a picture
  - C{processes}: the processes of C{ib-perf compare}
  - C{results}: the rounds of C{ib-perf compare} together
  - C{subjects}: the subjects of C{ib-perf compare}, the placements of their processes, and the rows
  - C{text}: the results of C{ib-perf compare} as text, with bars
  - C{twistedprocess}: a process of C{ib-perf compare} under Twisted
"""
