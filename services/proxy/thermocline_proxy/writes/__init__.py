"""Writes on tiered namespaces: plans are pure, running them is the shell."""
