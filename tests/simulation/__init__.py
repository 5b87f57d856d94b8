"""
Two HCAs on a wire in memory, in virtual time, with everything that a network may do to them.

C{python -m tests.simulation --runs N --seed S [--kind K]} makes any number of runs.
"""
