"""
The folder that C{ib-run} puts in front of C{PYTHONPATH}: what interpreters run at their start.

  - C{sitecustomize}: has a process of the program run under C{ib-run}, too
"""
