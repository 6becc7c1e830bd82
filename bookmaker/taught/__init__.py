"""The code that a chapter teaches, as a module that later chapters import."""
