"""A tier's own error in answer to a question of the proxy's, as the client is told."""

from pymongo.errors import OperationFailure

from thermocline_common.errors import Code, CommandError


def as_answered(error: OperationFailure, before: str = "") -> CommandError:
    """The error with MongoDB's code and name; ``before``: what the text begins with."""
    details = error.details or {}
    name = details.get("codeName")
    return CommandError(
        error.code or Code.OperationFailed,
        before + str(details.get("errmsg", error)),
        code_name=None if name is None else str(name),
    )
