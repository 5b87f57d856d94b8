"""
The media that carry an RDS path: TCP connections and RC queue pairs.  Begin with C{tcp} and C{rc}.
"""
