"""Fixtures for all tests. They live in ``support.fixtures`` so that they can be imported and typed."""

pytest_plugins = ["support.fixtures"]
