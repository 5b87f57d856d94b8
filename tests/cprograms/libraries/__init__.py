"""
Programs of libraries that stand on verbs: libfabric, UCX, MPI, DAPL.
"""
