"""Tests of twisted_ib; run them with trial."""
