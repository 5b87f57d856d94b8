"""Tests of twisted_ib; run them with trial."""

import os
import signal

# A shell's background jobs ignore it (POSIX, Shell Command Language, 2.11), and so would all processes that
# the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of processes are started: without byte code each would compile all modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
