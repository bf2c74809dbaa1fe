"""The demo: the main job on real mongods, with every document verified at the end."""
