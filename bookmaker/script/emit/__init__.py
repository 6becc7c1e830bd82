"""From the cells, and what is known of them, to the text of a script."""
