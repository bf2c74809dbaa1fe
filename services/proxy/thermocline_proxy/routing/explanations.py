"""One sentence for each reason: what ``thermocline explain`` and the documentation say."""

from collections.abc import Mapping
from typing import Final

from thermocline_proxy.routing.routes import Reason

EXPLANATIONS: Final[Mapping[Reason, str]] = {
    Reason.POINT_ID: "The filter names one _id: the fast tier is asked first, and a document found there is the answer.",
    Reason.POINT_UNIQUE: "The filter gives the whole key of a unique index: the fast tier is asked first.",
    Reason.ID_LIST: "The filter lists ids: the fast tier answers if it holds every one of them.",
    Reason.COVERED: "The filter leaves out every document older than what the fast tier surely holds.",
    Reason.NEWEST_FIRST: "Newest first with a limit: the fast tier answers if its list ends above the floor.",
    Reason.ANY_MATCH: "One document, no sort: any match in the fast tier will do.",
    Reason.COMPLETE: "The fast tier holds the whole collection (keep: All).",
    Reason.UNTIERED: "No tiered namespace is concerned: the archive answers.",
    Reason.PAUSING: "The namespace is being switched between the tiers: the archive answers, once it has caught up.",
    Reason.ARCHIVE_ONLY: "proxy.routing is ArchiveOnly: the archive answers, without waiting for it to catch up.",
    Reason.IN_DOUBT: "The self-check found the tiers to differ: the archive answers until a person releases the namespace.",
    Reason.METADATA: "About the collection, not its documents: the archive answers.",
    Reason.ESTIMATE: "A count without a filter needs the whole collection: the archive answers.",
    Reason.VIEW: "Views are read on the archive.",
    Reason.JOIN: "It joins a collection that the fast tier doesn't hold whole (keep: All).",
    Reason.STAGE: "A stage of the pipeline depends on the server that runs it, or isn't known.",
    Reason.WRITES_UNTIERED: "The result is written to an untiered collection, which lives on the archive.",
    Reason.NO_BOUND: "The filter doesn't prove that only documents in the fast tier can match.",
    Reason.BELOW_FLOOR: "The filter reaches further back than the fast tier's documents do.",
    Reason.NOTHING_COVERED: "The fast tier doesn't hold the namespace's newest documents yet.",
    Reason.OPTION: "An option of the command has a different meaning on each server, or isn't known.",
    Reason.COMMAND: "The command is answered where such commands always are.",
    Reason.FAST_MISS: "The fast tier was asked and doesn't hold what the filter names.",
    Reason.FAST_INCOMPLETE: "The fast tier was asked, and its answer may lack documents.",
    Reason.FAST_ERROR: "The fast tier couldn't run the command (an index that only the archive has, say).",
    Reason.LEASE_ENDED: "The answer came when what was known of the fast tier was already too old.",
    Reason.UNKNOWN_NAMESPACE: "The namespace is tiered, but its state can't be read: the proxy waits.",
    Reason.QUARANTINED: "The archive couldn't take some documents of the namespace, so it can't answer (Degraded).",
    Reason.SNAPSHOT: "A snapshot outside transactions is read on the archive, which holds every document.",
    Reason.TRANSACTION: "A transaction on tiered namespaces runs on the fast tier, at a moment of its own that decides its reads.",
    Reason.CHANGE_STREAM: "A change stream of a tiered collection is the fast tier's.",
    Reason.WRITES_TIERED: "$out and $merge can't write to tiered namespaces.",
}
