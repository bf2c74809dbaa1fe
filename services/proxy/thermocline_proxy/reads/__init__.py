"""Reads on tiered namespaces: the shell around the routes of ``routing``."""
