"""What soak.py is made of: a notebook's kernel, the faults, and what is measured after each."""
