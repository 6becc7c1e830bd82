# Generated from book/05_ranks.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: e29ade3ca405).
#
# === What a launcher tells ============================================================
#
# Fill in, about 5 minutes. `by_hand` launched on one computer. Write
# `environments(hosts, per_host, port)` for several: for each process a dict of five
# variables that `torchrun` sets, `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
# `MASTER_PORT`. The ranks are dealt out host by host, and all meet on the first host.
#
#     python scripts/exercises/05_environments.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def environments(hosts, per_host, port):
    """Return one environment (a dict) for each process, in order of ranks.

    hosts: the names of the computers. per_host: processes on each.
    port: where all meet, on the first of the hosts.
    """
    # TODO: five variables for each process on each host.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("environments", environments) else 1)
