import tempfile

from ranklab.exercises import Case, Exercise

exercise = Exercise(
    cases=[Case("a folder", lambda rank, world_size: (tempfile.mkdtemp(),), ranks=1)],
    twin=lambda inputs: [inputs[0][0]],
    hint="The folder.",
)
