"""What a loaded model's expiry would be without us, worked out from what the server shows."""

from __future__ import annotations

import math

import pytest

from exporter.probe.expiry import LOOK, Expiry


def seconds(keep_alive: str | int) -> float:
    assert isinstance(keep_alive, str)
    return float(keep_alive.removesuffix("s"))


def test_a_probes_keep_alive_is_what_is_left_less_what_the_probe_will_take() -> None:
    expiry = Expiry(shown=1300.0, now=1000.0, watched=True)
    assert seconds(expiry.ask(1060.0, lasting=2.0)) == pytest.approx(238.0)


def test_how_long_probes_really_take_does_not_add_up() -> None:
    expiry = Expiry(shown=2000.0, now=1000.0, watched=True)
    for start in range(1010, 1900, 60):
        left_behind = seconds(expiry.ask(start, lasting=1.0))
        expiry.see(start + 5.0 + left_behind, start + 5.0)  # each took four seconds longer than expected
        assert expiry.due == 2000.0


def test_a_keep_alive_is_never_negative_which_would_be_for_ever() -> None:
    expiry = Expiry(shown=1030.0, now=1000.0, watched=True)
    assert seconds(expiry.ask(1000.0, lasting=90.0)) == LOOK


def test_a_model_that_stays_for_ever_is_told_to_stay_for_ever() -> None:
    expiry = Expiry(shown=1.7e9 + 9.2e9, now=1.7e9, watched=False)
    assert expiry.ask(1.7e9, 1.0) == -1
    assert math.isinf(expiry.left(1.7e9))


def test_a_users_request_after_a_probe_gets_its_whole_stay_back() -> None:
    expiry = Expiry(shown=1300.0, now=1000.0, watched=True)
    left_behind = seconds(expiry.ask(1100.0, lasting=1.0))
    expiry.see(1101.0 + left_behind, 1101.0)
    assert not expiry.wrong(1101.0)
    expiry.see(1155.0 + left_behind, 1160.0)  # a request ended at 1155 and took the keep_alive that we left behind
    assert expiry.due == pytest.approx(1455.0)
    assert expiry.wrong(1160.0)
    assert seconds(expiry.ask(1160.0, lasting=0.0)) == pytest.approx(295.0)


def test_a_users_own_keep_alive_is_taken_over() -> None:
    expiry = Expiry(shown=1300.0, now=1000.0, watched=True)
    left_behind = seconds(expiry.ask(1100.0, lasting=1.0))
    expiry.see(1101.0 + left_behind, 1101.0)
    expiry.see(1155.0 + 3600.0, 1160.0)
    assert expiry.due == pytest.approx(4755.0)
    assert not expiry.wrong(1160.0)
    left_behind = seconds(expiry.ask(1200.0, lasting=1.0))
    expiry.see(1201.0 + left_behind, 1201.0)
    expiry.see(1210.0 + left_behind, 1211.0)
    assert expiry.due == pytest.approx(1210.0 + 3600.0)


def test_a_model_that_was_there_before_is_taken_to_have_the_default_stay_or_what_shows_more() -> None:
    for shown, stay in ((1100.0, 300.0), (1600.0, 600.0)):
        expiry = Expiry(shown, now=1000.0, watched=False)
        left_behind = seconds(expiry.ask(1010.0, lasting=1.0))
        expiry.see(1011.0 + left_behind, 1011.0)
        expiry.see(1020.0 + left_behind, 1021.0)
        assert expiry.due == pytest.approx(1020.0 + stay)


def test_a_use_seen_before_any_probe_tells_the_stay() -> None:
    expiry = Expiry(shown=1050.0, now=1000.0, watched=False)
    expiry.see(1004.0 + 120.0, 1010.0)
    expiry.used(1100.0)
    assert expiry.due == pytest.approx(1100.0 + 120.0)


def test_nothing_is_repaired_of_a_model_about_to_leave_which_a_repair_might_load_again() -> None:
    expiry = Expiry(shown=1030.0, now=1000.0, watched=True)
    left_behind = seconds(expiry.ask(1000.0, lasting=1.0))
    expiry.see(1009.0 + left_behind, 1009.0)
    assert expiry.wrong(1009.0)
    assert not expiry.wrong(1026.0)


def test_a_request_that_never_reached_the_server_changes_nothing() -> None:
    expiry = Expiry(shown=1300.0, now=1000.0, watched=True)
    expiry.ask(1100.0, lasting=1.0)
    for now in (1100.1, 1110.0, 1120.0):
        expiry.see(1300.0, now)
        assert not expiry.wrong(now)
    assert expiry.due == 1300.0
    expiry.see(1125.0 + 300.0, 1130.0)  # a user's, with the server's own keep_alive
    assert expiry.due == pytest.approx(1425.0)


def test_after_a_request_that_never_reached_the_server_a_users_takes_what_the_one_before_left() -> None:
    expiry = Expiry(shown=1300.0, now=1000.0, watched=True)
    left_behind = seconds(expiry.ask(1100.0, lasting=1.0))
    expiry.see(1101.0 + left_behind, 1101.0)
    for failed in (1140.0, 1170.0):
        expiry.ask(failed, lasting=1.0)
        expiry.refused()
        expiry.see(1101.0 + left_behind, failed + 0.1)
    expiry.see(1175.0 + left_behind, 1180.0)
    assert expiry.due == pytest.approx(1475.0)
    assert expiry.wrong(1180.0)
    expiry.see(1190.0 + left_behind, 1191.0)
    assert expiry.due == pytest.approx(1490.0)
