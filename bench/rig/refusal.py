"""Why the rig doesn't start: one exception, whose text says what is missing and what to do."""


class Refused(Exception):
    """Nothing was measured; the message is for a person."""
