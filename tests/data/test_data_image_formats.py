"""What is read of each format of images, beside pixels that these tests write into the files by hand: orientation, bits
a channel, palettes, alpha, CMYK, several frames, profiles. The table of docs/data.md."""

import itertools
import struct
import zlib

import numpy as np
import pytest
from image_makers import encoded
from PIL import Image
from test_data_images import UPRIGHT

from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.images import FilePicture, decode_image
from ringtrain.data.readers.make import make_dataset
from ringtrain.errors import DataError
from tests.says import says

HEIGHT, WIDTH = 3, 5
RANDOM = np.random.default_rng(2)


def samples(channels, bits=8):
    return RANDOM.integers(0, 1 << bits, (HEIGHT, WIDTH, channels))


def rgb_of(pixels, bits=8):
    """RGB of grey, grey with alpha, RGB or RGBA. Shapes: [H, W, 1 to 4] → uint8 [H, W, 3]"""
    colour = pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., :1].repeat(3, axis=2)
    return np.rint(colour * (255 / ((1 << bits) - 1))).astype(np.uint8)


def grey_of(rgb):
    """ITU-R 601, in Pillow's integers. Shapes: [H, W, 3] → uint8 [H, W, 1]"""
    weighted = rgb.astype(int) @ np.array([19595, 38470, 7471])
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[..., None]


def rgb_of_cmyk(pixels):
    cmy, k = 255 - pixels[..., :3].astype(int), 255 - pixels[..., 3:].astype(int)
    return np.rint(cmy * k / 255).astype(np.uint8)


def packed(rows, bits):
    """Rows of samples as bytes, from the highest bit on. Shapes: [H, n]"""
    if bits == 16:
        return [row.astype(">u2").tobytes() for row in rows]
    spread = ((rows[..., None] >> np.arange(bits - 1, -1, -1)) & 1).reshape(len(rows), -1).astype(np.uint8)
    return [np.packbits(row).tobytes() for row in spread]


# ── writers ─────────────────────────────────────────────────────────────────────────────────────────────────
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels, colour, bits=8, before=(), after=()):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour, 0, 0, 0))
    rows = packed(pixels.reshape(HEIGHT, -1), bits)
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    more, last = (b"".join(chunk(*each) for each in chunks) for chunks in (before, after))
    return b"\x89PNG\r\n\x1a\n" + head + more + body + last + chunk(b"IEND", b"")


def exif(orientation, order="<"):
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(f"{order}IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def xmp(orientation):
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="{orientation}"/>'.encode()


def tiff(pixels, photometric, bits=8, order="<", planar=1, tags=(), deflate=False, extra=()):
    """A TIFF of one strip, or one a channel. ``tags``: more (tag, type, values)"""
    channels = pixels.shape[2]
    planes = [pixels[..., c : c + 1] for c in range(channels)] if planar == 2 else [pixels]
    if bits == 16:
        strips = [plane.astype(f"{order}u2").tobytes() for plane in planes]
    else:
        strips = [b"".join(packed(plane.reshape(HEIGHT, -1), bits)) for plane in planes]
    strips = [zlib.compress(strip) for strip in strips] if deflate else strips
    entries = [
        (256, 4, [WIDTH]), (257, 4, [HEIGHT]), (258, 3, [bits] * channels), (259, 3, [8 if deflate else 1]),
        (262, 3, [photometric]), (273, 4, [0] * len(strips)), (277, 3, [channels]), (278, 4, [HEIGHT]),
        (279, 4, [len(strip) for strip in strips]), (284, 3, [planar]), *tags,
    ]  # fmt: skip
    if extra:
        entries.append((338, 3, list(extra)))
    entries.sort()
    form = {1: "B", 3: "H", 4: "I"}
    at = 8 + 2 + 12 * len(entries) + 4  # what does not fit an entry lies behind them
    sizes = [struct.calcsize(f"{order}{len(v)}{form[kind]}") for _, kind, v in entries]
    data_at = at + sum(size + size % 2 for size in sizes if size > 4)
    starts = np.cumsum([data_at, *(len(strip) for strip in strips)])[:-1].tolist()
    table, behind = b"", b""
    for tag, kind, values in entries:
        packed_values = struct.pack(f"{order}{len(values)}{form[kind]}", *(starts if tag == 273 else values))
        if len(packed_values) > 4:
            pointer = struct.pack(f"{order}I", at + len(behind))
            behind += packed_values + b"\0" * (len(packed_values) % 2)
            packed_values = pointer
        table += struct.pack(f"{order}HHI", tag, kind, len(values)) + packed_values.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(entries))
    return head + table + bytes(4) + behind + b"".join(strips)


