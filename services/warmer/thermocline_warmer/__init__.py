"""The warmer: copies recent documents from the archive into the fast tier and lowers the floor."""
