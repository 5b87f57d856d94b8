"""
C{ib-demo}: round trips and file transfers over SDP and over TCP, side by side.  Begin with C{demo}.

Besides:

  - C{children}: child processes of C{ib-demo}, which it ends whatever happens to itself, and its folder,
    which goes with it
  - C{ipoib}: ping, iperf3 and ssh between two networks without privileges, over C{ib0}, and what a capture
    has of it
  - C{probe}: the measurements of C{ib-demo}
  - C{report}: the figures of C{ib-demo}, and its display
  - C{server}: the second server of C{ib-demo}
"""
