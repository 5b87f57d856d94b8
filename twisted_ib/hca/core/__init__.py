"""Verbs objects: protection domains, regions, queues, queue pairs.  Pure."""
