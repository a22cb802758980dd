"""Our reader of sample lines against prometheus_client's, on lines that the text format allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from exporter.relay.line import parse_comment, parse_line, parse_name

NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", fullmatch=True)
LABEL_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,10}", fullmatch=True)
TEXTS = st.text(max_size=12)
BLANKS = st.sampled_from(["", " ", "\t", "  "])
GAPS = st.sampled_from([" ", "\t", "  ", " \t"])
VALUES = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["NaN", "nan", "+Inf", "-Inf", "inf", "+5", ".5", "5.", "1E3", "1e-400", "-0", "00012"]),
)
BRACES = st.booleans()
TIMES = st.one_of(st.just(""), st.integers(-(2**40), 2**40).map(str))


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, str, dict[str, str], str]:
    """Return a line with what it means: name, labels, text of the value."""
    name, value = draw(NAMES), draw(VALUES)
    labels = draw(st.dictionaries(LABEL_NAMES, TEXTS, max_size=4))
    pairs = [f'{key}{draw(BLANKS)}={draw(BLANKS)}"{escaped(text)}"' for key, text in labels.items()]
    comma = draw(BLANKS) + "," + draw(BLANKS)
    inner = comma.join(pairs) + (draw(st.sampled_from(["", ",", " , "])) if pairs else "")
    braces = bool(labels) or draw(BRACES)
    series = f"{name}{draw(BLANKS)}{{{draw(BLANKS)}{inner}{draw(BLANKS)}}}" if braces else name
    stamp = draw(TIMES)
    end = draw(GAPS) + stamp if stamp else draw(BLANKS)
    gap = draw(GAPS) if not series.endswith("}") else draw(st.one_of(GAPS, st.just("")))
    return f"{series}{gap}{value}{end}", name, labels, value


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


@settings(max_examples=150, deadline=None)
@given(lines())
def test_a_valid_line_means_what_it_was_made_of(made: tuple[str, str, dict[str, str], str]) -> None:
    line, name, labels, value = made
    parsed = parse_line(line)
    assert (parsed.name, dict(parsed.labels), parsed.text) == (name, labels, value)
    assert list(parsed.labels) == sorted(parsed.labels)
    assert parse_name(line) == name


@settings(max_examples=150, deadline=None)
@given(lines())
def test_a_valid_line_means_the_same_to_prometheus_client(made: tuple[str, str, dict[str, str], str]) -> None:
    line, *_ = made
    (family,) = text_string_to_metric_families(line + "\n")
    (theirs,) = family.samples
    ours = parse_line(line)
    assert (ours.name, dict(ours.labels)) == (theirs.name, theirs.labels)
    assert same(float(ours.text), float(theirs.value))  # Theirs keeps whole numbers as int, exactly.


@settings(max_examples=100, deadline=None)
@given(lines(), VALUES)
def test_what_stands_before_the_value_of_a_plain_line_is_all_there_is_to_it(
    made: tuple[str, str, dict[str, str], str], other: str
) -> None:
    line, name, labels, _ = made
    if parse_line(line).plain:
        again = parse_line(f"{line.rpartition(' ')[0]} {other}")
        assert (again.name, dict(again.labels), again.text, again.plain) == (name, labels, other, True)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text(' \t{}=",#\\\n_:a0.e+-', max_size=40)))
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    try:
        parsed = parse_line(text)
    except ValueError as error:
        assert str(error) in {"no metric name", "labels cannot be read", "no value"} or "stands twice" in str(error)
    else:
        assert parsed.name in text
        float(parsed.text)


@pytest.mark.parametrize(
    ("line", "time"),
    [
        # Their parser is for the text format, whose time stamps are in milliseconds: seconds with a fraction are
        # OpenMetrics, and what follows ` # ` is an exemplar.  They take either for a time; the value is the same.
        ("a 3 1700000000.5", 1700000.0005),
        ('a_bucket{le="1"} 3 # {trace_id="x"} 0.5 1.7e9', 1700000.0),
    ],
)
def test_openmetrics_in_a_line_changes_no_value(line: str, time: float) -> None:
    (family,) = text_string_to_metric_families(line + "\n")
    assert (family.samples[0].value, family.samples[0].timestamp) == (3.0, time)
    assert parse_line(line).text == "3"
    assert not parse_line(line).plain


def test_digits_of_other_scripts_are_no_number_for_prometheus_and_one_for_its_client() -> None:
    line = "a \u0661\u0662"
    (family,) = text_string_to_metric_families(line + "\n")
    assert family.samples[0].value == 12.0
    with pytest.raises(ValueError, match="no value"):
        parse_line(line)


def test_a_label_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="label b stands twice"):
        parse_line('a{b="1",b="2"} 3')


@pytest.mark.parametrize(
    "line",
    [
        "", " ", "{} 1", "1a 1", "a", "a ", "a{} ", "a{}", 'a{b="c" 1', 'a{b="c} 1', "a{b=c} 1", 'a{="c"} 1',
        'a{b"c"} 1', "a{,} 1", 'a{b="c",,} 1', 'a{b="c"d="e"} 1', "a 1 2 3", "a 0x10", "a 1,5", "a one", "a 1 now",
        "a 1_000", "a-b 1", "a\u00a01",
    ],
)  # fmt: skip
def test_a_line_that_the_format_does_not_allow_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no metric name|labels cannot be read|no value"):
        parse_line(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("# HELP a What it is.", ("HELP", "a", "What it is.")),
        ("#\tTYPE  a\tcounter", ("TYPE", "a", "counter")),
        ("# TYPE a", ("TYPE", "a", "")),
        ("# EOF", None),
        ("# HELPa b", None),
        ("#", None),
        ("# a comment", None),
    ],
)
def test_a_comment_is_help_or_type_or_nothing(line: str, expected: tuple[str, str, str] | None) -> None:
    comment = parse_comment(line)
    assert (comment and (comment.keyword, comment.name, comment.text)) == expected


@pytest.mark.parametrize(
    ("line", "name"), [('{"my.metric",a="b"} 1', ""), ('{"a"} 1', ""), ("a{", "a"), ("a", "a"), ("!", None), ("", None)]
)
def test_the_name_is_read_although_the_rest_cannot_be(line: str, name: str | None) -> None:
    assert parse_name(line) == name
