"""What a script has to know about the cells: who uses which names, and what it refuses."""
