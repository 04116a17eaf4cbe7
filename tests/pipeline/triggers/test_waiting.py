"""How long brokers rest after a trigger that found nothing."""

from __future__ import annotations

from geminga.pipeline.triggers.waiting import REST_S_MAX, Rest


def test_brokers_rest_nine_times_as_long_as_they_were_asked() -> None:
    rest = Rest()
    assert rest.left_s(5.0) == 0.0
    rest.asked(10.0, 10.0625, found=False)
    assert rest.left_s(10.0625) == 0.5625
    assert rest.left_s(10.5) == 0.125
    assert rest.left_s(20.0) == 0.0  # the trigger has an interval of its own


def test_a_rest_is_bounded_and_ends_with_what_is_found() -> None:
    rest = Rest()
    rest.asked(10.0, 14.0, found=False)
    assert rest.left_s(14.0) == REST_S_MAX
    rest.asked(15.0, 19.0, found=True)
    assert rest.left_s(19.0) == 0.0
