"""Codecs of the InfiniBand wire formats."""
