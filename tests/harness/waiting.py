"""Waiting with a limit."""
import time


def wait_for(happens, what, limit_s=60, poll_s=0.05):
    """The first true value of `happens`. `what` says what was waited for, or is a function that tells
    how it is instead."""
    end = time.monotonic() + limit_s
    while not (value := happens()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what() if callable(what) else what}")
        time.sleep(poll_s)
    return value
