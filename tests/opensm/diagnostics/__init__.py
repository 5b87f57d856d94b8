"""
infiniband-diags on a subnet of this package.
"""
