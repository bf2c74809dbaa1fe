"""What the archive couldn't take, as the feeder's checkpoint lists it. Pure."""

from bson.raw_bson import RawBSONDocument

from thermocline_common.ids import DocId, elements


def quarantined_ids(checkpoint: RawBSONDocument, namespace: str) -> frozenset[DocId]:
    """The ids of a namespace that the archive couldn't take, from the raw checkpoint document."""
    found = set()
    for entry in checkpoint.get("quarantine") or ():
        if entry["ns"] != namespace:
            continue
        raw = bytes(entry.raw)
        for name, kind, _, start, end in elements(raw):
            if name == b"id":
                found.add(DocId.of_value(kind, raw[start:end]))
    return frozenset(found)
