"""What can be wrong with a manuscript or with a book."""


class FormError(Exception):
    """Something that cannot be translated faithfully.

    The message is a sentence for the author. It begins with where ("06_messages, cell 7: ..."),
    says what is wrong, and ends with what to write instead.
    """


class BookError(Exception):
    """The book cannot be built. The message is a sentence that says why and what to do."""
