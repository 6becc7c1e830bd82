"""What each rank computed, sent and received, and when.

On a rank, around the lines to look at:

    from ranklab import trace
    with trace() as t:
        dist.all_reduce(x)

In the kernel: `timeline(ranks["t"])`, `messages(ranks["t"])`, `traffic(ranks["t"])` and
`save(ranks["t"], "x.json")`.

PyTorch's own profiler does the recording; no function of the reader's is replaced. What stands
where: the recorded data in data.py, `trace` in recording.py, reading the profiler's events in
reading.py, who belongs to which group in groups.py, clocks of several hosts in clocks.py, which
message went where in matching.py, what follows from it in waiting.py, and a module for each view
(headings.py: what stands above messages'). Only the views need matplotlib.
"""
