"""How many collectives an answer may call."""


def only_one(seen):
    """Say so where a rank made more than one call."""
    most = max(sum(calls.values()) for calls in seen.collectives)
    if most > 1:
        return (
            f"The result is right, and it took {most} collective calls. One is enough: what goes "
            "together travels together."
        )
    return None
