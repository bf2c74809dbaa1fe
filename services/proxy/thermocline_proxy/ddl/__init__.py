"""Commands that change collections or indexes of tiered namespaces.

The rule: what both tiers can do one after the other is a write (``writes.schema``); everything else
runs on the archive alone, while the namespaces are in ``Passthrough``.
"""
