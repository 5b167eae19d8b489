"""``python -m flray.tune FILE.yaml [key=value ...]`` is ``flray tune``; `flray.tune` can also be called."""

from flray.process import make_callable

make_callable(__name__, "flray.api", "tune")

if __name__ == "__main__":
    from flray.cli.main import main  # only here: it costs a call from Python nothing

    main("tune")