def pnm(pixels, magic, most):
    """P1 to P6; the bits of P1 and P4 are 1 for black."""
    head = f"P{magic} # written by hand\n{WIDTH} {HEIGHT}\n" + (f"{most}\n" if magic not in (1, 4) else "")
    if magic in (1, 2, 3):
        body = " ".join(map(str, pixels.reshape(-1).tolist())).encode() + b"\n"
    elif magic == 4:
        body = b"".join(packed(pixels.reshape(HEIGHT, -1), 1))
    else:
        body = pixels.astype(">u2" if most > 255 else "u1").tobytes()
    return head.encode() + body


def bmp(rows, bits, palette=b"", masks=(), top_down=False):
    """``rows``: bytes of each, from the top."""
    rows = [row + b"\0" * (-len(row) % 4) for row in (rows if top_down else rows[::-1])]
    more = struct.pack(f"<{len(masks)}I", *masks) + palette
    body, start = b"".join(rows), 14 + 40 + len(more)
    high = -HEIGHT if top_down else HEIGHT
    colours = len(palette) // 4
    kind = 3 if masks else 0
    head = struct.pack("<IiiHHIIiiII", 40, WIDTH, high, 1, bits, kind, len(body), 2835, 2835, colours, 0)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + head + more + body


def codes_of_gif(indices):
    """LZW without a table: each code has 9 bits, and the table is cleared before they grow."""
    codes = [code for index in range(0, len(indices), 200) for code in (256, *indices[index : index + 200])] + [257]
    bits = np.array([(code >> bit) & 1 for code in codes for bit in range(9)], np.uint8)
    data = np.packbits(bits, bitorder="little").tobytes()
    assert len(data) < 256
    return b"\x08" + bytes([len(data)]) + data + b"\0"


def gif(palette, *frames, transparent=None):
    head = b"GIF89a" + struct.pack("<HHBBB", WIDTH, HEIGHT, 0xF7, 0, 0) + palette
    body = b""
    for frame in frames:
        flags = (0, 0) if transparent is None else (1, transparent)
        body += b"!\xf9\x04" + struct.pack("<BHBB", flags[0], 10, flags[1], 0)
        body += b"," + struct.pack("<HHHHB", 0, 0, WIDTH, HEIGHT, 0) + codes_of_gif(frame.reshape(-1).tolist())
    return head + body + b";"


def jpeg(values, adobe=None, bits=8):
    """One block of one colour: DC coefficients alone, whose quantum is 8, so each is its sample less 128."""
    count = len(values)
    quanta = b"\xff\xdb" + struct.pack(">HB64B", 67, 0, *[8] * 64)
    parts = b"".join(struct.pack("BBB", number + 1, 0x11, 0) for number in range(count))
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 8 + 3 * count, bits, 8, 8, count) + parts
    # DC: categories 0 to 8, in codes of 4 bits; AC: the end of a block, in one bit.
    tables = b"\xff\xc4" + struct.pack(">HB16B", 28, 0, 0, 0, 0, 9, *[0] * 12) + bytes(range(9))
    tables += b"\xff\xc4" + struct.pack(">HB16B", 20, 0x10, 1, *[0] * 15) + b"\0"
    text = ""
    for value in values:
        off = int(value) - 128
        size = abs(off).bit_length()
        text += f"{size:04b}" + (f"{off if off > 0 else off + (1 << size) - 1:0{size}b}" if size else "") + "0"
    text += "1" * (-len(text) % 8)
    coded = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")
    parts = b"".join(struct.pack("BB", number + 1, 0) for number in range(count))
    scan = b"\xff\xda" + struct.pack(">HB", 6 + 2 * count, count) + parts + b"\0\x3f\0" + coded
    marker = b"" if adobe is None else b"\xff\xee" + struct.pack(">H5sHHHB", 14, b"Adobe", 100, 0, 0, adobe)
    return b"\xff\xd8" + marker + quanta + frame + tables + scan + b"\xff\xd9"


