"""The one error that the forms raise."""


class FormError(Exception):
    """Something that cannot be translated faithfully.

    The message is a sentence for the author. It begins with where ("06_messages, cell 7: ..."),
    says what is wrong, and ends with what to write instead.
    """
