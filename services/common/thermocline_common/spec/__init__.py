"""The resource ``TieredReplicaSet``: its models, rules and CRD. Pure: no I/O, no clock, no network."""
