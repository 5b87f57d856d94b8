"""
The target tgtd and the initiator libiscsi, over iSER.
"""
