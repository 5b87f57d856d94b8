"""
Only old names, which an earlier page of docs/ shows: L{twisted_ib.subnet}.
"""
