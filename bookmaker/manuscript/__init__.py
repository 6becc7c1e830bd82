"""A chapter as it is written: read, taken apart, its exercises found."""
