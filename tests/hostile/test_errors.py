"""Errors reach the user from whichever process they were raised in."""

import pickle

import pytest

from flray.errors import ConfigError, ConfigErrors, DataError, FlrayError

ONE = ConfigError("experiment.local.lr", "-1", "above 0")


@pytest.mark.parametrize(
    "error", [ONE, ConfigErrors([ONE, ONE]), DataError("no file"), FlrayError("no")], ids=repr
)
def test_an_error_crosses_from_process_to_process(error: FlrayError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    assert vars(again).keys() == vars(error).keys()
