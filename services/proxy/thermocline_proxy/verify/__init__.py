"""The self-check (``proxy.verify``): a share of the fast tier's answers is asked of the archive too.

It never touches the client's request: the answer has been given, and everything is asked anew, outside
the client's session. What decides (``sampling``, ``questions``, ``answers``, ``verdicts``) does no I/O.
"""
