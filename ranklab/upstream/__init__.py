"""What is used of other packages without being promised by them, one module for each of them.

Nothing else in the lab, but code that a chapter itself teaches with such a name, uses a private
name, the name of a frame or a file, or the text of an error of theirs. Each function says what is
lost "Without it:", and tests/lab/test_upstream_<module>.py tries every one on what is installed.
None of these modules imports another package than its own; packing.py is of two, ipyparallel
(with which it is tried) and cloudpickle.
"""
