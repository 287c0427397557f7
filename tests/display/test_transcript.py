"""`Transcript` against what a terminal would show, and `RankOutput`'s order."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sky_jupyter.display.model import ansi
from sky_jupyter.display.model.transcript import RankOutput, Rich, Text, Transcript


def lines(*chunks: str, **options: int) -> list[str]:
    transcript = Transcript(**options)
    for chunk in chunks:
        transcript.feed(chunk)
    return transcript.lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\n\nb", ["a", "", "b"]),
        ("", []),
        ("10%\r20%\r100%\n", ["100%"]),
        ("long line\rnew", ["newg line"]),
        ("long line\r\x1b[Knew", ["new"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("abc\b\bX", ["aXc"]),
        ("\b\bX", ["X"]),
        ("abc\x1b[2DX\x1b[3GY", ["aXY"]),
        ("ab\x1b[2CX", ["ab  X"]),
        ("abc\x1b[1KX", ["   X"]),
        ("abc\x1b[2KX", ["   X"]),
        ("one\ntwo\nthree\x1b[2AX\x1b[1BY", ["one  X", "two   Y", "three"]),
        ("one\ntwo\x1b[1F\x1b[JX", ["X"]),
        ("\x1b]0;title\x07a\x1b]8;;link\x1b\\b\x1b[?25lc\x1b(Bd\x07\x00e", ["abcde"]),
        ("tab\there", ["tab\there"]),
    ],
)
def test_control_characters_act_as_in_a_terminal(text, expected):
    assert lines(text) == expected
    assert lines(*text) == expected


def test_a_bar_that_is_taken_away_for_a_line_leaves_no_blank_one():
    """As `tqdm.write` does."""
    output = RankOutput()
    for step in range(2):
        output.feed(f"\rtrain: {step}/2", "stderr")
        output.feed("\r          \r", "stderr")
        output.feed(f"loss {step}\n")
    output.feed("\rtrain: 2/2\n", "stderr")
    [shown] = output.segments(10)[0]
    assert isinstance(shown, Text)
    assert [ansi.strip(line) for line in shown.lines] == ["loss 0", "loss 1", "train: 2/2"]


def test_lines_of_stderr_are_marked_however_they_come_and_whatever_they_reset():
    output, whole = RankOutput(), RankOutput()
    for text, name in [("a", "stdout"), ("b", "stderr"), ("c\x1b[31mred\x1b[0m", "stderr"), ("\nd", "stderr")]:
        output.feed(text, name)
    whole.feed("a\n")
    whole.feed("bc\x1b[31mred\x1b[0m\nd\n", "stderr")
    output.feed("\ne", "stdout")
    whole.feed("e")
    [of_pieces], [of_whole] = output.segments(10)[0], whole.segments(10)[0]
    assert isinstance(of_pieces, Text)
    assert of_pieces == of_whole
    assert [ansi.is_stderr(line) for line in of_pieces.lines] == [False, True, True, False]
    assert [ansi.strip(line) for line in of_pieces.lines] == ["a", "bcred", "d", "e"]
    assert ansi.to_html(of_pieces.lines[1]).startswith("bc<span ")
    # What a page is given of it, and what comes after that.
    again = Transcript()
    again.feed(output.parts(10)[0][0].text)
    again.feed("f")
    assert again.lines == [*of_pieces.lines[:3], "ef"]


def test_nested_bars_stay_on_their_lines():
    steps = ["outer 0", "\n", "\rinner 0", "\x1b[A", "\n", "\rinner 1", "\x1b[A", "\router 1", "\n\rdone   \n"]
    assert lines(*steps) == ["outer 1", "done   "]


def test_colours_stay_and_each_line_stands_for_itself():
    assert lines("\x1b[1;31mred\nstill\x1b[0m plain") == [
        "\x1b[1;31mred\x1b[0m",
        "\x1b[1;31mstill\x1b[0m plain",
    ]
    assert lines("\x1b[32mgreen\x1b[0m\rGR") == ["GR\x1b[32meen\x1b[0m"]


def test_an_escape_that_never_ends_is_shown_in_the_end():
    assert lines("\x1b]0;" + "x" * 10_000 + "\n", "after") == ["0;" + "x" * 10_000, "after"]


PIECES = st.sampled_from(
    [
        "a",
        "bc",
        "\n",
        "\r",
        "\b",
        "\x1b[31m",
        "\x1b[0m",
        "\x1b[K",
        "\x1b[A",
        "\x1b[2B",
        "\x1b[3C",
        "\x1b]0;t\x07",
        "\x1b",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join), st.lists(st.integers(1, 6), min_size=1))
def test_it_makes_no_difference_how_the_text_is_cut_into_pieces(text, sizes):
    chunks, start, index = [], 0, 0
    while start < len(text):
        chunks.append(text[start : start + sizes[index % len(sizes)]])
        start, index = start + len(chunks[-1]), index + 1
    assert cells(*chunks) == cells(text)


def cells(*chunks: str) -> list[list[tuple[ansi.Style, str]]]:
    """Each line as letters with their styles, which is all that is seen of it."""
    return [[(style, letter) for style, piece in ansi.runs(line) for letter in piece] for line in lines(*chunks)]


@given(st.text(max_size=200))
def test_any_text_leaves_lines_without_control_characters(text):
    for line in lines(text):
        assert not set(ansi.strip(line)) & set("\r\n\b\x00\x07\x1b")


def test_the_window_keeps_the_last_lines_and_counts_the_others():
    transcript = Transcript(max_lines=10)
    for index in range(1000):
        transcript.feed(f"{index}\n")
        assert len(transcript._rows) <= 22
    assert transcript.lines == [str(index) for index in range(990, 1000)]
    assert transcript.dropped == 990
    assert transcript.tail(2) == ["998", "999"]
    assert transcript.text() == "".join(f"{index}\n" for index in range(990, 1000))


def test_text_is_as_it_came():
    transcript = Transcript()
    transcript.feed("a\nb")
    assert transcript.text() == "a\nb"
    transcript.feed("\n")
    assert transcript.text() == "a\nb\n"
    transcript.clear()
    assert (transcript.text(), transcript.lines, transcript.dropped) == ("", [], 0)


def test_endless_lines_and_huge_numbers_cost_little():
    assert lines(*["x" * 60] * 10, max_columns=100) == ["x" * 100 + "…"]
    assert lines("short\n" + "x" * 300 + "\n", max_columns=100)[1] == "x" * 100 + "…"
    assert len(lines("\x1b[999999999999Cx")[0]) <= 1001
    assert lines("a\x1b[99999999999999999999A\x1b[999999999Bb\x1b[38;5;99999999999;1mc") == ["ab\x1b[1mc\x1b[0m"]
    transcript = Transcript(max_chars=10_000)
    for _ in range(1000):
        transcript.feed("y" * 900 + "\n")
    assert sum(map(len, transcript.lines)) <= 21_000
    assert transcript.dropped + len(transcript.lines) == 1000


@pytest.mark.timing
def test_a_hundred_thousand_plain_lines_are_fed_in_a_second():
    transcript = Transcript()
    chunk = "".join(f"step {index} of some output here\n" for index in range(100))
    begin = time.process_time()
    for _ in range(1000):
        transcript.feed(chunk)
    assert time.process_time() - begin < 1
    assert transcript.dropped == 90_000


def test_rich_items_stay_in_their_place():
    output = RankOutput()
    output.feed("a\nb")
    output.show({"text/plain": "plot"}, display_id="one")
    output.feed("\rc\n")
    assert output.segments(10) == ((Text(("a", "b")), Rich({"text/plain": "plot"}), Text(("c",))), 0)
    output.update("one", {"text/plain": "better"})
    output.update("unknown", {})
    assert output.segments(2) == ((Text(("b",)), Rich({"text/plain": "better"}), Text(("c",))), 1)
    assert output.segments(0) == ((Rich({"text/plain": "better"}),), 3)


def test_clear_output_waits_when_asked_to():
    output = RankOutput()
    output.feed("a")
    output.clear(wait=True)
    assert output.segments(10)[0] == (Text(("a",)),)
    output.feed("b")
    assert output.segments(10)[0] == (Text(("b",)),)
    output.clear()
    assert output.segments(10) == ((), 0)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        # A bar's last newline comes late: stderr is sent after what was printed next.
        ([("stderr", "\r10/10"), ("stdout", "done\n"), ("stderr", "\n")], ["10/10", "done"]),
        ([("stderr", "\r10/10"), ("stdout", "done\n"), ("stderr", "\n\nlate\n")], ["10/10", "done", "", "late"]),
        (
            [("stderr", "\r5/10"), ("stdout", "news\n"), ("stderr", "\r6/10"), ("stderr", "\n")],
            ["5/10", "news", "6/10"],
        ),
        ([("stderr", "\r10/10"), ("stderr", "\n"), ("stdout", "done\n")], ["10/10", "done"]),
        ([("stderr", "\r10/10"), ("stdout", "\n"), ("stdout", "done")], ["10/10", "done"]),
        ([("stdout", "half "), ("stderr", "warning\n"), ("stdout", "a line\n")], ["half ", "warning", "a line"]),
        ([("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c")], ["a", "b", "c"]),
        ([("stdout", "a\nb\x1b[A"), ("stderr", "c")], ["a", "b", "c"]),
    ],
)
def test_stdout_and_stderr_do_not_share_a_line(pieces, shown):
    output = RankOutput()
    for name, text in pieces:
        output.feed(text, name)
    assert [ansi.strip(line) for segment in output.segments(100)[0] for line in segment.lines] == shown


def test_of_items_without_end_the_newest_are_kept_and_the_others_counted() -> None:
    output = RankOutput(max_lines=10)
    for number in range(100):
        output.feed(f"line {number}\n")
        output.show({"text/plain": f"item {number}"}, display_id=f"id {number}")
    segments, dropped = output.segments(1000)
    first, *rest = segments
    items = [part.data["text/plain"] for part in rest if isinstance(part, Rich)]
    lines = [line for part in rest if isinstance(part, Text) for line in part.lines]
    assert first == Text((f"… {100 - len(items)} earlier items left out …",))
    assert items == [f"item {number}" for number in range(100 - len(items), 100)]
    assert lines == [f"line {number}" for number in range(100 - len(lines), 100)]
    assert 10 <= len(rest) <= 20
    assert dropped == 100 - len(lines)
    # One that is kept can be changed still, and nothing is by the id of one that is gone.
    output.update("id 99", {"text/plain": "changed"})
    output.update("id 0", {"text/plain": "wrong"})
    parts, _ = output.parts(1000)
    assert parts[0].text == f"{first.lines[0]}\n"
    assert [part.rich.data["text/plain"] for part in parts if part.rich][-2:] == ["item 98", "changed"]
    assert parts[-1].ids == ("id 99",)
    output.clear()
    assert output.segments(10) == ((), 0)


def test_of_large_items_so_many_are_kept_as_there_is_room_for() -> None:
    output = RankOutput(max_chars=1_000_000)
    for number in range(50):
        output.show({"text/html": "x" * 100_000, "text/plain": str(number)})
    segments, _ = output.segments(10)
    kept = [part.data["text/plain"] for part in segments if isinstance(part, Rich)]
    assert 5 <= len(kept) <= 20
    assert kept[-1] == "49"
    output.show({"text/html": "y" * 5_000_000})
    assert isinstance(output.segments(10)[0][-1], Rich)
