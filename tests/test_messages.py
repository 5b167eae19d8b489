"""The page of texts holds those of tests alone, can be read, and notices another text or none."""

import pytest

from tests import messages
from tests.messages import COLLECTED, PAGE, refused


def test_the_page_is_of_the_tests_and_can_be_read(request: pytest.FixtureRequest) -> None:
    page, here = messages.read(), request.config.stash[COLLECTED]
    chosen = any("::" in word for word in request.config.args)
    files = {test.partition("::")[0] for test in here if not chosen}
    gone = [test for test in page if test.partition("::")[0] in files and test not in here]
    if messages.WRITING:
        messages.write({test: texts for test, texts in page.items() if test not in gone})
    assert messages.WRITING or not gone, gone
    assert all((request.config.rootpath / test.partition("::")[0]).exists() for test in page)
    assert all(line.isprintable() for line in PAGE.read_text().splitlines())


def test_another_text_or_none_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "WRITING", False)
    with pytest.raises(AssertionError, match="error 1 is not as in messages"):
        refused(int, "x")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        refused(int, "1")
