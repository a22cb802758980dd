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
from exporter.config import PROBE_DIALECTS, Config, ConfigError, Listen, load, load_one, parse_listen

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
        sys.stdout.flush()
    except ConfigError as error:
        for problem in error.problems:
            print(f"llm-vitals: {problem}", file=sys.stderr)
        return BAD_CONFIG
    except BrokenPipeError:
        return _unheard()
    return command if isinstance(command, int) else asyncio.run(_to_the_end(command))


def _unheard() -> int:
    """Give up: who read our output has gone, as `head` does.  Python would complain at its end of what is unwritten."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


# Each command imports its own modules when it runs: a scrape should not pay for a demo.
def _run(options: argparse.Namespace) -> Coroutine[None, None, int]:
    from exporter.serve import serve

    config = _load(options)
    gc.freeze()  # What start-up made lives for ever; the collector need not look at it again.
    return serve(config, lambda: _load(options), options.enable_lifecycle)


def _check(options: argparse.Namespace) -> Coroutine[None, None, int]:
    config = _load(options)
    if options.self:
        from exporter.health import check_self

        return check_self(config.listen)
    from exporter.check import check

    return check(config)


def _probe(options: argparse.Namespace) -> Coroutine[None, None, int]:
    from exporter.probe.command import Options, probe

    target = load_one(options.target, options.config, os.environ)
    return probe(target, Options(options.model, options.n, options.max_tokens, options.dialect, options.json))


def _demo(options: argparse.Namespace) -> Coroutine[None, None, int]:
    from exporter.simulator import demo

    return demo.run(options)


def _simulate(options: argparse.Namespace) -> Coroutine[None, None, int]:
    from exporter.simulator import simulate

    return simulate.run(options)


def _explain(options: argparse.Namespace) -> int:
    from exporter import explain

    return explain.run(options)


def _export(options: argparse.Namespace) -> int:
    from exporter.export import ExportError, export

    try:
        export(options.directory)
    except ExportError as error:
        print(f"llm-vitals: {error}", file=sys.stderr)
        return 1
    return 0


async def _to_the_end(command: Coroutine[None, None, int]) -> NoReturn:
    """Run a command and end the process with its exit code.

    The look-up of a name can hang in a thread that cannot be cancelled, and Python would wait for it to return.
    """
    try:
        code = await command
        sys.stdout.flush()
    except BrokenPipeError:
        code = _unheard()
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


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"expected a whole number in 1..4096, got {text!r}")
    return int(text)


def _logging(level: str) -> argparse.ArgumentParser:
    """Return the options about the log; a parser of its own for each default, since parents share their options."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--log-level", choices=logs.LEVELS, default=level)
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")
    return parser


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser; `command` is the one asked for, since only its options need its modules."""
    parser = argparse.ArgumentParser(
        prog="llm-vitals",
        description="The vital signs of self-hosted LLM servers, for Prometheus. Without a command: run.",
        epilog="Without --config: VLLM_URL and OLLAMA_URL (comma-separated), VLLM_API_KEY and PROBE_MODELS from "
        "the environment; "
        "without those, a vLLM on port 8000 and an Ollama on port 11434 of this machine are looked for. "
        "LLM_VITALS_CONFIG and LLM_VITALS_LISTEN stand for --config and --listen.",
    )
    parser.add_argument("--version", action="version", version=f"llm-vitals {__version__}")
    logging_ = _logging("info")
    serving = argparse.ArgumentParser(add_help=False)
    serving.add_argument(
        "--listen",
        type=_listen,
        default=os.environ.get("LLM_VITALS_LISTEN") or None,
        metavar="ADDR:PORT",
        help="where to serve (default 127.0.0.1:10434)",
    )
    config = argparse.ArgumentParser(add_help=False)
    config.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("LLM_VITALS_CONFIG") or None,
        metavar="FILE",
        help="the configuration in YAML (vitals.example.yml)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run", parents=[config, serving, logging_], help="serve /metrics and the pages (the default)"
    )
    run.add_argument("--enable-lifecycle", action="store_true", help="allow POST /-/reload")
    run.set_defaults(begin=_run)
    check = commands.add_parser(
        "check", parents=[config, serving, logging_], help="check the configuration and ask each target once"
    )
    check.add_argument("--self", action="store_true", help="ask instead whether the exporter itself serves")
    check.set_defaults(begin=_check)
    probe = commands.add_parser(
        "probe", parents=[config, _logging("error")], help="measure one server now, and print a table"
    )
    probe.add_argument("target", metavar="URL", help="its URL, or its name in the configuration")
    probe.add_argument("--model", default="", help="the model to ask (default: the first that is there)")
    probe.add_argument("-n", type=_count, default=5, help="probes of each prompt size (default 5)")
    probe.add_argument("--max-tokens", type=_count, default=32, help="tokens of each answer (default 32)")
    probe.add_argument("--dialect", choices=PROBE_DIALECTS, default="auto", help="the API to speak (default auto)")
    probe.add_argument("--json", action="store_true", help="print JSON: seconds, and tokens per second")
    probe.set_defaults(begin=_probe)
    demo = commands.add_parser(
        "demo", parents=[serving, logging_], help="simulated servers with traffic, and the exporter"
    )
    demo.set_defaults(begin=_demo)
    simulate = commands.add_parser("simulate", parents=[logging_], help="the demo's servers and traffic alone")
    simulate.set_defaults(begin=_simulate)
    export = commands.add_parser(
        "export", parents=[logging_], help="write out dashboards, rules, configuration, systemd and Kubernetes files"
    )
    export.add_argument("directory", type=Path, metavar="DIR", help="where to; it is made if it is not there")
    export.set_defaults(begin=_export)
    explain = commands.add_parser(
        "explain", parents=[logging_], help="say in plain words why each server is as it is, and what to change"
    )
    explain.set_defaults(begin=_explain)
    if command == "explain":
        from exporter.explain import add_arguments as add_explain_arguments

        add_explain_arguments(explain)
    elif command == "demo":
        from exporter.simulator.demo import add_arguments

        add_arguments(demo)
    elif command == "simulate":
        from exporter.simulator.simulate import add_arguments as add_simulate_arguments

        add_simulate_arguments(simulate)
    return parser
