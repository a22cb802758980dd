"""Write prometheus/tests."""

from tests.rules.suite import FOLDER, files

FOLDER.mkdir(exist_ok=True)
for name, text in files().items():
    (FOLDER / name).write_text(text, encoding="utf-8")
