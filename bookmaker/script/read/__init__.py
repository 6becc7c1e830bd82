"""From a notebook to its cells, parsed, and to what Python says about a piece of code."""
