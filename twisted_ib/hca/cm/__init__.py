"""
The InfiniBand communication manager (IBTA vol. 1 chapter 12), without I/O.

L{table<twisted_ib.hca.cm.table>} holds all connections of an HCA, C{peer} what it knows of one source. One
C{machine} is one connection, with the messages that requests and replies of users become
(L{twisted_ib.hca.connection}); C{states} and C{transitions} are its state machine. C{sidr} resolves service
ids of datagram services, C{admission} limits half-open connections and C{parked} keeps them as octets,
C{timers} keeps deadlines and TIMEWAIT.
C{transactions} has the transaction ids of messages that travel as MADs; C{adapters} turns the requests and
replies of streams into the form that an adapter's kernel knows.
"""
