"""
Tests with the real OpenSM and infiniband-diags of Debian, attached by libumad2sim to subnets of this package.

They run with C{TWISTED_IB_OPENSM=1} where the packages C{opensm}, C{infiniband-diags}, C{ibsim-utils} and
C{libumad2sim0} are installed; no rights are needed.
"""
