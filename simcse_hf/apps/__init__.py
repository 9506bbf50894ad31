"""Apps: programs over the public names of this package. Nothing imports them but the door of the commands."""
