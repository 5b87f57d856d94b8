"""
Real Linux kernels as peers: Debian guests in QEMU, with the kernel's software HCA (rxe) and its RDS.

Build the images once (Debian's packages come through C{apt}, which installs none of them), then run::

    python -m tests.interop.build
    TWISTED_IB_INTEROP=1 python -m twisted.trial tests.interop

Both need root, for a network namespace with a bridge; QEMU emulates the processor, so no C{/dev/kvm} is
needed.  The images, half a GB, lie in the folder that C{TWISTED_IB_INTEROP_CACHE} names, else in
C{twisted_ib/interop} of the user's cache folder.  The guests are of the release of Debian, 12 or 13, whose
sources C{apt} has here; where C{APT_CONFIG} names a configuration with other sources, of that.  A single
scenario runs by its name::

    TWISTED_IB_INTEROP=1 python -m twisted.trial tests.interop.rping.RoundsTests.test_client64

With C{TWISTED_IB_INTEROP_NEIGHBOUR=1} the processes of each test that have C{roce0} share its address with
another one, which has it first.
"""
