"""What a client's command says: lazy views, the catalog, provable bounds. Pure: no I/O, no clock."""
