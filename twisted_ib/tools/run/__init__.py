"""
C{ib-run}: an unchanged program on the loop that takes SDP where it can.

C{run} is the command.  C{program} finds the program and runs it as Python itself would, C{imports} reads what
it imports without running it, C{choice} chooses a loop by that, and C{loops} has the program get it.
"""
