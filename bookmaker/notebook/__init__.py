"""A chapter as a notebook without outputs."""
