"""What a person sees of a run: folding, order, limits, and HTML that a sanitizer leaves whole."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from sky_jupyter.display.model.run_html import RankView, RunViewModel, to_html, to_text
from sky_jupyter.display.model.transcript import RankOutput, Rich, Text

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def view(rank, *segments, **more):
    parts = tuple(Text(tuple(part.split("\n"))) if isinstance(part, str) else part for part in segments)
    return RankView(rank, parts, **{"state": "done", **more})


def model(*views, finished=True, elapsed=1.3):
    return RunViewModel("sky", elapsed, views, finished)


def body(shown, **options):
    return to_text(shown, **options).split("\n")[1:]


class Page(HTMLParser):
    """The text of each block, with the badge in front, and what is on the page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.styles, self.words, self.images = [], set(), [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.add(tag)
        self.styles.append(found.get("style", ""))
        if tag == "img":
            self.images.append(found)
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "|".join(self.words)


def training_run():
    """Four ranks as in a real run: common warnings, a bar on the head, own losses, one rank killed."""
    outputs = [RankOutput() for _ in range(4)]
    for rank, output in enumerate(outputs):
        output.feed("\x1b[33mWARNING\x1b[0m: a < b is deprecated\n8 devices on 4 processes\n")
        if rank == 0:
            for step in range(1, 101):
                output.feed(f"\r\x1b[1m{step}/100\x1b[0m \x1b[32m{'━' * (step // 5)}\x1b[0m loss: {1 / step:.2f}")
            output.feed("\n")
        else:
            output.feed(f"shard of {1000 + (rank == 3)} rows\n")
        if rank == 2:
            output.show({"image/png": PIXEL, "text/plain": f"<Figure at 0x{rank}>"})
        output.feed("saved\n")
    views = []
    for rank, output in enumerate(outputs):
        segments, dropped = output.segments(1000)
        state, note = ("died", "killed by SIGKILL; 3 of 4 GiB of memory were in use") if rank == 3 else ("done", "")
        result = Rich({"text/plain": "0.97"}) if rank < 3 else None
        views.append(RankView(rank, segments, dropped, state, note, result))
    return RunViewModel("sky", 75.2, tuple(views), finished=True)


def test_a_realistic_run_of_four_ranks_is_folded():
    assert to_text(training_run(), colours=False).split("\n") == [
        "sky · 4 ranks · 1 min 15 s · rank 3 died",
        "[0-3] WARNING: a < b is deprecated",
        "[0-3] 8 devices on 4 processes",
        "[0] 100/100 ━━━━━━━━━━━━━━━━━━━━ loss: 0.01",
        "[1] shard of 1000 rows",
        "[2] shard of 1000 rows",
        "[2] <Figure at 0x2>",
        "[3] shard of 1001 rows",
        "[0-3] saved",
        "[0-2] Out: 0.97",
        "[3] died: killed by SIGKILL; 3 of 4 GiB of memory were in use",
    ]
    page = Page(to_html(training_run()))
    order = ["ranks 0-3", "WARNING", "rank 0", "100/100", "rank 1", "rank 2", "rank 3", "1001", "ranks 0-3", "saved"]
    order += ["Out, ranks 0-2", "0.97", "rank 3 died: ", "killed by SIGKILL"]
    assert re.search(".*".join(map(re.escape, order)), page.text, re.DOTALL)
    assert page.text.count("WARNING") == page.text.count("saved") == page.text.count("0.97") == 1
    assert page.images[0]["src"] == f"data:image/png;base64,{PIXEL}"
    assert not page.open


def test_html_uses_only_what_the_sanitizer_of_untrusted_notebooks_keeps():
    page = Page(to_html(training_run()))
    assert page.tags <= {"div", "span", "pre", "img", "details", "summary"}
    # Declarations with var() are dropped there, so each has a fixed one before it.
    allowed = {
        "color": r"#[0-9a-f]{6}",
        "background-color": r"#[0-9a-f]{6}",
        "background": "transparent",
        "font-weight": "bold",
        "font-size": r"\d+(%|px)",
        "font-family": "monospace",
        "opacity": r"0\.\d+",
        "margin": r"(0|\d+px)( (0|\d+px)){0,3}",
        "padding": r"(0|\d+px)( (0|\d+px)){0,3}",
        "padding-left": r"\d+px",
        "border-left": r"\d+px solid #[0-9a-f]{6}",
        "display": "flex",
        "width": r"\d+%",
        "min-width": r"0|\d+em",
        "max-width": r"\d+em|\d+%",
        "line-height": r"[\d.]+",
        "white-space": "pre-wrap",
        "word-wrap": "break-word",
    }
    for style in filter(None, page.styles):
        seen = set()
        for declaration in style.split(";"):
            name, _, value = declaration.partition(":")
            if value.startswith("var("):
                assert name in seen
            else:
                assert re.fullmatch(allowed[name], value), declaration
            seen.add(name)


def test_stderr_stands_apart_from_stdout():
    output = RankOutput()
    for text, name in [("loss 1\n", "stdout"), ("warned <of>\nit\n", "stderr"), ("loss 2\n", "stdout")]:
        output.feed(text, name)
    shown = model(view(0, *output.segments(10)[0]))
    marked = re.findall("<pre style=[^>]*border-left[^>]*>(.*?)</pre>", to_html(shown), re.DOTALL)
    assert marked == ["warned &lt;of&gt;\nit"]
    assert body(shown) == ["loss 1", "\x1b[3mwarned <of>\x1b[0m", "\x1b[3mit\x1b[0m", "loss 2"]
    assert to_text(shown, colours=False).split("\n")[1:] == ["loss 1", "warned <of>", "it", "loss 2"]


def test_equal_output_is_shown_once_and_a_single_rank_has_no_mark():
    assert body(model(view(0, "a\nb"), view(1, "a\nb"))) == ["[0-1] a", "[0-1] b"]
    assert body(model(view(0, "a\nb", result=Rich({"text/plain": "1\n2"})))) == ["a", "b", "Out: 1", "     2"]
    assert "rank 0" not in to_html(model(view(0, "a")))


def test_every_rank_keeps_its_own_order():
    shown = model(view(0, "same\nx\ny\nend"), view(1, "same\nz\nend"), view(2, "same\nx\ny\nend"))
    assert body(shown) == ["[0-2] same", "[0,2] x", "[0,2] y", "[1] z", "[0-2] end"]


def test_while_ranks_go_on_only_common_starts_are_folded():
    views = view(0, "same\n.\nx\n.", state="running"), view(1, "same\n.", state="running")
    assert body(model(*views, finished=False)) == ["[0-1] same", "[0-1] .", "[0] x", "[0] ."]
    views = view(0, "x\n."), view(1, "y\n.")
    assert body(model(*views, finished=False)) == ["[0] x", "[0] .", "[1] y", "[1] ."]
    assert body(model(*views, finished=True)) == ["[0] x", "[1] y", "[0-1] ."]


def test_blank_lines_alone_are_not_folded():
    assert body(model(view(0, "x\n"), view(1, "y\n"))) == ["[0] x", "[0]", "[1] y", "[1]"]


def test_a_plot_stays_between_its_lines_and_equal_plots_fold():
    plots = [Rich({"image/png": PIXEL, "text/plain": f"<Figure at 0x{rank}>"}) for rank in range(2)]
    page = to_html(model(view(0, "before", plots[0], "after"), view(1, "before", plots[1], "after")))
    assert page.count("<img") == 1
    assert page.index("before") < page.index("<img") < page.index("after")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"text/html": "<b>bold</b>", "text/plain": "bold"}, "<b>bold</b>"),
        ({"text/html": ["<b>", "bold</b>"]}, "<b>bold</b>"),
        ({"image/svg+xml": "<svg/>", "text/plain": "x"}, 'src="data:image/svg+xml;base64,PHN2Zy8+"'),
        ({"image/jpeg": "AAAA\nBBBB", "text/plain": "x"}, 'src="data:image/jpeg;base64,AAAABBBB"'),
        ({"image/png": b"\x00"}, 'src="data:image/png;base64,AA=="'),
        ({"image/png": '"><script>'}, 'base64,&quot;&gt;&lt;script&gt;"'),
        ({"text/markdown": "*a* <b>", "text/plain": "x"}, "*a* &lt;b&gt;"),
        ({"text/latex": "$x$"}, "$x$"),
        ({"text/plain": "\x1b[1m<x>\x1b[0m"}, '<span style="font-weight:bold">&lt;x&gt;</span>'),
        ({"application/json": {"a": 1}}, "(application/json)"),
        ({}, "(nothing to show)"),
    ],
)
def test_each_kind_of_item_is_shown_in_its_best_form(data, shown):
    assert shown in to_html(model(view(0, Rich(data))))
    assert shown in to_html(model(view(0, result=Rich(data))))


