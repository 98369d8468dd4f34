"""A small record that has every part; the numbers are made up, for they are only drawn."""

from __future__ import annotations

import math

from obc.reporting.record import (
    Box,
    Curve,
    Environment,
    Epoch,
    Figure,
    Fit,
    Heat,
    Latency,
    Point,
    Recalibrated,
    Record,
    Scene,
    Scores,
    Step,
    Tuning,
    Widths,
)

# A grey JPEG of eight by eight pixels.
PIXEL = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4"
    "UG1RV19iZ2hnPk1xeXBkeFxlZ2P/wAALCAAIAAgBAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QA"
    "tRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0"
    "NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2"
    "t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/AI6//9k="
)
SITES = {"conv1": 16, "layer1.0.conv1": 16, "layer2.0.downsample.0": 32}


def full(word: str = "{}") -> Record:
    """Every string of it goes through `word`, a format, so that each can be made hostile."""

    def say(text: str) -> str:
        return word.format(text)

    return Record(
        title=say("ResNet-20 on digits"),
        command=say("obc demo --seed 0"),
        created=say("2026-01-02T03:04:05+00:00"),
        commit=say("0123abc"),
        model=say("resnet20"),
        data=say("digits"),
        seed=0,
        environment=Environment(
            machine=say("a processor"),
            cores=2,
            threads=1,
            system=say("Linux"),
            python=say("3.11"),
            torch=say("2.13"),
            obc=say("0.1"),
        ),
        warnings=[say("360 images"), say("two seeds")],
        figures=[
            Figure(name=say("MACs"), value=2.0, unit=say("×"), note=say("before: 40 M")),
            Figure(name=say("Accuracy"), value=98.61, unit="%"),
            Figure(name=say("Criterion"), value=say("jacobian")),
        ],
        widths=Widths(
            before={say(n): w for n, w in SITES.items()},
            after={
                say("2x"): {say(n): w // 2 for n, w in SITES.items()},
                say("4x"): {say(n): w // 4 for n, w in SITES.items()},
            },
        ),
        steps=[
            Step(
                step=n,
                macs=40_000_000 - 700_000 * n,
                params=270_000 - 6000 * n,
                channels=640 - 12 * n,
                quality=98 - n if n % 2 == 0 else None,
                loss=0.04 * math.exp(0.2 * n) if n % 2 == 0 else None,
            )
            for n in range(20)
        ],
        scores=[
            Scores(
                criterion=say("jacobian"),
                edges=[10.0**-n for n in range(8, 2, -1)],
                counts=[3, 20, 40, 12, 1],
                log=True,
                zeros=4,
                cut=3e-7,
            ),
            Scores(criterion=say("l1"), edges=[0.0, 1.0, 2.0], counts=[0, 7]),
        ],
        heats=[
            Heat(
                layer=say("layer3.2.conv2"),
                values=[[1.0 / (1 + abs(i - j)) for i in range(6)] for j in range(6)],
                block=3,
                note=say("2 filters"),
            )
        ],
        recalibration=[
            Recalibrated(
                plan=say("2x"),
                samples=512,
                kept=True,
                before=0.6,
                after=0.02,
                fits=[
                    Fit(name=say("layer1.0.conv2.weight"), before=0.4, after=0.05, kept=True),
                    Fit(name=say("fc.weight"), before=1.2, after=0.3, kept=True),
                    Fit(name=say("embedding.weight"), note=say("shared")),
                ],
            )
        ],
        tuning=[
            Tuning(
                name=say(name),
                plan=say(plan),
                epochs=[
                    Epoch(epoch=e, loss=at / e, quality=97 - at / e, lr=0.02 / e)
                    for e in range(1, 6)
                ],
            )
            for plan in ("2x", "4x")
            for name, at in (("naive", 1.0), ("EP", 0.8))
        ],
        comparison=[
            Curve(
                criterion=say(name),
                points=[
                    Point(
                        channels=n / 10,
                        params=n / 9,
                        macs=n / 8,
                        quality=98 - n * by,
                        quality_std=n / 3,
                        loss=0.04 * by**n,
                        loss_std=0.001,
                    )
                    for n in range(6)
                ],
                seeds=3,
                seconds=by / 10,
            )
            for name, by in (("jacobian", 2.0), ("taylor", 4.0), ("random", 12.0))
        ],
        scenes=[
            Scene(
                image=PIXEL,
                width=8,
                height=8,
                classes=[say("cell")],
                found={
                    say("before"): [Box(x=1.0, y=2.0, width=3.0, height=4.0, score=0.5, label=0)],
                    say("cut"): [Box(x=1.0, y=2.0, width=3.0, height=4.0, score=0.5, label=0)],
                },
            )
        ],
        latency=[
            Latency(
                name=say("original"),
                macs=40_000_000,
                params=270_000,
                size=1_100_000,
                milliseconds=22.0,
                quality=98.6,
            ),
            Latency(name=say("2x EP"), macs=20_000_000, params=90_000, milliseconds=12.5),
        ],
    )
