"""Bad files, keys, plug-ins, addresses and command lines: what to write into the folder, and what to type."""

from __future__ import annotations

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
    """A plug-in that is named in an otherwise good file."""

    def write() -> None:
        Path("mine.py").write_text("import flray, numpy as np\n" + code)
        Path("x.yaml").write_text(yaml.safe_dump(with_value((E, "plugins"), ["mine.py"])))

    return write, ["run", "x.yaml", *settings]


def typed(*arguments: str) -> Input:
    """A command line beside a good file."""
    return lambda: void(Path("x.yaml").write_text(yaml.safe_dump(GOOD))), list(arguments)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join(['*' + before] * 9)}]\n"
    for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)
METHOD = "from flray.algorithms import Algorithm\n@flray.register_algorithm('mine')\nclass Mine(Algorithm):\n"
NETWORK = "@flray.register_model('mine')\ndef mine("
DATA = (
    "from flray.data import DataSet, Domain\nx = np.zeros((20, 3, 32, 32), np.uint8)\ny = "
    "np.arange(20) % 2\n"
    "@flray.register_dataset('mine')\ndef mine(root):\n    return "
)
MADE = "DataSet('mine', (Domain('d', 'real', x, y, x, y),), ('a', 'b'), {mean}, {std})"
FILES: dict[str, Input] = {
    "empty": of(""),
    "a list": of("- 1\n"),
    "a text": of("hello"),
    "a number": of("5"),
    "null": of("null"),
    "latin-1": of("name: Tromsø".encode("latin-1")),
    "binary": of(bytes(range(256)) * 9),
    "NUL": of(b"a: \0"),
    "UTF-16": of("experiment: {}".encode("utf-16")),
    "too large": of(b"#" * 2**21),
    "laughs": of(LAUGHS),
    "too many values": of("experiment: [" + "1," * 150_000 + "]"),
    "deep": of("[" * 200_000),
    "deep mappings": of("{a: " * 20_000),
    "deep blocks": of("- " * 20_000),
    "an alias of itself": of("&a [*a]"),
    "unknown alias": of("a: *b"),
    "key twice": of("experiment: {rounds: 1, rounds: 2}"),
    "part twice": of("experiment: {}\nexperiment: {}\n"),
    "tabs": of("experiment:\n\trounds: 1\n"),
    "indentation": of("experiment:\n  rounds: 1\n   seed: 2\n"),
    "unclosed": of("experiment: [1, 2"),
    "unclosed quote": of("experiment: 'abc"),
    "two documents": of("--- {}\n--- {}\n"),
    "object": of("experiment: !!python/object/apply:os.system ['touch pwned']"),
    "int of text": of("a: !!int abc"),
    "bool of text": of("a: !!bool maybe"),
    "float of text": of("a: !!float x"),
    "date of text": of("a: !!timestamp foo"),
    "set": of("experiment: !!set {a, b}"),
    "binary value": of("experiment: !!binary aGVsbG8="),
    "pairs": of("experiment: !!pairs [a: 1]"),
    "a list as key": of("? [1, 2]\n: 3\n"),
    "a number as key": of("5: 3\n"),
    "true as key": of("experiment: {on: 1}"),
    "5000 digits": of(f"experiment: {{rounds: {'9' * 5000}}}"),
    "unknown tag": of("experiment: !mine {}"),
    "value tag": of("experiment: ="),
    "control characters in a key": of('"a\\u0007\\nb": 1'),
    "long key": of({**GOOD, "k" * 900: 1}),
    "merge of a number": of("experiment:\n  <<: 5\n"),
    "base of wrong type": of("base: 5"),
    "base in a mapping": of("base: {a: 1}"),
    "base of numbers": of("base: [5]"),
    "base itself": of("base: x.yaml"),
    "base with NUL": of('base: "a\\0b"'),
    "base missing": of("base: none.yaml"),
    "base a folder": of("base: ."),
    "base a device": of("base: /dev/zero"),
    "keys beside experiment": of({**GOOD, "rounds": 3, "local": {"lr": 0.1}}),
    "no experiment": of({"sweep": {}}),
    "unknown part": of({**GOOD, "experimnt": 1}),
    "output with NUL": of(with_value((E, "output"), "a\0b")),
    "output in a file": of(with_value((E, "output"), "x.yaml")),
    "output nowhere": of(with_value((E, "output"), "/proc/none")),
    "name with slash": of(with_value((E, "name"), "../x")),
    "preset of a list": of(with_value((E, "algorithm"), {"name": "fedprox", "preset": ["a"]})),
    "preset unknown": of(with_value((E, "algorithm"), {"name": "fedprox", "preset": "x"})),
    "100,000,000 clients": of(
        with_value((E, "partition"), {"name": "iid", "clients": 100_000_000})
    ),
    "2**62 clients": of(
        with_value((E, "partition"), {"name": "dirichlet", "alpha": 1, "clients": 2**62})
    ),
    "a thousand million samples": of(
        with_value(("sweep",), {"samples": 10**9, "seeds": [0]})
        | {"space": {"local.lr": {"uniform": [0.1, 1]}}},
        "tune",
        "x.yaml",
    ),
    "too many seeds": of(
        with_value(
            ("space",),
            {f"local.{k}": {"grid": list(range(1, 100))} for k in ("lr", "epochs", "batch_size")},
        ),
        "tune",
        "x.yaml",
    ),
    "betas": of(with_value((E, "local"), {"betas": [0.9, 3]})),
    "a sweep": of({**GOOD, "sweep": {"seeds": [0, 1]}}),
    "a space": of({**GOOD, "space": {"local.lr": {"grid": [0.1, 0.2]}}}),
    "arms": of({**GOOD, "arms": {"method": {"a": {"algorithm": "fedprox"}}}}),
}
PLUGINS: dict[str, Input] = {
    "plugins a number": of(with_value((E, "plugins"), 5)),
    "plugins of numbers": of(with_value((E, "plugins"), [5])),
    "plugins of null": of(with_value((E, "plugins"), [None])),
    "plugins true": of(with_value((E, "plugins"), True)),
    "plugins a text": of(with_value((E, "plugins"), "mine.py")),
    "no file": of(with_value((E, "plugins"), ["no.py"])),
    "a folder": of(with_value((E, "plugins"), ["."])),
    "no Python": of(with_value((E, "plugins"), ["x.yaml"])),
    "NUL": of(with_value((E, "plugins"), ["a\0.py"])),
    "too long": of(with_value((E, "plugins"), ["a" * 5000])),
    "empty name": of(with_value((E, "plugins"), [""])),
    "syntax": plugin("def"),
    "indentation": plugin("  x = 1"),
    "NUL in it": plugin("x = '\0'"),
    "import": plugin("import nothing_of_this_name"),
    "exit": plugin("raise SystemExit"),
    "exit 0": plugin("import sys; sys.exit(0)"),
    "exit text": plugin("import sys; sys.exit('a\\nb')"),
    "base exception": plugin("raise BaseException('x')"),
    "lines": plugin("raise ValueError('a\\nb\\x1b[31m')"),
    "no text": plugin("raise ValueError"),
    "bad text": plugin("class E(Exception):\n    __str__ = None\nraise E"),
    "recursion": plugin("def f(): return f()\nf()"),
    "memory": plugin("bytes(2**60)"),
    "number": plugin("flray.register_algorithm('mine')(5)"),
    "no name": plugin("flray.register_model()(print)"),
    "bare": plugin("@flray.register_model\ndef m(shape, num_classes): pass"),
    "name of two lines": plugin("flray.register_model('a\\nb')(print)"),
    "function": plugin("@flray.register_algorithm('mine')\ndef mine(): pass", "algorithm=mine"),
    "__init__": plugin(f"{METHOD}    def __init__(self, params): 1 / 0", "algorithm=mine"),
    "__init__ exits": plugin(
        f"{METHOD}    def __init__(self, params): raise SystemExit(0)", "algorithm=mine"
    ),
    "check": plugin(f"{METHOD}    def check(self, config): {{}}['x']", "algorithm=mine"),
    "network": plugin(f"{METHOD}    def network(self, network): 1 / 0", "algorithm=mine"),
    "needs": plugin(f"{METHOD}    needs = 5", "algorithm=mine"),
    "shared": plugin(f"{METHOD}    shared = 5", "algorithm=mine"),
    "Params": plugin(f"{METHOD}    Params = 5", "algorithm=mine"),
    "an option of any type": plugin(
        f"{NETWORK}shape, num_classes, *, a: object = print): pass", "model=mine"
    ),
    "an unknown annotation": plugin(
        f"{NETWORK}shape, num_classes, *, a: 'Nothing' = 1): pass", "model=mine"
    ),
    "an option with underscore": plugin(f"{NETWORK}shape, n, *, _a=1): pass", "model=mine"),
    "network none": plugin(f"{NETWORK}shape, num_classes): pass", "model=mine"),
    "network raises": plugin(f"{NETWORK}shape, num_classes): 1 / 0", "model=mine"),
    "network takes nothing": plugin(f"{NETWORK}): pass", "model=mine"),
    "partition of text": plugin(
        "@flray.register_partition('mine')\ndef mine(labels): return 'abc'", "partition=mine"
    ),
    "partition of none": plugin(
        "@flray.register_partition('mine')\ndef mine(labels): pass", "partition=mine"
    ),
    "partition of ragged": plugin(
        "@flray.register_partition('mine')\ndef mine(labels): return [[[1]], 2]", "partition=mine"
    ),
    "partition of unknown": plugin(
        "@flray.register_partition('mine')\ndef mine(lables): return []", "partition=mine"
    ),
    "data none": plugin(f"{DATA}None", "data=mine"),
    "data raise": plugin(f"{DATA}1 / 0", "data=mine"),
    "data number": plugin(f"{DATA}5", "data=mine"),
    **{
        f"mean {mean}, std {std}": plugin(DATA + MADE.format(mean=mean, std=std), "data=mine")
        for mean, std in (
            ("0.5", "0.5"),
            ("(0.5,)", "(0.5,)"),
            ("('a',) * 3", "(1,) * 3"),
            ("None", "None"),
            ("(.5,) * 3", "(0,) * 3"),
            ("(float('nan'),) * 3", "(1,) * 3"),
            ("(.5,) * 3", "(float('inf'),) * 3"),
            ("'abc'", "'abc'"),
        )
    },
    "domains number": plugin(f"{DATA}DataSet('mine', 5, ('a',), (.5,), (.5,))", "data=mine"),
    "domain number": plugin(f"{DATA}DataSet('mine', (5,), ('a',), (.5,), (.5,))", "data=mine"),
    "arrays of lists": plugin(
        f"{DATA}DataSet('mine', (Domain('d', 'real', [1], [1], [1], [1]),), ('a',), (.5,), (.5,))",
        "data=mine",
    ),
    "objects": plugin(
        f"{DATA}DataSet('mine', (Domain('d', 'real', x.astype(object), y, x, y),), ('a', 'b'), "
        f"(.5,) * 3, (.5,) * 3)",
        "data=mine",
    ),
}
METRIC = "@flray.register_metric('mine')\n"
SAMPLER = "@flray.register_sampler('mine')\n"
CALLBACK = "@flray.register_callback('mine')\n"
MEASURED = "evaluation.metrics=[mine]"
SAMPLED = "participation.sampler=mine"
CALLED = "callbacks=[mine]"
ROUND = "    def round(self, number, metrics): pass\n"
PLUGINS |= {
    "metric a number": plugin("flray.register_metric('mine')(5)", MEASURED),
    "metric without name": plugin("flray.register_metric()(print)", MEASURED),
    "metric bare": plugin("@flray.register_metric\ndef m(targets, outputs): pass", MEASURED),
    "metric of one argument": plugin(f"{METRIC}def m(outputs): return 1", MEASURED),
    "metric of three": plugin(f"{METRIC}def m(targets, outputs, x): return 1", MEASURED),
    "metric with an option without value": plugin(
        f"{METRIC}def m(targets, outputs, *, a: int): return 1", MEASURED
    ),
    "metric with an option of any type": plugin(
        f"{METRIC}def m(targets, outputs, *, a: object = print): return 1", MEASURED
    ),
    "metric with a slash": plugin(
        "@flray.register_metric('a/b')\ndef m(targets, outputs): return 1",
        "evaluation.metrics=[a/b]",
    ),
    "metric called as another": plugin(
        "@flray.register_metric('loss')\ndef m(targets, outputs): return 1",
        "evaluation.metrics=[loss]",
    ),
    "metric not registered": plugin("", MEASURED),
    "metric twice": plugin(
        f"{METRIC}def m(targets, outputs): return 1", "evaluation.metrics=[mine, mine]"
    ),
    "metric of a text": plugin("", "evaluation.metrics=mine"),
    "metric of another kind": plugin("", "evaluation.metrics=[uniform]"),
    "sampler a text": plugin("flray.register_sampler('mine')('abc')", SAMPLED),
    "sampler of nothing": plugin(f"{SAMPLER}def s(): return [0]", SAMPLED),
    "sampler of two": plugin(f"{SAMPLER}def s(a, b): return [0]", SAMPLED),
    "sampler a class of nothing": plugin(f"{SAMPLER}class S: pass", SAMPLED),
    "sampler not registered": plugin("", SAMPLED),
    "sampler null": plugin("", "participation.sampler=null"),
    "sampler with a wrong option": plugin(
        f"{SAMPLER}def s(a, *, b: int = 1): return [0]", "participation.sampler={name: mine, b: x}"
    ),
    "power of no choice": plugin(
        "", "participation.sampler={name: power-of-choice, candidates: 0}"
    ),
    "callback a function": plugin(f"{CALLBACK}def c(run): pass", CALLED),
    "callback an instance": plugin("flray.register_callback('mine')(5)", CALLED),
    "callback without round": plugin(f"{CALLBACK}class C:\n    pass", CALLED),
    "callback round a number": plugin(f"{CALLBACK}class C:\n    round = 5", CALLED),
    "callback round of nothing": plugin(
        f"{CALLBACK}class C:\n    def __init__(self, run): pass\n    def round(self): pass", CALLED
    ),
    "callback of nothing": plugin(f"{CALLBACK}class C:\n{ROUND}", CALLED),
    "callback end of nothing": plugin(
        f"{CALLBACK}class C:\n{ROUND}    def __init__(self, run): pass\n    def end(self): pass",
        CALLED,
    ),
    "callback check raises": plugin(
        f"{CALLBACK}class C:\n{ROUND}    def __init__(self, run): pass\n"
        "    def check(): raise ValueError('no token')",
        CALLED,
    ),
    "callback Params": plugin(
        f"{CALLBACK}class C:\n{ROUND}    Params = 5\n    def __init__(self, run): pass", CALLED
    ),
    "callback not registered": plugin("", CALLED),
    "callback a text": plugin("", "callbacks=mine"),
    "callback twice": plugin("", "callbacks=[tensorboard, tensorboard]"),
}
ADDRESSES = (
    "127.0.0.1:9",
    "nonsense:1",
    "127.0.0.1:99999999",
    "a" * 300 + ":1",
    "..:1",
    "\n:1",
    "ray://127.0.0.1:9",
    "ray://",
    "http://127.0.0.1:9",
    "nowhere",
    "",
    ":::::",
    "127.0.0.1:",
    "auto:5",
    "é:5",
)
TYPED: dict[str, Input] = {
    **{
        f"address {address!r:.30}": typed(
            "run", "x.yaml", "resources.executor=ray", "--address", address
        )
        for address in ADDRESSES
    },
    "address for inline": typed("run", "x.yaml", "--address", "127.0.0.1:9"),
    **{
        f"typed {line}": typed(*line.split())
        for line in (
            "runn x.yaml",
            "run",
            "run x.yaml --rounds=3",
            "run --nothing x.yaml",
            "run x.yaml local.lr",
            "run x.yaml =1",
            "run x.yaml local.lr=[",
            "run x.yaml local..lr=1",
            "run x.yaml .=1",
            "run x.yaml local=5",
            "run x.yaml seed=1.0",
            "run x.yaml rounds=true",
            "run x.yaml rounds='1'",
            "run x.yaml local.lr=40%",
            "run x.yaml participation.fraction=40%",
            "run x.yaml sweep.seeds=3",
            "run x.yaml gpus=2",
            "run x.yaml experiment=5",
            "run x.yaml experiment.local.lr.x.y=1",
            "run x.yaml arms=5",
            "run x.yaml arms.a=5",
            "run x.yaml arms.a.b.c=5",
            "run x.yaml space=5",
            "run x.yaml space.=5",
            "run x.yaml space.local.lr=5",
            "run x.yaml sweep.samples=0",
            "run x.yaml plugins=[a,b]",
            "run x.yaml data=nothing",
            "run x.yaml data={}",
            "run x.yaml data=5",
            "run x.yaml model.x=5",
            "run x.yaml seed=99999999999999999999",
            "run none.yaml",
            "run .",
            "run /dev/zero",
            "run /dev/null",
            "run x.yaml/y",
            "tune",
            "tune none.yaml",
            "tune .",
            "tune x.yaml sweep.search=grid sweep.samples=5",
            "tune x.yaml --smoke=3",
            "resume",
            "resume none",
            "resume .",
            "resume x.yaml",
            "resume /",
            "resume ..",
            "report none",
            "report .",
            "report none.csv",
            "report x --reach y",
            "report x.yaml",
            "sync none",
            "sync .",
            "list",
            "list nothing",
            "list algorithms nothing",
            "list models 5",
            "data get nothing",
            "data get",
            "data shw",
            "data show none.yaml",
            "data show nothing",
            "data show x.yaml --plot a.b",
            "data show x.yaml partition=nothing",
            "schema x",
            "doctor x",
            "--nothing",
            "--versio",
        )
    },
    "typed name with NUL": typed("run", "a\0b"),
    "typed resume NUL": typed("resume", "a\0b"),
    "typed name of lines": typed("run", "a\nb"),
    "typed resume of lines": typed("resume", "a\nb"),
    "typed long name": typed("run", "a" * 5000),
    "typed resume long": typed("resume", "a" * 5000),
    "typed surrogate": typed("run", "a\udcff.yaml"),
    "typed report NUL": typed("report", "a\0b"),
    "typed report long": typed("report", "a" * 5000),
    "typed list of lines": typed("list", "a\nb"),
    "typed override of lines": typed("run", "x.yaml", "a\nb=c\nd"),
    "typed list NUL": typed("list", "models", "a\0b"),
    "typed data NUL": typed("data", "show", "a\0b"),
    "typed plot NUL": typed("data", "show", "x.yaml", "--plot", "a\0.png"),
}


