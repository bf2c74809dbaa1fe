"""Other people's test suites (``tests/compat``) against a proxy in front of two real tiers."""
