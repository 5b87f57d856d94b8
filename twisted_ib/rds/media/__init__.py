"""
The media that carry an RDS path: TCP connections, RC queue pairs, and loopback within the process.  Begin
with C{tcp} and C{rc}.
"""
