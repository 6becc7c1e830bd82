"""What is used of other packages without being promised by them, one module for each."""
