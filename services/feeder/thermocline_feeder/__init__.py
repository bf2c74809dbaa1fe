"""The feeder: replays the state of every written document from the fast tier into the archive."""
