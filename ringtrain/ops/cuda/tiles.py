"""The tile of a product, and the slices of its sums: chosen from its size alone.

A tile of rows × columns takes, for each element of the sums, rows · columns multiply-adds and reads rows + columns
elements. Of 2 bytes each, on an H200 (4.8 TB/s from memory; 989 · 10¹² FLOP/s by tensor cores, whose instruction
used here can reach about 600):

    tile         FLOP for each    bytes read at     FLOP/s if all were    shared memory    blocks on
                 byte read        600 TFLOP/s       read from memory                       a processor
    128 × 128              64          9.4 TB/s            307 · 10¹²            80 KiB              2
    128 × 64               43         14.1 TB/s            205 · 10¹²            60 KiB              3
    64 × 64                32         18.8 TB/s            154 · 10¹²            40 KiB              5

The L2 cache supplies the difference: neighbours read the same rows and columns. Elements of 4 bytes halve the first and
the third figure; TF32 has half the peak, and float32 itself 67 · 10¹² FLOP/s, which memory allows with every tile.
Computed from the data sheet, not measured."""

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
    """The tile of a product: rows × columns of the result."""

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
    """Return the tiles for elements of ``itemsize`` bytes: sums of float64 fill the registers of large ones."""
    return TILES if itemsize < 8 else (SMALL,)


def worth(rows: int, columns: int, itemsize: int) -> tuple[Tile, ...]:
    """Return the tiles that the matrix fills at least half."""
    fits = (tile for tile in able(itemsize) if rows > tile.rows // 2 and columns > tile.columns // 2)
    return tuple(fits) or (SMALL,)


def choose_tile(rows: int, columns: int, itemsize: int, others: int = 1) -> Tile:
    """Return the largest tile that leaves enough blocks, of ``others`` such products at once, and is not mostly
    empty."""
    for tile in able(itemsize):
        if columns > tile.columns // 2 and tile.count(rows, columns) * others >= ENOUGH_BLOCKS:
            return tile
    return SMALL


def split_depth(tiles: int, depth: int, itemsize: int) -> tuple[int, int]:
    """Return (number of slices, elements of each) of a sum of ``depth`` elements, for a product with few tiles."""
    step = PANEL_BYTES // itemsize
    wanted = min(-(-WANTED_BLOCKS // max(tiles, 1)), depth // LEAST_SHARE) if tiles < ENOUGH_BLOCKS else 1
    each = -(-depth // max(wanted, 1))
    each = max(step, -(-each // step) * step)
    return max(1, -(-depth // each)), each
