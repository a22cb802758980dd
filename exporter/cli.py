"""The command `llm-vitals`: its options, and what each command does."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from exporter import __version__, logs
from exporter.config import Config, ConfigError, Listen, load, parse_listen

BAD_CONFIG = 2
"""Exit code for a configuration or a command line that cannot be used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "run")
    options = _parser().parse_args(arguments)
    logs.set_up(options.log_level, options.log_format)
    try:
        config = _load(options)
    except ConfigError as error:
        for problem in error.problems:
            print(f"llm-vitals: {problem}", file=sys.stderr)
        return BAD_CONFIG
    if options.command == "check":
        from exporter.check import check

        return asyncio.run(check(config))
    from exporter.serve import serve

    gc.freeze()  # What start-up made lives for ever; the collector need not look at it again.
    return asyncio.run(serve(config, lambda: _load(options), options.enable_lifecycle))


def _load(options: argparse.Namespace) -> Config:
    config = load(options.config, os.environ, in_container())
    return replace(config, listen=options.listen) if options.listen else config


def in_container() -> bool:
    """Return whether this process runs in a container: 127.0.0.1 is then not the host's."""
    return (
        Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ
    )


def _listen(text: str) -> Listen:
    try:
        return parse_listen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llm-vitals",
        description="The vital signs of self-hosted LLM servers, for Prometheus. Without a command: run.",
        epilog="Without --config: VLLM_URL and OLLAMA_URL (comma-separated) and VLLM_API_KEY from the environment; "
        "without those, a vLLM on port 8000 and an Ollama on port 11434 of this machine are looked for.",
    )
    parser.add_argument("--version", action="version", version=f"llm-vitals {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, metavar="FILE", help="the configuration in YAML (vitals.example.yml)")
    common.add_argument("--listen", type=_listen, metavar="ADDR:PORT", help="where to serve (default 127.0.0.1:10434)")
    common.add_argument("--log-level", choices=logs.LEVELS, default="info")
    common.add_argument("--log-format", choices=logs.FORMATS, default="text")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", parents=[common], help="serve /metrics and the pages (the default)")
    run.add_argument("--enable-lifecycle", action="store_true", help="allow POST /-/reload")
    commands.add_parser("check", parents=[common], help="check the configuration and ask each target once")
    return parser
