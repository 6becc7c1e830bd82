"""From nothing to engines that run, and to none again: cluster, fast launcher, guardian."""
