"""The evictor: removes old documents from the fast tier once the archive surely holds them."""
