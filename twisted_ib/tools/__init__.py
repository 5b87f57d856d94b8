"""
Programs for users: ib-demo, ib-get, ib-devinfo, ib-ss, ib-perf, ib-ping, ib-policy.
"""
