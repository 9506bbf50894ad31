"""Files of text to files of vectors, and the forms a vector can be kept in."""
