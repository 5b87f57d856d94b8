"""RDMA under Twisted: a software HCA, SDP and what stands on them."""
