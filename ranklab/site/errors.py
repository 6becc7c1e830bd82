"""What can be wrong with a book."""


class BookError(Exception):
    """The book cannot be built. The message is a sentence that says why and what to do."""
