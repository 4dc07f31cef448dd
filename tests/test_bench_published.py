"""`scripts/bench published`: predictions of published results, as docs/benchmarks/published.md shows them."""

import re
from dataclasses import replace

import pytest

from tests.docs.playing import REWRITE, ROOT

PAGE = ROOT / "docs" / "benchmarks" / "published.md"


@pytest.fixture
def published(benchmarks):
    return benchmarks("published")


def with_tables(page: str, tables: dict[str, list[str]]) -> str:
    """The page with these tables under the headings that they have."""
    for title, lines in tables.items():
        section = re.compile(rf"(?ms)^## {re.escape(title)}$.*?(?=^## |\Z)")
        assert len(section.findall(page)) == 1, title
        rewritten = "".join(f"{line}\n" for line in lines)
        page = section.sub(
            lambda match, table=rewritten: re.sub(r"(^\|.*\n)+", table, match[0], count=1, flags=re.M), page
        )
        assert rewritten in page, title
    return page


def test_the_page_shows_what_the_script_prints(published):
    rewritten = with_tables(PAGE.read_text(), published.tables())
    if REWRITE:
        PAGE.write_text(rewritten)
    assert PAGE.read_text() == rewritten, "RINGTRAIN_REWRITE_DOCS=1 writes the tables anew"


def test_one_gpu_alone_has_the_published_rate_and_more_of_what_was_not_published_is_slower(published):
    several = replace(published.GOYAL.fast, rates=published.P100_RATES)
    for inputs in (published.GOYAL.fast, published.HOROVOD.fast, several):
        for batch, rate in inputs.rates.items():
            assert published.planned(inputs, [1], batch)[1].images_per_s == pytest.approx(rate)
    for case in (published.GOYAL, published.HOROVOD):
        slow, fast = case.efficiencies(case.slowest), case.efficiencies(case.fast)
        assert all(slow[gpus][1] < fast[gpus][1] <= 1 for gpus in case.results)


def test_a_ring_takes_what_its_rounds_and_bytes_take(published):
    """By hand. Nothing of fc6, fc7 and fc8, which backward finishes first, hides the link, which is busy to the end."""
    gpus, parameters, images, rate = 512, 138_357_544, 64, 154.0
    row = published.planned(published.HOROVOD.fast, [gpus], images)[gpus]
    nbytes, rounds, buckets = 4 * parameters, 2 * (gpus - 1), 3
    added_s = 3 / 732e9 * nbytes * (gpus - 1) / gpus
    link_s = rounds / gpus * nbytes / (25e9 / 8) + buckets * rounds * 2.7e-6 + added_s
    update_s = 5 * nbytes / 732e9
    layers_s = images / rate - update_s
    assert row.update_s == pytest.approx(update_s)
    least = layers_s / 3 + link_s + update_s  # the link begins when forward ends, or a little later
    assert least < row.step_s < least + 0.02 * layers_s


def test_alexnet_counts_as_caffe_has_it(published):
    from ringtrain.nn import spec

    whole, conv, features = published.bytes_of(spec.load_model("alexnet").graph())
    assert whole == 4 * 60_965_224 and features == 4 * 256 * 6 * 6
    assert conv == 4 * (11 * 11 * 3 * 96 + 96 + 5 * 5 * 48 * 256 + 256 + 9 * (256 * 384 + 192 * 384 + 192 * 256) + 1024)
