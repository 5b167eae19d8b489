"""``python -m flray.tune search_spaces/x.yaml [key=value ...]``: the same as ``flray tune``."""

from flray.cli.main import main

if __name__ == "__main__":
    main("tune")
