"""What the chapters teach, as modules that later chapters import: made by ``make forms``."""
