"""The rig: the published experiment to scale on one Linux machine (``make bench``, ``make bench-quick``).

Pure, with table tests: ``documents``, ``keys``, ``workloads``, ``ledger``, ``schedule``, ``scales``,
``steps``, ``blocks``, ``results``, ``goals``, ``tables``. All others act: they start, limit, measure and clean up.
"""
