"""What each rank computed, sent and received, and when.

On a rank, around the lines to look at:

    from ranklab import trace
    with trace() as t:
        dist.all_reduce(x)

In the kernel: `timeline(ranks["t"])`, `messages(ranks["t"])`, `traffic(ranks["t"])` and
`save(ranks["t"], "x.json")`.

PyTorch's own profiler does the recording; no function of the reader's is replaced. Only the views
need matplotlib.

- recording.py: `trace`; settling.py: when the profiler may begin and end
- reading.py, communication.py, flight.py, groups.py: from the profiler's events to a trace's
- data.py: a trace as plain data; clocks.py: whose clock its times are from
- matching.py, waiting.py, tally.py: which message went where, what follows, and in sentences
- timeline.py, space_time.py (`messages`), traffic.py, perfetto.py (`save`): a file for each view
- picture.py, headings.py: what drawings share, and what stands above the space-time diagram
"""
