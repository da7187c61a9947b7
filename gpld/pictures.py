"""Pictures in files: MP4 and GIF that play, strips that lie still. Each file is written in one move."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from gpld import files, machine

FRAMES = 100
"""The most frames of a GIF by default."""
SECONDS = 8
"""The length of a film with many pictures."""
SLOWEST, FASTEST = Fraction(25, 2), Fraction(50)
"""Pictures a second; GIFs know no higher rate."""
CODEC = "libx264"
QUALITY = "18"
"""x264's constant rate factor: visually close to the original."""

Picture = UInt8[np.ndarray, "_height _width 3"]


class NoCodec(RuntimeError):  # noqa: N818
    """A missing encoder, with a message for the user."""


def rate(count: int) -> Fraction:
    """Pictures a second of a film of `count` pictures."""
    return min(FASTEST, max(SLOWEST, Fraction(count, SECONDS)))


def save_mp4(path: Path, pictures: Sequence[Picture]) -> None:
    """Save pictures as H.264 in 4:2:0, which browsers and phones play; an odd side grows by a pixel."""
    try:
        import av
    except ImportError:
        raise NoCodec(f"MP4 needs PyAV, which is not installed: {machine.install('video')}") from None
    if CODEC not in av.codecs_available:
        raise NoCodec(f"MP4 needs {CODEC}, which this PyAV is built without: {machine.install('video')}")
    height, width = (side + side % 2 for side in pictures[0].shape[:2])
    # Its index comes first, so that it plays while it is being loaded.
    options = {"movflags": "+faststart"}
    with _in_one_move(path) as unfinished, av.open(unfinished, "w", format="mp4", options=options) as file:
        stream = file.add_stream(CODEC, rate=rate(len(pictures)), options={"crf": QUALITY})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in pictures:
            rows, columns = picture.shape[:2]
            even = np.pad(picture, ((0, height - rows), (0, width - columns), (0, 0)), mode="edge")
            file.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        file.mux(stream.encode(None))


def gif(pictures: Sequence[Picture]) -> bytes:
    """Pictures as an animation that repeats."""
    from PIL import Image

    first, *rest = map(Image.fromarray, pictures)
    milliseconds = round(1000 / rate(len(pictures)))
    data = io.BytesIO()
    first.save(data, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
    return data.getvalue()


def save_gif(path: Path, pictures: Sequence[Picture]) -> None:
    """Save pictures as an animation that repeats."""
    data = gif(pictures)
    with _in_one_move(path) as unfinished:
        unfinished.write_bytes(data)


def save_strip(path: Path, pictures: Sequence[Picture], count: int = 8) -> None:
    """Save some pictures, evenly spaced from the first to the last, side by side."""
    from PIL import Image

    chosen = [pictures[i] for i in spaced(len(pictures), count)]
    height, width = chosen[0].shape[:2]
    gap = max(2, height // 60)
    strip = np.full((height, len(chosen) * (width + gap) - gap, 3), 255, np.uint8)
    for i, picture in enumerate(chosen):
        strip[:, i * (width + gap) :][:, :width] = picture
    with _in_one_move(path) as unfinished:
        Image.fromarray(strip).save(unfinished, "PNG")


def save_film(
    out: Path, name: str, pictures: Sequence[Picture], strip: Sequence[Picture] | None = None, still: int = 8
) -> tuple[list[Path], str]:
    """Save pictures as NAME.mp4 and NAME.gif, and `still` of `strip`, or of them, as NAME.png; their paths.

    And why there is no MP4, if there is none.
    """
    mp4, gif, png = (out / f"{name}{suffix}" for suffix in (".mp4", ".gif", ".png"))
    save_gif(gif, [pictures[i] for i in spaced(len(pictures), FRAMES)])
    save_strip(png, strip or pictures, still)
    try:
        save_mp4(mp4, pictures)
    except NoCodec as reason:
        mp4.unlink(missing_ok=True)  # that of another film
        return [gif, png], str(reason)
    return [mp4, gif, png], ""


def coloured(images: UInt8[np.ndarray, "*N height width channels"]) -> UInt8[np.ndarray, "*N height width 3"]:
    """Images of any channels as pictures: the first three of them, or the first as grey."""
    return images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)


def spaced(count: int, most: int) -> list[int]:
    """At most so many of `count` indices, evenly spaced from the first to the last."""
    return np.linspace(0, count - 1, min(most, count)).round().astype(int).tolist()


@contextmanager
def _in_one_move(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.in_one_move(path) as unfinished:
        yield unfinished
