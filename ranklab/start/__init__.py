"""Starting processes, watching over them, and ending them.

- arguments.py: what `Ranks(...)` was asked for, checked
- cluster.py: the start of the engines, by any launcher
- exits.py: whether they run, and how they ended
- launcher.py: our own launcher, which imports once and forks
- importer_process.py, importer_main.py: the process that imports: the kernel's end, and its own
- fork_server.py, forked_engine.py: the process that forks the engines, and an engine
- mpi_world.py, stand_in.py: how forked engines become the ranks of an MPI world
- guardian.py: ends all of it when the kernel is gone
"""
