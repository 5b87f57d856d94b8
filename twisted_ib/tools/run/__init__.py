"""
C{ib-run}: an unchanged program, on the loop that takes SDP where it can, or with the C libraries of RDMA.

C{run} is the command.  C{program} finds the program and runs it as Python itself would.  C{loops} has it get
loops and reactors where it first uses one, by C{hooks}, which see what it imports; its C{sockets} become
SDP's with the first that connects or listens, but for connections that C{offers} knows to be TCP's.
C{children} has the processes that it starts get the same, by C{startup}, which they import.  C{summary} says
at its end what carried its connections.  C{clibraries} has it find the C libraries; C{native} knows programs
that are no Python.  C{check} says what is here and what is missing, and C{hosts} starts it on several hosts,
which are namespaces of this one.

Besides:

  - C{__main__}: the C{ib-run} of another interpreter
"""
