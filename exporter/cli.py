"""The command `llm-vitals`: its options, and what each command does."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from exporter import __version__, logs
from exporter.config import Config, ConfigError, Listen, load, parse_listen

BAD_CONFIG = 2
"""Exit code for a configuration or a command line that cannot be used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the process's exit code if it could not begin, else end the process with its own."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "run")
    options = _parser(arguments[0]).parse_args(arguments)
    logs.set_up(options.log_level, options.log_format)
    try:
        command = options.begin(options)
    except ConfigError as error:
        for problem in error.problems:
            print(f"llm-vitals: {problem}", file=sys.stderr)
        return BAD_CONFIG
    return asyncio.run(_to_the_end(command))


# Each command imports its own modules when it runs: a scrape should not pay for a demo.
def _run(options: argparse.Namespace) -> Coroutine[None, None, int]:
    from exporter.serve import serve

    config = _load(options)
    gc.freeze()  # What start-up made lives for ever; the collector need not look at it again.
    return serve(config, lambda: _load(options), options.enable_lifecycle)


def _check(options: argparse.Namespace) -> Coroutine[None, None, int]:
    from exporter.check import check

    return check(_load(options))


def _demo(options: argparse.Namespace) -> Coroutine[None, None, int]:
    from exporter.simulator import demo

    return demo.run(options)


async def _to_the_end(command: Coroutine[None, None, int]) -> NoReturn:
    """Run a command and end the process with its exit code.

    The look-up of a name can hang in a thread that cannot be cancelled, and Python would wait for it to return.
    """
    code = await command
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)


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


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser; `command` is the one asked for, since only its options need its modules."""
    parser = argparse.ArgumentParser(
        prog="llm-vitals",
        description="The vital signs of self-hosted LLM servers, for Prometheus. Without a command: run.",
        epilog="Without --config: VLLM_URL and OLLAMA_URL (comma-separated) and VLLM_API_KEY from the environment; "
        "without those, a vLLM on port 8000 and an Ollama on port 11434 of this machine are looked for.",
    )
    parser.add_argument("--version", action="version", version=f"llm-vitals {__version__}")
    logging_ = argparse.ArgumentParser(add_help=False)
    logging_.add_argument("--log-level", choices=logs.LEVELS, default="info")
    logging_.add_argument("--log-format", choices=logs.FORMATS, default="text")
    serving = argparse.ArgumentParser(add_help=False)
    serving.add_argument("--listen", type=_listen, metavar="ADDR:PORT", help="where to serve (default 127.0.0.1:10434)")
    config = argparse.ArgumentParser(add_help=False, parents=[serving, logging_])
    config.add_argument("--config", type=Path, metavar="FILE", help="the configuration in YAML (vitals.example.yml)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", parents=[config], help="serve /metrics and the pages (the default)")
    run.add_argument("--enable-lifecycle", action="store_true", help="allow POST /-/reload")
    run.set_defaults(begin=_run)
    check = commands.add_parser("check", parents=[config], help="check the configuration and ask each target once")
    check.set_defaults(begin=_check)
    demo = commands.add_parser(
        "demo", parents=[serving, logging_], help="simulated servers with traffic, and the exporter"
    )
    demo.set_defaults(begin=_demo)
    if command == "demo":
        from exporter.simulator.demo import add_arguments

        add_arguments(demo)
    return parser
