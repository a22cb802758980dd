"""`python -m exporter` is the command `llm-vitals`."""

from exporter.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
