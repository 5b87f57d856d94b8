"""RDMA under Twisted: a software HCA; SDP, RDS and messages over it; a reactor; and commands."""
