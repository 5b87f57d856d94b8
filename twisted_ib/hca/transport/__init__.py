"""
Reliable and unreliable connections over a medium that loses packets (IBTA vol. 1 9.7, 9.8.2).  Pure.

L{reliable.ReliableConnection} is comparable to a TCP control block in ESTABLISHED: its I{requester} splits
records into packets, numbers them, keeps them until they are acknowledged and retransmits them; its
I{responder} accepts packets in order, delivers each to the queue pair, which checks all rights, and sends
acknowledgements, NAKs and responses to READs and atomics.  L{unreliable.UnreliableConnection} only splits
and joins.  Datagrams need none of it.

Modules:

  - C{parameters}: the negotiated parameters of a connection, and the interface to its user
  - C{psn}: 24 bits, which wrap (IBTA vol. 1 9.7.1; Linux C{rxe_verbs.h}, C{psn_compare})
  - C{readrequests}: outstanding requests that a response answers, and where the packets of one belong
  - C{reliable}: a reliable connection over packets
  - C{requester}: the requester of a reliable connection over packets (IBTA vol. 1 9.7.3, 9.7.5, 9.9.2; Linux
    C{rxe_req.c}, C{rxe_comp.c})
  - C{responder}: the responder of a reliable connection over packets (IBTA vol. 1 9.7.4, 9.7.5, 9.7.7; Linux
    C{rxe_resp.c})
  - C{responses}: the peer's remembered requests that a response answers, and the responses
  - C{segmentation}: segmentation of records into packets (IBTA vol. 1 9.7.3: all but the last have the path
    MTU)
  - C{sendwindow}: the congestion window and the retransmission timeout of a requester
  - C{unreliable}: an unreliable connection over packets (IBTA vol. 1 9.8.2; Linux C{rxe_resp.c}, C{check_psn}
    for UC)
"""
