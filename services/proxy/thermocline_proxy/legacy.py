"""The opcodes that MongoDB 6.0 has left behind: hello by OP_QUERY, a polite refusal, or the end."""

import bson
from bson.errors import InvalidBSON

from thermocline_common.errors import CommandError
from thermocline_proxy.commands.command import Command, element
from thermocline_proxy.dispatch import Dispatcher
from thermocline_proxy.sessions import ClientSession
from thermocline_proxy.upstream import next_request_id
from thermocline_proxy.wire import opquery
from thermocline_proxy.wire.header import (
    HEADER,
    OP_GET_MORE,
    OP_QUERY,
    ProtocolViolation,
    WireError,
)
from thermocline_proxy.wire.replies import code_name, error_document, error_reply

_UNSUPPORTED = (
    "Unsupported OP_QUERY command: {name}. The client driver may require an upgrade. For more "
    "details see https://dochub.mongodb.org/core/legacy-opcode-removal"
)


async def answer_legacy(
    frame: bytes, opcode: int, dispatcher: Dispatcher, session: ClientSession
) -> bytes:
    """The OP_REPLY to a legacy request. Raises :class:`ProtocolViolation` where mongod closes."""
    request_id = HEADER.unpack_from(frame)[1]
    if opcode == OP_GET_MORE:
        return _removed(request_id, "OP_GET_MORE")
    if opcode != OP_QUERY:
        raise ProtocolViolation(f"opcode {opcode}")
    try:
        query = opquery.parse(frame)
    except WireError as error:
        raise ProtocolViolation(error.message) from error
    if not query.is_command:
        return _removed(request_id, "OP_QUERY")
    command = Command(query.document)
    if command.name in opquery.HELLO_NAMES:
        database = query.namespace.removesuffix(".$cmd")
        try:
            body = await dispatcher.hello(
                command.changed({"$db": element("$db", database)}), session
            )
        except CommandError as error:
            body = error_reply(error)
        except (InvalidBSON, ValueError) as error:
            raise ProtocolViolation(f"a damaged document: {error}") from error
    else:
        body = error_document(352, _UNSUPPORTED.format(name=command.name), code_name(352))
    return opquery.encode_reply(next_request_id(), request_id, body)


def _removed(request_id: int, what: str) -> bytes:
    body = bson.encode({"$err": opquery.REMOVED.format(what=what), "code": 5739101, "ok": 0.0})
    return opquery.encode_reply(next_request_id(), request_id, body, failure=True)
