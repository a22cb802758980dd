"""Pages in, samples out: odd payloads, every version's page, and the reader's memory against none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.backends.table import PAGES
from exporter.backends.vllm import VLLM
from exporter.catalogue import BY_NAME, render_labels
from exporter.model import Outcome
from exporter.relay.memory import MAX_LINES, Memory
from exporter.relay.normalize import Page, PageReader, normalize
from tests.conftest import ENGINE_PAGES, FIXTURES

CASES: list[dict[str, Any]] = yaml.safe_load((FIXTURES / "pages" / "cases.yml").read_text(encoding="utf-8"))
UPDATE = "UPDATE_GOLDEN" in os.environ


def values(page: Page) -> dict[str, float]:
    """Return the samples of a page by series, without target and backend; a series twice is an error."""
    if page.readings is None:
        return {}
    result: dict[str, float] = {}
    for sample in page.readings.samples():
        series = f"{sample.name}{{{render_labels(sample.labels)}}}"
        assert series not in result, f"{series} stands twice"
        result[series] = sample.value
    return result


def lines(page: Page) -> list[str]:
    """Return the text lines of a page."""
    return [line for text in page.readings.blocks().values() for line in text.splitlines()] if page.readings else []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_an_odd_payload_gives_what_is_right(case: dict[str, Any]) -> None:
    page = normalize(case["body"], VLLM, "t")
    expect = case["expect"]
    assert page.outcome == expect["outcome"], page.detail
    if expect["outcome"] == "ok":
        assert values(page) == expect.get("samples", {})
        assert page.report.bad_line_count == expect.get("bad_lines", 0), page.report.bad_lines
        assert page.report.dropped == expect.get("dropped", {})
    else:
        assert page.readings is None
        assert page.detail


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_an_odd_payload_after_a_good_page_gives_the_same(case: dict[str, Any]) -> None:
    reader = PageReader(VLLM, "t", Memory(VLLM))
    reader.read((FIXTURES / "vllm" / "0.32.0-real-after-bench.prom").read_text())
    for _ in range(2):
        page = reader.read(case["body"])
        assert (page.outcome, values(page), page.report) == (
            (fresh := normalize(case["body"], VLLM, "t")).outcome,
            values(fresh),
            fresh.report,
        )


def golden(page: Page) -> str:
    report = page.report
    out = [f"# outcome {page.outcome}"]
    out += [f"# source {family} {source}" for family, source in report.sources]
    out += [f"# dropped {reason} {count}" for reason, count in sorted(report.dropped.items())]
    out += [f"# unknown {family}" for family in report.unknown]
    out += [f"# bad line {line}" for line in report.bad_lines]
    return "\n".join([*out, *lines(page)]) + "\n"


@pytest.mark.parametrize("path", ENGINE_PAGES, ids=lambda path: path.stem)
def test_a_versions_page_gives_its_golden_output(path: Path) -> None:
    text = golden(normalize(path.read_text(encoding="utf-8"), PAGES[path.parent.name], "t"))
    expected = path.with_suffix(".out")
    if UPDATE:
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ENGINE_PAGES, ids=lambda path: path.stem)
def test_what_is_written_is_in_the_catalogue_with_its_labels(path: Path) -> None:
    page = normalize(path.read_text(encoding="utf-8"), PAGES[path.parent.name], "t")
    for sample in page.readings.samples() if page.readings else ():
        family = BY_NAME[sample.family]
        assert sample.name in family.sample_names
        names = tuple(name for name, _ in sample.labels if name != "le")
        assert names == family.labels


@pytest.mark.parametrize("path", ENGINE_PAGES, ids=lambda path: path.stem)
def test_a_second_page_is_read_from_memory_and_says_the_same(path: Path) -> None:
    text, engine = path.read_text(encoding="utf-8"), PAGES[path.parent.name]
    reader = PageReader(engine, "t", Memory(engine))
    first, second = reader.read(text), reader.read(text)
    assert (lines(first), first.report) == (lines(second), second.report)


BASE = (FIXTURES / "vllm" / "0.32.0-real-kv-exhausted.prom").read_text().splitlines()
MAPPED = [at for at, line in enumerate(BASE) if "num_requests" in line or "time_to_first" in line or "success" in line]
NUMBERS = st.one_of(
    st.integers(0, 10**9).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.sampled_from(
        ["NaN", "+Inf", "-inf", "1_000", "0x10", "", " ", "1,5", "\uff11\uff12", "1e400", "5 1700000000", "7 # {} 1"]
    ),
)
EDIT = st.one_of(
    st.tuples(st.just("value"), st.sampled_from(MAPPED), NUMBERS),
    st.tuples(st.just("drop"), st.sampled_from(MAPPED), st.just("")),
    st.tuples(st.just("twice"), st.sampled_from(MAPPED), NUMBERS),
    st.tuples(st.just("swap"), st.sampled_from(MAPPED), st.just("")),
    st.tuples(st.just("junk"), st.sampled_from(MAPPED), st.text(max_size=20)),
)


def edited(edits: list[tuple[str, int, str]]) -> str:
    page = list(BASE)
    for kind, at, text in edits:
        line = page[at]
        series = line.rpartition(" ")[0]
        page[at] = {
            "value": f"{series} {text}",
            "drop": "",
            "twice": f"{line}\n{series} {text}",
            "swap": f"{page[at - 1]}\n{line}",
            "junk": f"{line}\n{text}",
        }[kind]
    return "\n".join(page) + "\n"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(EDIT, max_size=3), min_size=1, max_size=4))
def test_memory_never_changes_an_answer(history: list[list[tuple[str, int, str]]]) -> None:
    reader = PageReader(VLLM, "t", Memory(VLLM))
    for edits in history:
        text = edited(edits)
        remembered, fresh = reader.read(text), normalize(text, VLLM, "t")
        assert remembered.outcome == fresh.outcome
        assert values(remembered) == values(fresh)
        assert sorted(lines(remembered)) == sorted(lines(fresh))
        assert remembered.report == fresh.report


@settings(max_examples=100, deadline=None)
@given(st.lists(EDIT, max_size=6))
def test_what_is_written_is_always_valid_for_prometheus(edits: list[tuple[str, int, str]]) -> None:
    page = normalize(edited(edits), VLLM, "t")
    histograms: dict[tuple[str, str], list[tuple[float, float]]] = {}
    counts: dict[tuple[str, str], float] = {}
    for sample in page.readings.samples() if page.readings else ():
        assert abs(sample.value) != float("inf")
        assert sample.value == sample.value
        key = (sample.family, render_labels(tuple(label for label in sample.labels if label[0] != "le")))
        if sample.name.endswith("_bucket"):
            histograms.setdefault(key, []).append((float(sample.labels[-1][1]), sample.value))
        elif sample.name.endswith("_count"):
            counts[key] = sample.value
    assert histograms.keys() == counts.keys()
    for key, buckets in histograms.items():
        assert buckets == sorted(buckets)
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), counts[key])
    assert len(values(page)) == len(lines(page))


def page_of(*extra: str) -> str:
    return "\n".join(
        [
            'vllm:num_requests_running{engine="0",model_name="m"} 1',
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5',
            *extra,
        ]
    )


def test_a_family_that_comes_and_goes_is_absent_while_it_is_gone() -> None:
    reader = PageReader(VLLM, "t", Memory(VLLM))
    waiting = 'vllm:num_requests_waiting{engine="0",model_name="m"} 4'
    series = 'vitals_requests_waiting{model="m",engine="0"}'
    answers = [values(reader.read(page)).get(series) for page in (page_of(), page_of(waiting), page_of())]
    assert answers == [None, 4.0, None]


@pytest.mark.parametrize(
    "line",
    [
        'vllm:lora_requests_info{{running_lora_adapters="a{0}"}} 1.7e9',
        'vllm:num_requests_waiting{{engine="{0}"}} 1 1795980580732',
        "vllm:new_{0} 1 1795980580732",
    ],
)
def test_labels_that_change_for_ever_do_not_fill_the_memory(line: str) -> None:
    memory = Memory(VLLM, max_lines=100)
    reader, neighbour = PageReader(VLLM, "t", memory), PageReader(VLLM, "u", memory)
    series = 'vitals_requests_running{model="m",engine="0"}'
    for number in range(500):
        page = reader.read(page_of(line.format(number)))
        assert values(page)[series] == values(neighbour.read(page_of()))[series] == 1.0
        assert max(len(memory.slots), len(memory.series), len(memory.ignored)) <= 100


def test_long_lines_that_change_for_ever_do_not_fill_the_memory() -> None:
    memory = Memory(VLLM, max_size=50_000)
    reader = PageReader(VLLM, "t", memory)
    for number in range(100):
        reader.read(page_of(f'go_thing{{a="{number}{"b" * 1000}"}} 1'))
        assert sum(map(len, memory.slots)) <= 50_000


def test_a_page_that_fits_the_memory_is_learned_once() -> None:
    memory = Memory(VLLM, max_lines=100)
    reader = PageReader(VLLM, "t", memory)
    text = "\n".join(f'go_thing{{a="{number}"}} 1' for number in range(80))
    assert reader.read(text).outcome is Outcome.NO_LLM_METRICS
    learned = memory.slots
    assert reader.read(text).outcome is Outcome.NO_LLM_METRICS
    assert memory.slots is learned


def test_a_page_of_more_lines_than_can_be_remembered_is_too_large() -> None:
    page = normalize("a 1\n" * (MAX_LINES + 1), VLLM, "t")
    assert (page.outcome, page.readings) == (Outcome.TOO_LARGE, None)
    assert page.detail == "the page has more than 100000 lines; check url and metrics_path"


def test_targets_that_share_what_was_parsed_do_not_share_values() -> None:
    memory = Memory(VLLM)
    readers = [PageReader(VLLM, name, memory) for name in "tu"]
    for value in (1, 2):
        pages = [reader.read(f"vllm:num_requests_running {value * at}") for at, reader in enumerate(readers, 1)]
        assert [lines(page) for page in pages] == [
            [f'vitals_requests_running{{target="{name}",backend="vllm",engine="0"}} {value * at}']
            for at, name in enumerate("tu", 1)
        ]


def test_a_family_that_nobody_knows_is_named_and_a_known_one_is_not() -> None:
    report = normalize(
        page_of('vllm:brand_new_total{engine="0"} 1', "vllm:mm_cache_hits_total 2", "go_threads 3"), VLLM, "t"
    ).report
    assert report.unknown == ("vllm:brand_new",)
    assert report.unmapped == ("go_threads", "vllm:brand_new", "vllm:mm_cache_hits")


def test_a_router_in_front_of_engines_is_called_by_its_name() -> None:
    page = normalize(
        'vllm:num_requests_running{server="http://a"} 1\nvllm:healthy_pods_total{server="a"} 2\n', VLLM, "t"
    )
    assert page.outcome is Outcome.NO_LLM_METRICS
    assert "production-stack router" in page.detail
    assert page.readings is None


def test_blocks_become_tokens_only_where_help_says_blocks() -> None:
    def page(word: str) -> str:
        name = "vllm:gpu_prefix_cache_hits_total"
        return page_of(
            f"# HELP {name} GPU prefix cache hits, in terms of number of cached {word}.",
            f'{name}{{engine="0",model_name="m"}} 10',
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1',
        )

    series = 'vitals_prefix_cache_hits_tokens_total{model="m",engine="0"}'
    reader = PageReader(VLLM, "t", Memory(VLLM))
    answers = [values(reader.read(page(word)))[series] for word in ("blocks", "tokens", "blocks", "blocks")]
    assert answers == [160.0, 10.0, 160.0, 160.0]


def test_counters_in_an_unknown_unit_are_withheld() -> None:
    page = normalize(page_of('vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 10'), VLLM, "t")
    assert not any("prefix_cache" in series for series in values(page))
    assert page.report.dropped == {"unit": 1}


def test_blocks_of_several_engines_are_a_sum_that_each_of_them_reports() -> None:
    config = 'vllm:cache_config_info{{block_size="16",engine="{0}",num_gpu_blocks="200"}} 1'
    page = normalize(
        page_of('vllm:num_requests_running{engine="1",model_name="m"} 1', config.format(0), config.format(1)), VLLM, "t"
    )
    assert [value for series, value in values(page).items() if "capacity" in series] == [1600.0, 1600.0]


def test_a_percent_sign_in_a_models_name_survives() -> None:
    page = normalize('vllm:num_requests_running{model_name="a%sb%"} 2', VLLM, "50%")
    assert lines(page) == ['vitals_requests_running{target="50%",backend="vllm",model="a%sb%",engine="0"} 2']


def test_a_label_that_is_too_long_costs_its_own_line_only() -> None:
    long = f'vllm:num_requests_waiting{{model_name="{"a" * 600}"}} 1'
    page = normalize(page_of(long, 'vllm:cache_config_info{a="' + "b" * 600 + '"} 1'), VLLM, "t")
    assert values(page) == values(normalize(page_of(), VLLM, "t"))
    assert page.report.bad_lines == (f"{long[:200]} (a label longer than 512 characters)",)
