"""``python -m flray.run FILE.yaml [key=value ...]`` is ``flray run``; `flray.run` can also be called."""

from flray.process import make_callable

make_callable(__name__, "flray.runs.runner", "run")

if __name__ == "__main__":
    from flray.cli.main import main  # only here: it costs a call from Python nothing

    main("run")
