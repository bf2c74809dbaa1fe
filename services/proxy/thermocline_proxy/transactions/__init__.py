"""Client transactions: one runs on one tier from its first statement to its end.

A transaction that touches tiered namespaces runs on F, reading at one time that the proxy chooses,
so that what F covered then holds throughout. Whatever only the archive holds is promoted outside,
and the driver told to repeat the transaction.
"""

from thermocline_proxy.transactions.handler import Transactions

__all__ = ["Transactions"]
