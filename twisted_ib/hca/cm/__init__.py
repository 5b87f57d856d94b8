"""The InfiniBand communication manager.  Pure."""
