"""Bad files, keys, plug-ins, addresses and command lines: what to write into the folder, and what to type."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.hostile.values import GOOD, with_value

Input = tuple[Callable[[], None], list[str]]
E = "experiment"


def of(content: Any, *typed: str) -> Input:
    """A file x.yaml with some content, run; with arguments of its own the command line is another."""
    text = content if isinstance(content, str | bytes) else yaml.safe_dump(content)
    data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    return lambda: void(Path("x.yaml").write_bytes(data)), list(typed) or ["run", "x.yaml"]


def void(_: object) -> None:
    """Forget what a call returned."""


def plugin(code: str, *settings: str) -> Input:
    def write() -> None:
        Path("mine.py").write_text("import flray, numpy as np\n" + code)
        Path("x.yaml").write_text(yaml.safe_dump(with_value((E, "plugins"), ["mine.py"])))

    return write, ["run", "x.yaml", *settings]


def typed(*arguments: str) -> Input:
    return lambda: void(Path("x.yaml").write_text(yaml.safe_dump(GOOD))), list(arguments)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join(['*' + before] * 9)}]\n"
    for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{one}: &{one} {{<<: [{', '.join(['*' + before] * 9)}]}}\n"
    for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)
METHOD = "from flray.algorithms import Algorithm\n@flray.register_algorithm('mine')\nclass Mine(Algorithm):\n"
NETWORK = "@flray.register_model('mine')\ndef mine(shape, num_classes"
DATA = """from flray.data import DataSet, Domain
x, y = np.zeros((20, 3, 32, 32), np.uint8), np.arange(20) % 2
@flray.register_dataset('mine')
def mine(root):
    return """
PARTITION = "@flray.register_partition('mine')\n"
OBJECTS = DATA.replace("np.uint8)", "object)")
MADE = "DataSet('mine', (Domain('d', 'real', x, y, x, y),), ('a', 'b'), {})"
MOMENTS = ("(0.5,), (0.5,)", "('a',) * 3, (1,) * 3", "(.5,) * 3, (0,) * 3")
MOMENTS += ("(float('nan'),) * 3, (1,) * 3",)
MANY = {**GOOD, "sweep": {"samples": 10**9}, "space": {"local.lr": {"uniform": [0.1, 1]}}}
ARMS: tuple[Any, ...] = ({"partition": {"alpha": 0.3}}, {"partition": None})
ARMS += ({"partition.clients": "ten"}, {"algorithm": {"mu": 1}}, {"data": {}})
FILES: dict[str, Input] = {
    "empty": of(""),
    "a text": of("hello"),
    "binary": of(bytes(range(256)) * 9),
    "NUL": of(b"a: \0"),
    "too large": of(b"#" * 2**21),
    "laughs": of(LAUGHS),
    "too many values": of("experiment: [" + "1," * 150_000 + "]"),
    "deep": of("[" * 200_000),
    "deep mappings": of("{a: " * 20_000),
    "deep blocks": of("- " * 20_000),
    "an alias of itself": of("&a [*a]"),
    "a merge of itself": of("experiment: &a {<<: *a}"),
    "merged laughs": of(MERGES),
    "unknown alias": of("a: *b"),
    "key twice": of("experiment: {rounds: 1, rounds: 2}"),
    "unclosed": of("experiment: [1, 2"),
    "two documents": of("--- {}\n--- {}\n"),
    "object": of("experiment: !!python/object/apply:os.system ['touch pwned']"),
    "int of text": of("a: !!int abc"),
    "a number as key": of("5: 3\n"),
    "5000 digits": of(f"experiment: {{rounds: {'9' * 5000}}}"),
    "unknown tag": of("experiment: !mine {}"),
    "control characters in a key": of('"a\\u0007\\nb": 1'),
    "long key": of({**GOOD, "k" * 900: 1}),
    "merge of a number": of("experiment:\n  <<: 5\n"),
    "base itself": of("base: x.yaml"),
    "base missing": of("base: none.yaml"),
    "base a device": of("base: /dev/zero"),
    "no experiment": of({"sweep": {}}),
    "unknown part": of({**GOOD, "experimnt": 1}),
    "output with NUL": of(with_value((E, "output"), "a\0b")),
    "name with slash": of(with_value((E, "name"), "../x")),
    "preset unknown": of(with_value((E, "algorithm"), {"name": "fedprox", "preset": "x"})),
    "100,000,000 clients": of(with_value((E, "partition"), {"name": "iid", "clients": 10**8})),
    "a thousand million samples": of(MANY, "tune", "x.yaml"),
    "a sweep": of({**GOOD, "sweep": {"seeds": [0, 1]}}),
    **{f"{x}": of({**GOOD, "arms": {"a": {"b": x}}}, "tune", "x.yaml", "--smoke") for x in ARMS},
}
PLUGINS: dict[str, Input] = {
    "no file": of(with_value((E, "plugins"), ["no.py"])),
    "a folder": of(with_value((E, "plugins"), ["."])),
    "NUL": of(with_value((E, "plugins"), ["a\0.py"])),
    "syntax": plugin("def"),
    "import": plugin("import nothing_of_this_name"),
    "exit 0": plugin("import sys; sys.exit(0)"),
    "base exception": plugin("raise BaseException('x')"),
    "lines": plugin("raise ValueError('a\\nb\\x1b[31m')"),
    "bad text": plugin("class E(Exception):\n    __str__ = None\nraise E"),
    "recursion": plugin("def f(): return f()\nf()"),
    "memory": plugin("bytes(2**60)"),
    "no name": plugin("flray.register_model()(print)"),
    "bare": plugin("@flray.register_model\ndef m(shape, num_classes): pass"),
    "name of two lines": plugin("flray.register_model('a\\nb')(print)"),
    "function": plugin("@flray.register_algorithm('mine')\ndef mine(): pass", "algorithm=mine"),
    "__init__": plugin(f"{METHOD}    def __init__(self, params): 1 / 0", "algorithm=mine"),
    "check": plugin(f"{METHOD}    def check(self, config): {{}}['x']", "algorithm=mine"),
    "network": plugin(f"{METHOD}    def network(self, network): 1 / 0", "algorithm=mine"),
    "Params": plugin(f"{METHOD}    Params = 5", "algorithm=mine"),
    "an option of any type": plugin(f"{NETWORK}, *, a: object = print): pass", "model=mine"),
    "an unknown annotation": plugin(f"{NETWORK}, *, a: 'Nothing' = 1): pass", "model=mine"),
    "network none": plugin(f"{NETWORK}): pass", "model=mine"),
    "network raises": plugin(f"{NETWORK}): 1 / 0", "model=mine"),
    "partition of text": plugin(f"{PARTITION}def mine(labels): return 'abc'", "partition=mine"),
    "data none": plugin(f"{DATA}None", "data=mine"),
    "data raise": plugin(f"{DATA}1 / 0", "data=mine"),
    **{f"mean, std {one}": plugin(DATA + MADE.format(one), "data=mine") for one in MOMENTS},
    "domains number": plugin(f"{DATA}DataSet('mine', 5, ('a',), (.5,), (.5,))", "data=mine"),
    "objects": plugin(OBJECTS + MADE.format("(.5,) * 3, (1,) * 3"), "data=mine"),
}
METRIC = "@flray.register_metric('mine')\ndef m("
SAMPLER = "@flray.register_sampler('mine')\n"
CALLBACK = "@flray.register_callback('mine')\nclass C:\n"
SLASHED = "@flray.register_metric('a/b')\ndef m(targets, outputs): return 1"
MEASURED = "evaluation.metrics=[mine]"
SAMPLED, ODD = "participation.sampler=mine", "participation.sampler={name: mine, b: x}"
CALLED = "callbacks=[mine]"
ROUND = "    def round(self, number, metrics): pass\n"
CHECK = "    def __init__(self, run): pass\n    def check(): raise ValueError('no token')"
PLUGINS |= {
    "metric a number": plugin("flray.register_metric('mine')(5)", MEASURED),
    "metric of one argument": plugin(f"{METRIC}outputs): return 1", MEASURED),
    "metric, an option without value": plugin(f"{METRIC}t, o, *, a: int): return 1", MEASURED),
    "metric with a slash": plugin(SLASHED, "evaluation.metrics=[a/b]"),
    "metric not registered": plugin("", MEASURED),
    "metric twice": plugin(f"{METRIC}t, o): return 1", "evaluation.metrics=[mine, mine]"),
    "sampler of nothing": plugin(f"{SAMPLER}def s(): return [0]", SAMPLED),
    "sampler not registered": plugin("", SAMPLED),
    "sampler with a wrong option": plugin(f"{SAMPLER}def s(a, *, b: int = 1): return [0]", ODD),
    "callback an instance": plugin("flray.register_callback('mine')(5)", CALLED),
    "callback without round": plugin(f"{CALLBACK}    pass", CALLED),
    "callback check raises": plugin(f"{CALLBACK}{ROUND}{CHECK}", CALLED),
    "callback not registered": plugin("", CALLED),
}
ADDRESSES = ("127.0.0.1:9", "127.0.0.1:99999999", "a" * 300 + ":1", "\n:1", "ray://127.0.0.1:9", "")
JOINING = ("run", "x.yaml", "resources.executor=ray", "--address")
LINES = (
    "runn x.yaml; run; run x.yaml --rounds=3; run x.yaml local.lr; run x.yaml =1; run x.yaml seed=1.0; "
    "run x.yaml local.lr=40%; run x.yaml sweep.seeds=3; run x.yaml experiment=5; "
    "run x.yaml space.local.lr=5; run .; run /dev/zero; run x.yaml/y; "
    "tune x.yaml sweep.search=grid sweep.samples=5; tune x.yaml --smoke=3; resume; resume none; "
    "resume ..; report none; sync none; list nothing; data get nothing; data show x.yaml --plot a.b; "
    "--nothing"
)
TYPED: dict[str, Input] = {
    **{f"address {one!r:.30}": typed(*JOINING, one) for one in ADDRESSES},
    **{f"typed {line}": typed(*line.split()) for line in LINES.split("; ")},
    "papers": typed("list", "papers", "nope"),
    "rounds twice": typed("resume", "x", "rounds=9", "rounds=8"),
    "buffers": typed("run", "x.yaml", "aggregation.buffers=local", "algorithm=pooled"),
    "typed resume NUL": typed("resume", "a\0b"),
    "typed surrogate": typed("run", "a\udcff.yaml"),
}


def table(text: str, **options: Any) -> Input:
    def write() -> None:
        Path("t.csv").write_text(text)
        given = {"name": "table", "path": "t.csv", "label": "y", **options}
        Path("x.yaml").write_text(yaml.safe_dump(with_value((E, "data"), given)))

    return write, ["run", "x.yaml", "model=linear"]


ROWS = "".join(f"{i % 7},{i % 2},{'ab'[i % 2]},h{i % 3}\n" for i in range(60))
TABLES: dict[str, Input] = {
    "the label among the columns": table(f"a,y,c,h\n{ROWS}", columns=["a", "y"]),
    "the domain among the columns": table(f"h,y,c,a\n{ROWS}", columns=["h"], by="h"),
    "fractions as classes": table("a,y\n" + "".join(f"{i},{i / 7}\n" for i in range(60))),
    "no positive class": table(f"a,b,y,h\n{ROWS}", columns=["a"], task="binary"),
}
LIMITING = [
    "data={name: random, shape: [100000, 100000]}",
    "data={name: random, classes: 1000000000}",
]
LIMITING += ["model={name: mlp, hidden: [1000000000]}", "shift={noise: 1e308}", "name=a b"]
LIMITING += ["rounds=99999999999999999", "evaluation.metrics=[auc]"]
LIMITING += ["callbacks=[{name: tensorboard, folder: /proc/x}]"]
LIMITS = {setting: typed("run", "x.yaml", setting) for setting in LIMITING}
ALL = {"files": FILES, "plug-ins": PLUGINS, "typed": TYPED, "tables": TABLES, "limits": LIMITS}
"""Kinds of bad inputs."""
