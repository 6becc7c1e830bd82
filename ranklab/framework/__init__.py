"""What chapter 13's framework is made of beside what its page shows: NumPy alone.

An operation is a function of arrays. It returns its value and, for each array, the rule of its
gradient. No file here knows the chapter's `Tensor`: the methods that it gets (`operators`) and
the modules call what it has. A script that is made of a chapter carries along what it uses.
"""
