"""The rules' test cases for promtool: `python -m tests.rules` writes them to prometheus/tests."""
