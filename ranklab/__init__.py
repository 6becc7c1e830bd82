"""The lab of *Many Ranks, One Model*."""
