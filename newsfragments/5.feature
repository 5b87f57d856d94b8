`ib-perf {send,write,read,atomic,sdp,tcp}` measures latency and bandwidth between two processes, with perftest's option letters, percentiles, `--json`, and a progress bar on a terminal.
