"""
C{ib-perf compare}: Twisted's transports and others, side by side.  Begin with C{compare}.

Each subject is a server and a client, both processes.  The driver, which has no reactor, tells the client
over a pipe what to measure, and reads the figures.
"""
