"""``python -m flray.new method NAME`` in a checkout: a method's file, its test and its line in CHANGELOG.md."""
