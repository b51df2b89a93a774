"""Log lines reach the stream whole and in order, without waiting for the process to end."""

import io
import logging
import re
import threading
import time
from collections.abc import Iterator

import pytest

from router import logs
from router.logs import LINE, MAX_LINES, BlockHandler, RequestLog, SecondsFormatter


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logger(stream: io.StringIO) -> Iterator[logging.Logger]:
    logger = logging.Logger("router.test", logging.INFO)
    handler = BlockHandler(stream)
    handler.setFormatter(SecondsFormatter(LINE))
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_a_line_is_written_within_moments(
    logger: logging.Logger, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_WAIT_S", 0.01)
    logger.info("request %s", "r1")
    assert stream.getvalue() == ""
    deadline_s = time.monotonic() + 5
    while not stream.getvalue() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO router.test request r1\n", stream.getvalue())


def test_a_warning_takes_the_lines_before_it_along(logger: logging.Logger, stream: io.StringIO) -> None:
    logger.info("first")
    logger.warning("second")
    assert [line.rsplit(" ", 1)[1] for line in stream.getvalue().splitlines()] == ["first", "second"]


def test_many_lines_do_not_wait(logger: logging.Logger, stream: io.StringIO) -> None:
    for number in range(MAX_LINES):
        logger.info("line %d", number)
    assert len(stream.getvalue().splitlines()) == MAX_LINES


def test_closing_writes_what_is_left(logger: logging.Logger, stream: io.StringIO) -> None:
    logger.info("last")
    logger.handlers[0].close()
    assert stream.getvalue().endswith("last\n")


def test_a_traceback_stays_with_its_line(logger: logging.Logger, stream: io.StringIO) -> None:
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logger.exception("failed")
    assert "RuntimeError: broken" in stream.getvalue()


def test_the_time_is_the_record_s() -> None:
    formatter, plain = SecondsFormatter("%(asctime)s"), logging.Formatter("%(asctime)s")
    for created in (1_000_000_000.25, 1_000_000_000.75, 1_000_000_001.0):
        record = logging.makeLogRecord({"created": created, "msecs": created % 1 * 1000})
        assert formatter.format(record) == plain.format(record)


def test_a_request_s_line_looks_like_every_other(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = BlockHandler(stream)
    handler.setFormatter(SecondsFormatter(LINE))
    monkeypatch.setattr(logging.root, "handlers", [handler])
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.25)
    RequestLog("router.test").write("request r1 200")
    logging.getLogger("router.test").warning("request r1 200")
    one, other = stream.getvalue().splitlines()
    assert one == other.replace("WARNING", "INFO")


def test_a_request_s_line_goes_where_others_listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="router.test")
    log = RequestLog("router.test")
    assert log.is_enabled
    log.write("100% of it")
    assert caplog.messages == ["100% of it"]
    caplog.set_level("WARNING", logger="router.test")
    assert not log.is_enabled


def test_no_line_is_lost_between_threads(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_WAIT_S", 0.001)
    handler = BlockHandler(stream)

    def write_many() -> None:
        for _ in range(5000):
            handler.add("x")

    threads = [threading.Thread(target=write_many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handler.close()
    assert len(stream.getvalue().splitlines()) == 15_000
