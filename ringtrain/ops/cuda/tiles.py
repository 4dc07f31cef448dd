"""Which tile a product is computed by, and into how many parts its sums are cut: from its size alone.

A tile of rows × columns, for each element of the sum, takes rows · columns multiply-adds and reads rows + columns
elements. With 2 bytes an element, multiply-adds at what an H200's tensor cores can do by the instruction used here (about
600 · 10¹² FLOP/s of its 989), and at 1, the tile's own reads, all of them from memory (4.8 TB/s):

    tile        FLOP a byte read   at 600 TFLOP/s it reads   memory alone would allow     shared memory   blocks a processor
    128 × 128                 64               9.4 TB/s           307 · 10¹² FLOP/s              80 KiB                    2
    128 × 64                  43              14.1 TB/s           205 · 10¹²                     60 KiB                    3
    64 × 64                   32              18.8 TB/s           154 · 10¹²                     40 KiB                    5

What keeps it from memory's rate is the L2 cache: neighbours read the same rows and columns. TF32 halves the first column
(and its peak, 495 TFLOP/s); float32 without it has 67 · 10¹² FLOP/s at the most, below memory's bound for every tile. These are
floors reckoned from the data sheet, not measurements.
"""

from dataclasses import dataclass

THREADS = 128
PANEL_BYTES = 64  # of a row of a factor, in one step of the sum
STAGES, BYTES_PER_LINE = 4, 80
# Blocks that keep the processors of a large device busy. Not asked of the device: results would depend on it.
ENOUGH_BLOCKS = 128
WANTED_BLOCKS = 256
LEAST_SHARE = 512  # elements of a sum that are worth a part of their own


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    columns: int

    def __str__(self):
        return f"{self.rows}x{self.columns}"

    @property
    def shared_bytes(self) -> int:
        return STAGES * (self.rows + self.columns) * BYTES_PER_LINE

    @property
    def defines(self) -> dict:
        return {"TILE_M": self.rows, "TILE_N": self.columns}

    def count(self, rows: int, columns: int) -> int:
        return -(-rows // self.rows) * -(-columns // self.columns)


TILES = (Tile(128, 128), Tile(128, 64), Tile(64, 64))
SMALL = TILES[-1]


def able(itemsize: int) -> tuple[Tile, ...]:
    """Tiles there are for elements of so many bytes: sums of float64 fill the registers of large ones."""
    return TILES if itemsize < 8 else (SMALL,)


def choose(rows: int, columns: int, itemsize: int, others: int = 1) -> Tile:
    """The largest tile that leaves enough blocks, of ``others`` such products at once, and is not mostly empty."""
    for tile in able(itemsize):
        if columns > tile.columns // 2 and tile.count(rows, columns) * others >= ENOUGH_BLOCKS:
            return tile
    return SMALL


def shares(tiles: int, depth: int, itemsize: int) -> tuple[int, int]:
    """(parts, elements of each) that a sum of ``depth`` elements is cut into where a product has but few tiles."""
    step = PANEL_BYTES // itemsize
    wanted = min(-(-WANTED_BLOCKS // max(tiles, 1)), depth // LEAST_SHARE) if tiles < ENOUGH_BLOCKS else 1
    each = -(-depth // max(wanted, 1))
    each = max(step, -(-each // step) * step)
    return max(1, -(-depth // each)), each
