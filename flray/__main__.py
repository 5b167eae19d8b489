"""``python -m flray COMMAND ...``: the same as ``flray COMMAND ...``."""

from flray.cli.main import main

if __name__ == "__main__":
    main()
