"""
One HCA: a fabric, its queue pairs and memory, its connections, its progress.  No Twisted, no threads.

Start with L{twisted_ib.hca.device.device.Device}.  C{connections} has the listening services and the
connections, C{addressing} resolves addresses to paths, C{registry} names the devices and is the only module
that names fabrics.

Besides:

  - C{counters}: the counters of an HCA, under the names of Linux rxe's C{hw_counters} and under its own
  - C{device}: its addresses and its peers', its objects, its progress
  - C{form}: the form in which this package runs, and the name of the program
  - C{objects}: the objects of one HCA other than queue pairs and memory
  - C{progress}: the progress of a device
  - C{receivebudget}: the budget for received bytes that one HCA's consumers hold for paused readers
  - C{tcpcounterparts}: services that accompany TCP listeners, found without opening a device
"""
