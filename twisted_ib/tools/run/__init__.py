"""
C{ib-run}: an unchanged program, on the loop that takes SDP where it can, or with the C libraries of RDMA.

C{run} is the command.  C{program} finds the program and runs it as Python itself would, C{imports} reads what
it imports without running it, C{choice} chooses a loop by that, and C{loops} has the program get it.
C{children} has the processes that it starts get one, too, by C{startup}, which they import.  C{summary} says
at its end what carried its connections.  C{clibraries} has it find the C libraries; C{native} knows programs
that are no Python.

Besides:

  - C{__main__}: the C{ib-run} of another interpreter
"""
