"""One image: decoded from the bytes of a file, cut out and resized."""

import numpy as np
import pytest
from image_makers import encoded, pixels
from PIL import Image

from ringtrain.data import texts
from ringtrain.data.images import FilePicture, StoredPicture, decode_image, fit, resize, shorter_to
from ringtrain.errors import DataError

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


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(IMAGE, "PNG", exif=exif)


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_the_orientation_of_exif_is_applied(orientation):
    shown = UPRIGHT[orientation](IMAGE)
    picture = FilePicture(turned(orientation), "a.png", 3)
    assert (picture.height, picture.width) == shown.shape[:2]
    assert (picture.pixels() == shown).all()
    assert (FilePicture(turned(orientation), "a.png", 3).cut((2, 1, 6, 7), 6, 7) == shown[2:8, 1:8]).all()


def test_modes_become_rgb_or_grey():
    image = Image.fromarray(IMAGE)
    grey = np.asarray(image.convert("L"))
    assert (decode_image(encoded(image), "a", 1)[..., 0] == grey).all()
    assert (decode_image(encoded(image.convert("L")), "a", 3) == grey[..., None]).all()
    assert (decode_image(encoded(image.convert("RGBA")), "a", 3) == IMAGE).all()
    palette = image.quantize(16)
    assert (decode_image(encoded(palette), "a", 3) == np.asarray(palette.convert("RGB"))).all()
    cmyk = image.convert("CMYK")
    assert (decode_image(encoded(cmyk, "TIFF"), "a", 3) == np.asarray(cmyk.convert("RGB"))).all()


@pytest.mark.parametrize(
    ("data", "channels", "text"),
    [
        (encoded(np.full((3, 3), 1000, np.uint16)), 3, texts.PIXEL_TYPE.pattern(file="a.png", mode="I;16")),
        (encoded(IMAGE, "JPEG")[:-60], 3, texts.NO_IMAGE.pattern(file="a.png")),
        (b"\xff\xd8\xff and no more", 3, texts.NO_IMAGE.pattern(file="a.png")),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 3, texts.NO_IMAGE.pattern(file="a.png")),
        (encoded(IMAGE), 4, texts.CHANNELS_OF_FILES.pattern(channels=4)),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(data, channels, text):
    with pytest.raises(DataError, match=text):
        decode_image(data, "a.png", channels)


def test_unreadable_exif_leaves_an_image_as_it_is():
    assert (decode_image(encoded(IMAGE, "PNG", exif=b"Exif\0\0II no TIFF"), "a", 3) == IMAGE).all()


def test_a_box_of_a_file_is_that_of_its_pixels_and_a_large_jpeg_needs_no_whole_decoding():
    box = (2, 3, 6, 9)
    assert (FilePicture(encoded(IMAGE), "a", 3).cut(box, 4, 5) == StoredPicture(IMAGE).cut(box, 4, 5)).all()
    large = pixels(400, 600)
    data = encoded(large, "JPEG", quality=95)
    picture = FilePicture(data, "a", 3)
    reduced = picture.cut((0, 0, 400, 600), 40, 60)
    assert picture._image.size == (75, 50)  # by the DCT, at an eighth
    assert np.abs(reduced.astype(int) - resize(large, 40, 60)).mean() < 3


def test_an_evaluations_view_is_the_centre_of_an_image_whose_shorter_side_is_resized():
    image = pixels(100, 160)
    assert (fit(image, 56, 56) == resize(image, 64, 102)[4:60, 23:79]).all()
    assert (shorter_to(image, 50) == resize(image, 50, 80)[:, 15:65]).all()
    assert fit(image, 30, 90).shape == (30, 90, 3)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_any_channels_are_resized_as_each_one_alone(channels, dtype):
    image = np.random.default_rng(0).integers(0, 256, (12, 10, channels)).astype(dtype)
    resized = resize(image, 5, 6)
    assert (resized.shape, resized.dtype) == ((5, 6, channels), dtype)
    alone = np.concatenate([resize(image[..., c : c + 1], 5, 6) for c in range(channels)], axis=2)
    assert np.abs(resized.astype(float) - alone).max() <= (dtype == "uint8")
    assert np.allclose(resized.mean(), image.mean(), atol=4)