# ── what is read ──────────────────────────────────────────────────────────────────────────────────────────────
def good():
    """Yield (name, bytes of a file, the RGB that is read)."""
    for bits in (1, 2, 4, 8):
        grey, index = samples(1, bits), samples(1, bits)
        palette = RANDOM.integers(0, 256, (1 << bits, 3)).astype(np.uint8)
        lut = ((b"PLTE", palette.tobytes()),)
        yield f"PNG grey {bits}", png(grey, 0, bits), rgb_of(grey, bits)
        yield f"PNG palette {bits}", png(index, 3, bits, lut), palette[index[..., 0]]
        clear = (*lut, (b"tRNS", bytes(1 << bits)))
        yield f"PNG clear palette {bits}", png(index, 3, bits, clear), palette[index[..., 0]]
        for invert in (0, 1):
            wanted = rgb_of(grey if invert else (1 << bits) - 1 - grey, bits)
            yield f"TIFF grey {bits} {invert}", tiff(grey, invert, bits), wanted
        colours = (320, 3, [int(v) * 257 for v in np.resize(palette, (1 << bits, 3)).T.reshape(-1)])
        yield f"TIFF palette {bits}", tiff(index, 3, bits, tags=[colours]), palette[index[..., 0]]
        if bits in (1, 4, 8):
            table = np.pad(palette[:, ::-1], ((0, 0), (0, 1))).tobytes()
            rows = packed(index[..., 0], bits)
            yield f"BMP palette {bits}", bmp(rows, bits, table), palette[index[..., 0]]
    rgb, rgba, la, cmyk = samples(3), samples(4), samples(2), samples(4)
    for name, pixels, colour in (("RGB", rgb, 2), ("RGBA", rgba, 6), ("grey and alpha", la, 4)):
        yield f"PNG {name}", png(pixels, colour), rgb_of(pixels)
    keyed = ((b"tRNS", rgb[0, 0].astype(">u2").tobytes()),)
    yield "PNG with a transparent colour", png(rgb, 2, 8, keyed), rgb_of(rgb)
    for kind, data in ((b"gAMA", struct.pack(">I", 200_000)), (b"iCCP", b"x\0\0" + zlib.compress(b"no profile"))):
        yield f"PNG {kind.decode()}", png(rgb, 2, 8, ((kind, data),)), rgb_of(rgb)
    for order in "<>":
        for planar in (1, 2):
            for deflate in (False, True):
                how = {"order": order, "planar": planar, "deflate": deflate}
                yield f"TIFF RGB {how}", tiff(rgb, 2, **how), rgb_of(rgb)
                yield f"TIFF CMYK {how}", tiff(cmyk, 5, **how), rgb_of_cmyk(cmyk)
        yield f"TIFF RGBA {order}", tiff(rgba, 2, order=order, extra=[2]), rgb_of(rgba)
    for most in (255, 100, 15, 1, 254):
        grey, colour = (
            RANDOM.integers(0, most + 1, (HEIGHT, WIDTH, 1)),
            RANDOM.integers(0, most + 1, (HEIGHT, WIDTH, 3)),
        )
        for magic, pixels in ((2, grey), (3, colour), (5, grey), (6, colour)):
            wanted = np.rint(pixels.repeat(4 - pixels.shape[2] if pixels.shape[2] == 1 else 1, axis=2) * 255 / most)
            yield f"PNM P{magic} {most}", pnm(pixels, magic, most), wanted.astype(np.uint8)
    for magic in (1, 4):
        black = samples(1, 1)
        yield f"PNM P{magic}", pnm(black, magic, 1), rgb_of(1 - black, 1)
    bgr = rgb[..., ::-1].astype(np.uint8)
    for down in (False, True):
        yield f"BMP 24 {down}", bmp([row.tobytes() for row in bgr], 24, top_down=down), rgb_of(rgb)
    bgrx = np.concatenate([bgr, np.zeros((HEIGHT, WIDTH, 1), np.uint8)], axis=2)
    yield "BMP 32", bmp([row.tobytes() for row in bgrx], 32), rgb_of(rgb)
    five = samples(3, 5)
    words = ((five[..., 0] << 10) | (five[..., 1] << 5) | five[..., 2]).astype("<u2")
    yield "BMP 16", bmp([row.tobytes() for row in words], 16), (five * 255 // 31).astype(np.uint8)
    palette = RANDOM.integers(0, 256, (256, 3)).astype(np.uint8)
    first, second = samples(1), samples(1)
    yield "GIF", gif(palette.tobytes(), first), palette[first[..., 0]]
    yield "GIF of two frames", gif(palette.tobytes(), first, second), palette[first[..., 0]]
    clear = int(first[1, 1, 0])
    yield "GIF with a transparent colour", gif(palette.tobytes(), first, transparent=clear), palette[first[..., 0]]
    for level in (0, 1, 100, 128, 129, 200, 255):
        yield f"JPEG grey {level}", jpeg([level]), np.full((8, 8, 3), level, np.uint8)
        yield f"JPEG YCbCr {level}", jpeg([level, 128, 128]), np.full((8, 8, 3), level, np.uint8)
    flat = np.full((8, 8, 4), (10, 60, 200, 30))
    yield "JPEG RGB", jpeg([10, 60, 200], adobe=0), flat[..., :3].astype(np.uint8)
    for adobe in (None, 0):  # taken as inverted, as Adobe writes it, also without its marker
        yield f"JPEG CMYK {adobe}", jpeg([10, 60, 200, 30], adobe), rgb_of_cmyk(255 - flat)
    grey = np.full((8, 8, 4), (90, 90, 90, 255 - 30))  # Y is that of 255 - C, and C is inverted once more
    yield "JPEG YCCK", jpeg([90, 128, 128, 30], adobe=2), rgb_of_cmyk(grey)
    for mode, pixels in (("RGB", rgb), ("RGBA", rgba | np.array([0, 0, 0, 255]))):
        image = Image.fromarray(pixels.astype(np.uint8))
        yield f"WebP {mode}", encoded(image, "WEBP", lossless=True), rgb_of(pixels)


GOOD = list(good())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("data", "rgb"), [pytest.param(*case, id=name) for name, *case in GOOD])
def test_the_pixels_are_those_of_the_file(data, rgb, channels):
    wanted = rgb if channels == 3 else grey_of(rgb)
    decoded = decode_image(data, "a", channels)
    assert decoded.shape == wanted.shape
    rounded = data.startswith(b"\xff\xd8")  # by a JPEG's transformation, or that of its colours
    assert np.abs(decoded.astype(int) - wanted).max() <= rounded


