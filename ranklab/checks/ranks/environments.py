"""What every process of a job is told by its environment."""

from ranklab.exercises import Case, Exercise, Mistake

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RANK, LOCAL_RANK = "str(number * per_host + local)", '"LOCAL_RANK": str(local)'


def case(hosts, per_host, port):
    what = f"{len(hosts)} host{'s' if len(hosts) > 1 else ''} with {per_host} process"
    what += "es" if per_host > 1 else ""
    return Case(what, lambda rank, world_size: (list(hosts), per_host, port), ranks=1)


def twin(inputs):
    """Counting, where the solution multiplies."""
    hosts, per_host, port = inputs[0]
    n = len(hosts) * per_host
    rows = [(rank, rank % per_host, n, hosts[0], port) for rank in range(n)]
    return [[dict(zip(NAMES, map(str, row))) for row in rows]]


exercise = Exercise(
    cases=[
        case(["node-a", "node-b"], 2, 29500),
        case(["node-a", "node-b"], 4, 29500),
        case(["laptop"], 3, 51234),
        case(["x", "y", "z"], 1, 1234),
        case(["big", "small", "other"], 3, 29511),
    ],
    twin=twin,
    hint="Go host by host, and on each from process to process. What is the same for all, what "
    "begins again on each host, and what never comes twice?",
    mistakes=[
        Mistake(
            "Each process on each host has an environment of its own.",
            {"range(per_host)": "[0]"},
            test=lambda seen: len(seen.results[0]) != len(seen.expected[0]),
        ),
        Mistake(
            "An environment holds strings, and strings alone: subprocess.Popen refuses a number.",
            {RANK: RANK.removeprefix("str")},
            {"str(port)": "port"},
            test=lambda seen: {type(v) for one in seen.results[0] for v in one.values()} != {str},
        ),
        Mistake(
            f"Each environment has these five names: {', '.join(NAMES)}.",
            {'"WORLD_SIZE"': '"WORLDSIZE"'},
            test=lambda seen: any({*one} != {*NAMES} for one in seen.results[0]),
        ),
        Mistake(
            "All must look for the same meeting place; it is on one of the hosts, the first.",
            {"hosts[0]": "hosts[number]"},
        ),
        Mistake(
            "Two processes have the same RANK. Which of the two numbers begins again on every "
            "host?",
            {RANK: "str(local)"},
        ),
        Mistake(
            "The world is all processes on all hosts.",
            {"str(len(hosts) * per_host)": "str(per_host)"},
            {"str(len(hosts) * per_host)": "str(len(hosts))"},
        ),
        Mistake(
            "LOCAL_RANK counts the processes on one host, from 0, and there are `per_host`.",
            {LOCAL_RANK: '"LOCAL_RANK": str(local % 2)'},
            {LOCAL_RANK: f'"LOCAL_RANK": {RANK}'},
        ),
    ],
)
