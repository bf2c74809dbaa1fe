"""MongoDB connection strings, strictly: what drivers only warn about, or ignore, is an error here. Pure."""