def test_an_images_size_is_kept():
    rich = Rich({"image/png": PIXEL}, {"image/png": {"width": 320.0, "height": 200, "other": "x"}})
    assert ' width="320" height="200" ' in to_html(model(view(0, rich)))


def test_results_of_several_ranks_are_grouped():
    views = [view(rank, result=Rich({"text/plain": str(rank % 2)})) for rank in range(4)]
    assert body(model(*views)) == ["[0,2] Out: 0", "[1,3] Out: 1"]
    assert "Out, ranks 0, 2" in to_html(model(*views))


def test_long_output_shows_its_end_and_says_how_much_is_left_out():
    long = "\n".join(map(str, range(2000)))
    note = "… 1,990 earlier lines left out; result.stdout(rank) has all of them"
    assert body(model(view(0, long)), max_lines=10) == [note, *map(str, range(1990, 2000))]
    assert note in to_html(model(view(0, long)), max_lines=10)
    lines = body(model(view(0, "x", dropped=1)), max_lines=10)
    assert lines == ["… 1 earlier line left out; result.stdout(rank) has all of them", "x"]


def test_many_lines_are_closed_for_whoever_reads_the_saved_html():
    few, many = "\n".join(f"few {line}" for line in range(100)), "\n".join(f"many {line}" for line in range(101))
    html = to_html(model(view(0, few), view(1, many)))
    assert html.count("<details open") == 1
    assert ">rank 1 · 101 lines</summary>" in html
    assert ">101 lines</summary>" in to_html(model(view(0, many)))
    assert "<details" not in to_html(model(view(0, many), finished=False))


