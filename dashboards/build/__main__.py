"""Write every dashboard to dashboards/json."""

from dashboards.build.boards import FOLDER, render

for name, text in render().items():
    (FOLDER / name).write_text(text, encoding="utf-8")
