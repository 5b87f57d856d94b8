"""
Programs that people run, over TCP and over SDP: C{python -m tests.suites.applications}.

C{pairs} are the servers and clients by name, C{servers} and C{clients} their programs, C{measuring} runs
them.
"""
