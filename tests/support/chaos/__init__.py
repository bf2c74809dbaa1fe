"""The chaos machine: a whole Thermocline under load while everything around it breaks.

``make chaos SEED=7 SECONDS=120`` (``python -m support.chaos``). The modules: ``schedule`` (what is
broken when, from a seed), ``cluster`` (servers, services, and the relays between any two of them),
``nemesis`` (breaks them), ``clients`` and ``workloads`` (unchanged drivers with known histories),
``linearizability`` and ``checks`` (what must hold), ``evictions`` (what the oplogs say),
``report`` and ``machine`` (one run), ``defects`` (services that are broken on purpose).
"""
