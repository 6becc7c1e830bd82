"""What an author runs: from manuscripts to notebooks, scripts, taught code and the site."""

import sys

# Where it is there, jsonschema (and so nbformat) compiles grammars of addresses with it when it is
# imported: more than a second, for a check that nobody asks for.
sys.modules.setdefault("rfc3987_syntax", None)