def test_a_limit_counts_common_and_own_lines_together_and_keeps_plots():
    start = "\n".join(f"c{index}" for index in range(20))
    plot = Rich({"text/plain": "plot", "image/png": PIXEL})
    shown = model(view(0, start, plot, "x1\nx2\nend"), view(1, start, plot, "y\nend"))
    text = body(shown, max_lines=4)
    assert text[0].startswith("[0-1] … 20 earlier lines")
    assert text[1:] == ["[0-1] plot", "[0] x1", "[0] x2", "[1] y", "[0-1] end"]
    assert to_html(shown, max_lines=3).count("<img") == 1


def test_starts_are_not_folded_where_different_numbers_of_lines_are_missing():
    lines = body(model(view(0, "a\nb", dropped=5), view(1, "a\nc", dropped=4)))
    assert [line for line in lines if "left out" not in line] == ["[0] a", "[0] b", "[1] a", "[1] c"]


def test_very_long_lines_count_for_several_but_the_last_is_always_there():
    shown = body(model(view(0, "\n".join(["x" * 5000] * 50))), max_lines=100)
    assert len(shown) == 10
    assert body(model(view(0, "first\n" + "x" * 99_000)), max_lines=10)[1] == "x" * 99_000


def test_many_groups_share_the_room():
    views = [view(rank, "\n".join(f"{rank} {index}" for index in range(1000))) for rank in range(32)]
    assert len(body(model(*views), max_lines=1000)) <= 4000 + 32


def test_silent_ranks_are_mentioned_only_beside_others_and_in_the_end():
    views = view(0, "a"), view(1), view(2)
    assert "ranks 1-2: no output" in to_html(model(*views))
    assert "no output" not in to_html(model(*views, finished=False))
    assert "no output" not in to_html(model(view(0), view(1)))


@pytest.mark.parametrize(
    ("states", "finished", "elapsed", "header"),
    [
        (["running", "running"], False, 0.04, "sky · 2 ranks · 0.0 s · running"),
        (["done", "running"], False, 59.9, "sky · 2 ranks · 59.9 s · running, 1 of 2 done"),
        (["done"], True, 3700, "sky · 1 rank · 1 h 1 min · done"),
        (["failed", "running"], False, 61, "sky · 2 ranks · 1 min 1 s · running · rank 0 failed"),
        (["failed", "failed"], True, 1, "sky · 2 ranks · 1.0 s · failed"),
        (["interrupted"], True, 1, "sky · 1 rank · 1.0 s · interrupted"),
        (["timed out", "timed out"], True, 1, "sky · 2 ranks · 1.0 s · timed out"),
        (["interrupted", "failed"], True, 1, "sky · 2 ranks · 1.0 s · rank 1 failed · rank 0 interrupted"),
        (["failed", "interrupted", "interrupted"], True, 1, "sky · 3 ranks · 1.0 s · rank 0 failed"),
    ],
)
def test_the_header_says_how_the_run_fares(states, finished, elapsed, header):
    shown = model(*(view(rank, state=state) for rank, state in enumerate(states)), finished=finished, elapsed=elapsed)
    assert to_text(shown).startswith(header)
    if len(states) == 3:
        assert to_text(shown).endswith("rank 0 failed · ranks 1-2 interrupted")
        assert "ranks 1-2 interrupted" in Page(to_html(shown)).text


@pytest.mark.parametrize(
    ("states", "status"), [(["done", "done"], "done"), (["failed", "done"], "rank 0 failed"), (["died"] * 2, "died")]
)
def test_of_ranks_whose_output_is_not_shown_the_header_says_how_they_fare(states, status):
    unseen, seen = (view(rank, state=state) for rank, state in enumerate(states))
    shown = dataclasses.replace(model(seen, finished=True, elapsed=1.0), unseen=(unseen,))
    assert to_text(shown).splitlines()[0] == f"sky · 2 ranks, output of rank 1 · 1.0 s · {status}"


def test_ranks_that_failed_without_a_word_are_not_called_silent():
    shown = model(view(0, "a"), view(1, state="failed"), view(2))
    assert "rank 2: no output" in to_html(shown)
    assert "rank 1: no output" not in to_html(shown)


def test_notices_stand_at_the_end():
    shown = RunViewModel("sky", 1, (view(0, "a"),), True, ("<rank 0> ended",))
    assert to_text(shown).endswith("\na\n<rank 0> ended")
    assert "&lt;rank 0&gt; ended</div></div>" in to_html(shown)


def test_titles_and_notes_are_escaped_and_equal_notes_fold():
    views = [view(rank, state="failed", note="<b>\nsecond") for rank in range(2)]
    shown = to_html(RunViewModel("<script>", 1, tuple(views), True))
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert shown.count("&lt;b&gt;") == 1
    assert body(model(*views)) == ["[0-1] failed: <b>", "[0-1] second"]
