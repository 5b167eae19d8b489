"""``python -m flray.run experiment.yaml [key=value ...]``: the same as ``flray run``."""

from flray.cli.main import main

if __name__ == "__main__":
    main("run")