def turned():
    """Yield (name, bytes, orientation): RGB whose orientation is told in any way that a format has."""
    for orientation in (*range(1, 9), 0, 9):
        text = b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(orientation)
        yield f"PNG {orientation}", png(PIXELS, 2, before=[(b"eXIf", exif(orientation))]), orientation
        yield f"PNG behind {orientation}", png(PIXELS, 2, after=[(b"eXIf", exif(orientation, ">"))]), orientation
        yield f"PNG XMP {orientation}", png(PIXELS, 2, before=[(b"iTXt", text)]), orientation
        for deflate in (False, True):
            for order in "<>":
                tags = [(0x0112, 3, [orientation])]
                name = f"TIFF {orientation} {deflate} {order}"
                yield name, tiff(PIXELS, 2, order=order, deflate=deflate, tags=tags), orientation
        yield f"TIFF XMP {orientation}", tiff(PIXELS, 2, tags=[(700, 1, list(xmp(orientation)))]), orientation
        plain = Image.fromarray(PIXELS.astype(np.uint8))
        data = Image.Exif()
        data[0x0112] = orientation
        yield f"WebP {orientation}", encoded(plain, "WEBP", lossless=True, exif=data), orientation


PIXELS = samples(3)
TURNED = list(turned())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("data", "orientation"), [pytest.param(*case, id=name) for name, *case in TURNED])
def test_an_image_is_turned_once(data, orientation, channels):
    wanted = UPRIGHT.get(orientation, UPRIGHT[1])(rgb_of(PIXELS))
    wanted = wanted if channels == 3 else grey_of(wanted)
    picture = FilePicture(data, "a", channels)
    assert (picture.height, picture.width) == wanted.shape[:2]
    assert (picture.pixels() == wanted).all()
    out = np.empty_like(wanted[1:, :-1])
    FilePicture(data, "a", channels).cut((1, 0, *out.shape[:2]), out)
    assert (out == wanted[1:, :-1]).all()


def deep():
    for name, colour, channels in (("grey", 0, 1), ("RGB", 2, 3), ("grey and alpha", 4, 2), ("RGBA", 6, 4)):
        yield f"PNG {name}", png(samples(channels, 16) % 700, colour, 16)
    kinds = (("grey", 1, 1, ()), ("RGB", 2, 3, ()), ("RGBA", 2, 4, (2,)), ("CMYK", 5, 4, ()))
    for (name, photometric, channels, extra), order, planar in itertools.product(kinds, "<>", (1, 2)):
        data = tiff(samples(channels, 16) % 700, photometric, 16, order, planar, extra=extra)
        yield f"TIFF {name} {order} {planar}", data
    for most in (256, 4095, 65535):
        for magic, channels in ((2, 1), (3, 3), (5, 1), (6, 3)):
            yield f"PNM P{magic} {most}", pnm(samples(channels, 8), magic, most)
    yield "JPEG of 12 bits", jpeg([100], bits=12)


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in deep()])
def test_more_than_8_bits_a_channel_are_refused(data):
    with pytest.raises(DataError, match=says("a.x")):
        decode_image(data, "a.x", 3)


def test_the_size_of_a_data_set_is_that_of_upright_images(tmp_path):
    (tmp_path / "d" / "rose").mkdir(parents=True)
    for number, orientation in enumerate((6, 1)):
        pixels = PIXELS if orientation == 6 else UPRIGHT[6](PIXELS)
        data = encoded(pixels.astype(np.uint8), exif=exif(orientation))
        (tmp_path / "d" / "rose" / f"{number}.png").write_bytes(data)
    assert not make_dataset(tmp_path / "d", tmp_path / "o.h5").notes
    opened = open_dataset(tmp_path / "o.h5").train
    assert opened.shape == (WIDTH, HEIGHT, 3) and (opened.image(0) == opened.image(1)).all()
