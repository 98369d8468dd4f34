"""What a quality target means, said and computed the same way."""

from __future__ import annotations

import pytest

from obc import ObcError
from obc.planning.quality import Quality, Terms
from obc.tasks.evaluation import Metric

METRICS = (
    Metric("top1", unit="%", label="top-1"),
    Metric("loss", higher=False),
    Metric("map"),
    Metric("perplexity", higher=False),
)


def terms(text: str) -> Terms:
    return Quality.parse(text).of(METRICS)


@pytest.mark.parametrize(
    ("text", "before", "after", "loss", "limit", "said"),
    [
        ("accuracy-1%", 93.4, 92.4, 1.0, 1.0, "top-1 falls by at most 1 point"),
        ("top1-0.5%", 50.0, 49.0, 1.0, 0.5, "top-1 falls by at most 0.5 points"),
        ("accuracy-1", 93.4, 92.4, 1.0, 1.0, "top-1 falls by at most 1 point"),
        ("map-2%", 0.5, 0.49, 2.0, 2.0, "map falls by at most 2% of what it was"),
        ("perplexity+5%", 20.0, 21.0, 5.0, 5.0, "perplexity rises by at most 5% of what it was"),
        ("loss + 0.05", 0.3, 0.34, 0.04, 0.05, "loss rises by at most 0.05"),
        ("accuracy>=92", 93.0, 92.5, -0.5, 0.0, "top-1 is at least 92%"),
        ("perplexity<=20", 15.0, 21.0, 1.0, 0.0, "perplexity is at most 20"),
    ],
)
def test_what_a_target_means(
    text: str, before: float, after: float, loss: float, limit: float, said: str
) -> None:
    quality = terms(text)
    assert quality.loss(before, after) == pytest.approx(loss)
    assert quality.limit == limit
    assert str(quality).partition(": ")[2] == said
    assert Quality.parse(str(quality.target)) == quality.target


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("acuracy-1%", "did you mean 'accuracy'.*there are top1, loss, map, perplexity, accuracy"),
        ("accuracy+1%", "more accuracy is better; write accuracy-"),
        ("loss-1%", "less loss is better; write loss+"),
        ("loss>=1", "less loss is better; write loss<="),
        ("accuracy=1%", "a quality target looks like"),
        ("accuracy-x", "a quality target looks like"),
    ],
)
def test_bad_targets_say_what_would_do(text: str, error: str) -> None:
    with pytest.raises(ObcError, match=error.replace("+", r"\+")):
        terms(text)


@pytest.mark.parametrize(
    ("text", "loss", "kept"),
    [("accuracy-1%", 1.234, "accuracy-1.24%"), ("accuracy>=92", 1.5, "accuracy>=90.5"),
     ("loss+0.05", 0.07, "loss+0.07")],
)  # fmt: skip
def test_the_target_that_a_loss_would_keep(text: str, loss: float, kept: str) -> None:
    assert terms(text).kept_by(loss) == kept
    assert terms(kept).limit >= 0
