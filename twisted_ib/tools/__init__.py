"""Programs for users: ib-demo, ib-get, ib-devinfo, ib-perf."""
