"""A tier's own error in answer to a question of the proxy's, as the client is told."""

from pymongo.errors import OperationFailure

from thermocline_common.errors import Code, CommandError


def as_answered(
    error: OperationFailure, before: str = "", *, limited: bool = False
) -> CommandError:
    """The error with MongoDB's code and name; ``before``: what the text begins with.

    ``limited``: the client gave a ``maxTimeMS``. One that gave none never exceeded it: what ran out then was
    the question's own limit, and the command may be tried again.
    """
    details = error.details or {}
    if error.code == Code.MaxTimeMSExpired and not limited:
        return CommandError(
            Code.ExceededTimeLimit, f"{before}a question to a tier took too long; try again"
        )
    name = details.get("codeName")
    return CommandError(
        error.code or Code.OperationFailed,
        before + str(details.get("errmsg", error)),
        code_name=None if name is None else str(name),
    )
