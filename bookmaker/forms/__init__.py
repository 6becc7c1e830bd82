"""One manuscript, several forms: ``book/NN_name.md`` to notebook, script and taught code.

``python -m bookmaker.forms`` writes every form, ``python -m bookmaker.forms --check`` names those
that are out of step. The manuscript is the only place to edit.
"""
