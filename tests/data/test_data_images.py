"""One image: decoded from the bytes of a file, cut out and resized."""

import gc

import numpy as np
import pytest
from image_makers import encoded, pixels
from PIL import Image

from ringtrain.data.batches.pictures import View
from ringtrain.data.images import FilePicture, StoredPicture, decode_image, pixels_of, resize
from ringtrain.errors import DataError
from tests.says import says

IMAGE = pixels(9, 14)
# What a viewer that knows EXIF shows of an image that is stored with each orientation.
UPRIGHT = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: x[::-1].transpose(1, 0, 2),
    7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
    8: lambda x: x[:, ::-1].transpose(1, 0, 2),
}


def cut(picture, box, height, width):
    out = np.empty((height, width, 3), np.uint8)
    picture.cut(box, out)
    return out


@pytest.mark.parametrize(
    ("data", "channels", "text"),
    [
        (encoded(np.full((3, 3), 1000, np.uint16)), 3, says("a.png", "I;16")),
        (encoded(IMAGE, "JPEG")[:-60], 3, says("a.png")),
        (b"\xff\xd8\xff and no more", 3, says("a.png")),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 3, says("a.png")),
        (encoded(IMAGE), 4, says(4, "channel", "arrays")),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(data, channels, text):
    with pytest.raises(DataError, match=text):
        decode_image(data, "a.png", channels)


def test_a_box_of_a_file_is_that_of_its_pixels_and_a_large_jpeg_needs_no_whole_decoding():
    box = (2, 3, 6, 9)
    assert (cut(FilePicture(encoded(IMAGE), "a", 3), box, 4, 5) == cut(StoredPicture(IMAGE), box, 4, 5)).all()
    large = pixels(400, 600)
    data = encoded(large, "JPEG", quality=95)
    picture = FilePicture(data, "a", 3)
    reduced = cut(picture, (0, 0, 400, 600), 40, 60)
    assert picture._image.size == (75, 50)  # by the DCT, at an eighth
    assert np.abs(reduced.astype(int) - resize(large, 40, 60)).mean() < 3


def test_an_evaluations_view_is_the_centre_of_an_image_whose_shorter_side_is_resized():
    image = pixels(100, 160)
    assert (View((56, 56)).of(image) == resize(image, 64, 102)[4:60, 23:79]).all()
    assert (View((56, 56), 50).of(image) == resize(image, 50, 80)[:, 15:65]).all()
    assert View((30, 90)).of(image).shape == (30, 90, 3)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_any_channels_are_resized_as_each_one_alone(channels, dtype):
    image = np.random.default_rng(0).integers(0, 256, (12, 10, channels)).astype(dtype)
    resized = resize(image, 5, 6)
    assert (resized.shape, resized.dtype) == ((5, 6, channels), dtype)
    alone = np.concatenate([resize(image[..., c : c + 1], 5, 6) for c in range(channels)], axis=2)
    assert np.abs(resized.astype(float) - alone).max() <= (dtype == "uint8")
    assert np.allclose(resized.mean(), image.mean(), atol=4)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_pixels_are_seen_where_pillow_has_them_as_long_as_they_are_held(mode):
    image = Image.fromarray(IMAGE).convert(mode)
    wanted = np.asarray(image).reshape(9, 14, -1).copy()
    seen = pixels_of(image)
    assert seen.shape == (9, 14, {"L": 1, "RGB": 4}[mode]) and not seen.flags.writeable
    del image
    gc.collect()
    others = [Image.new(mode, (14, 9), number) for number in range(20)]
    assert (seen[..., : wanted.shape[2]] == wanted).all() and len(others) == 20


def test_unreadable_exif_leaves_an_image_as_it_is_and_a_pillow_that_shows_no_pixels_is_too_old(monkeypatch):
    assert (decode_image(encoded(IMAGE, "PNG", exif=b"Exif\0\0II no TIFF"), "a", 3) == IMAGE).all()
    monkeypatch.delattr(Image.Image, "__arrow_c_array__")
    with pytest.raises(DataError, match=says("--upgrade")):
        decode_image(encoded(IMAGE), "a.png", 3)


def test_pixels_of_a_large_image_are_copied_and_those_of_a_long_one_are_resized_alone():
    image = Image.new("RGB", (3000, 2000), (1, 2, 3))  # Pillow keeps it in pieces of 16 MiB
    image.putpixel((2999, 1999), (7, 8, 9))
    seen = pixels_of(image)
    assert seen.shape == (2000, 3000, 3) and seen[0, 0].tolist() == [1, 2, 3] and seen[-1, -1].tolist() == [7, 8, 9]
    shown = cut(StoredPicture(seen), (1000, 0, 1000, 3000), 10, 30)
    assert (cut(FilePicture(encoded(image), "a", 3), (1000, 0, 1000, 3000), 10, 30) == shown).all()
    # What would take much memory is resized channel by channel.
    long = np.repeat(np.arange(256, dtype=np.uint8), 12_000).reshape(1, -1, 1).repeat(3, axis=2)
    resized = resize(long, 1, 256)
    assert np.abs(resized[0, :, 0].astype(int) - np.arange(256)).max() <= 1 and (resized[0] == resized[0, :, :1]).all()