def table(text: str, **options: Any) -> Input:
    """A table of one's own."""

    def write() -> None:
        Path("t.csv").write_text(text)
        given = {"name": "table", "path": "t.csv", "label": "y", **options}
        Path("x.yaml").write_text(yaml.safe_dump(with_value((E, "data"), given)))

    return write, ["run", "x.yaml", "model=linear"]


ROWS = "".join(f"{i % 7},{i % 2},{'ab'[i % 2]},h{i % 3}\n" for i in range(60))
TABLES: dict[str, Input] = {
    "the label among the columns": table(f"a,y,c,h\n{ROWS}", columns=["a", "y"]),
    "the domain among the columns": table(f"h,y,c,a\n{ROWS}", columns=["h"], by="h"),
    "a column twice": table(f"a,y,c,y\n{ROWS}"),
    "the label once more": table(f"a,y,c,h\n{ROWS}", label="c", columns=["a", "y"]),
    "fractions as classes": table("a,y\n" + "".join(f"{i},{i / 7}\n" for i in range(60))),
    "beyond float32": table("a,y\n1e39,1\n" + "1,0\n2,1\n" * 20),
    "no positive class": table(f"a,b,y,h\n{ROWS}", columns=["a"], task="binary"),
    "an unknown positive class": table(
        f"a,b,y,h\n{ROWS}", columns=["a"], task="binary", positive="c"
    ),
    "a positive class of no binary task": table(f"a,b,y,h\n{ROWS}", columns=["a"], positive="a"),
    "a label of lists": table("a,y\n" + '1,"[1]"\n' * 20),
    "an empty name": table(",\n" + "1,2\n" * 20),
}
LIMITS: dict[str, Input] = {
    " ".join(words): typed("run", "x.yaml", *words)
    for words in (
        ("data={name: random, shape: [100000, 100000]}",),
        ("data={name: random, classes: 1000000000}",),
        ("data={name: random, samples: 100000000000}",),
        ("model={name: mlp, hidden: [1000000000]}",),
        ("algorithm={name: fedprox, mu: .inf}",),
        ("algorithm={name: fedopt, eta: .inf}",),
        ("partition={name: dirichlet, alpha: .inf}",),
        ("shift={noise: 1e308}",),
        ("rounds=99999999999999999",),
        ("sweep.seeds=3",),
        ("evaluation.metrics=[auc]",),
        ("callbacks=[{name: tensorboard, folder: /proc/x}]",),
        ("name=a b",),
        ("aggregation.buffers=local", "algorithm=pooled", "model={name: lenet, norm: batch}"),
        (
            "aggregation.buffers=local",
            "participation.unseen=1",
            "model={name: lenet, norm: batch}",
            "partition={name: iid, clients: 4}",
        ),
    )
} | {
    "papers": typed("list", "papers", "nope"),
    "resume of nothing": typed("resume", "none", "rounds=99999999999999999999999"),
    "rounds twice": typed("resume", "x", "rounds=9", "rounds=8"),
}
ALL: dict[str, dict[str, Input]] = {
    "files": FILES,
    "plug-ins": PLUGINS,
    "typed": TYPED,
    "tables": TABLES,
    "limits": LIMITS,
}
"""Kinds of bad inputs."""
