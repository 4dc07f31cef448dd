// What wgmma.cuh writes in PTX, for the host: barriers, copies of the TMA unit and products of a warpgroup as the PTX
// ISA defines them, element by element.
//
// What happens by itself happens as late as it may: a copy when its barrier is waited for, products when their group
// is. With CUDA_SHIM_BACKWARDS a copy is done at once. So who reads too early, or lets memory be overwritten too early,
// gets other numbers in one order or the other. Operands are found by decoding their descriptors; the layouts are those
// of the PTX ISA's formulas, and not of wgmma_tile.cuh's drawing: a misreading would have to be made twice.
#pragma once

// ── shared memory ────────────────────────────────────────────────────────────────────────────────────────────────
// Its addresses begin at 1024, as on a device.
const unsigned SHIM_FIRST = 1024;

static inline unsigned shared_address(const void *p) {
    return (unsigned)((const unsigned char *)p - shim::dynamic_shared) + SHIM_FIRST;
}
static unsigned char *shim_shared(unsigned address) { return shim::dynamic_shared + (int)(address - SHIM_FIRST); }

static bool shim_is_shared(const void *p, size_t bytes) {
    const unsigned char *start = shim::dynamic_shared, *at = (const unsigned char *)p;
    return at >= start && at + bytes <= start + shim::DYNAMIC_BYTES;
}

// ── maps and barriers ────────────────────────────────────────────────────────────────────────────────────────────
// As tests/fakes/tensor_maps.py makes it. Axes are innermost first; strides are in bytes. A box of pixels has box[0]
// channels of box[1] pixels, whose corners go from ``lower`` to the image's last pixel plus ``upper``, by ``step``.
struct TensorMap {
    const unsigned char *address;
    long long strides[3];
    int pixels, extents[4], box[3], lower[2], upper[2], step[2], unused[10];
};
static_assert(sizeof(TensorMap) == 128, "");

// In the 8 bytes of the barrier; without the mark it has not been made. bytes: those that the phase still waits for.
struct ShimBarrier {
    unsigned long long mark : 9, parity : 1, arrivals : 12, pending : 12;
    long long bytes : 30;
};
static_assert(sizeof(ShimBarrier) == 8, "");
const unsigned SHIM_MARK = 0x155;

struct ShimCopyOfBox {
    Barrier *barrier;
    unsigned char *to;
    TensorMap map;
    int at[4], offset[2];
};
const int SHIM_COPIES = 256;
static ShimCopyOfBox shim_boxes[SHIM_COPIES];
static int shim_box_count;
static bool shim_fenced;  // the barriers, for the TMA unit

static ShimBarrier shim_read(Barrier *barrier, const char *doing) {
    ShimBarrier state;
    memcpy(&state, barrier, 8);
    if ((uintptr_t)barrier % 8 || !shim_is_shared(barrier, 8))
        shim::fail("%s a barrier that is not in shared memory", doing);
    else if (state.mark != SHIM_MARK) shim::fail("%s a barrier that was not made", doing);
    return state;
}

static void shim_write(Barrier *barrier, ShimBarrier state) {
    if (state.pending == 0 && state.bytes == 0) state.parity ^= 1, state.pending = state.arrivals;
    memcpy(barrier, &state, 8);
}

static void shim_land(const ShimCopyOfBox &copy);

// Do the copies of a barrier, in their order.
static void shim_land_all(Barrier *barrier) {
    int kept = 0;
    for (int i = 0; i < shim_box_count; i++)
        if (shim_boxes[i].barrier == barrier) shim_land(shim_boxes[i]);
        else shim_boxes[kept++] = shim_boxes[i];
    shim_box_count = kept;
}

static bool shim_over(void *barrier, int parity) {
    shim_land_all((Barrier *)barrier);
    return shim_read((Barrier *)barrier, "waiting for").parity != (unsigned)parity;
}

static inline void barrier_make(Barrier *barrier, int arrivals) {
    ShimBarrier state = {SHIM_MARK, 0, (unsigned)arrivals, (unsigned)arrivals, 0};
    memcpy(barrier, &state, 8);
    shim_fenced = false;
}
static inline void barriers_made() { shim_fenced = true; }

static inline void barrier_arrive(Barrier *barrier) {
    ShimBarrier state = shim_read(barrier, "arriving at");
    state.pending--;
    shim_write(barrier, state);
}

static inline void barrier_expect(Barrier *barrier, int bytes) {
    ShimBarrier state = shim_read(barrier, "arriving at");
    state.bytes += bytes;
    state.pending--;
    shim_write(barrier, state);
}

static inline void barrier_wait(Barrier *barrier, int parity, int line = __builtin_LINE()) {
    shim::wait_until(shim_over, barrier, parity, line);
}

// ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────
// 128 bytes of line ``line``, whose 16-byte parts are exchanged by the line's number among 8.
static void shim_store_line(unsigned char *to, int line, const unsigned char (&bytes)[128]) {
    for (int part = 0; part < 8; part++) memcpy(to + line * 128 + (part ^ line % 8) * 16, bytes + part * 16, 16);
}

// Elements from ``first`` on of the line at ``line`` of the array (0 where that is nowhere); 2 bytes each.
static void shim_line(const TensorMap &map, const unsigned char *line, int first, unsigned char (&bytes)[128]) {
    for (int i = 0; i < map.box[0]; i++)
        if (line && first + i >= 0 && first + i < map.extents[0]) memcpy(bytes + 2 * i, line + 2ll * (first + i), 2);
        else memset(bytes + 2 * i, 0, 2);
}

static bool shim_inside(int x, int extent) { return x >= 0 && x < extent; }

static void shim_land_box(const ShimCopyOfBox &copy) {
    const TensorMap &map = copy.map;
    for (int k = 0; k < map.box[2]; k++)
        for (int j = 0; j < map.box[1]; j++) {
            int y = copy.at[1] + j, z = copy.at[2] + k;
            bool inside = shim_inside(y, map.extents[1]) && shim_inside(z, map.extents[2]);
            unsigned char bytes[128];
            shim_line(map, inside ? map.address + y * map.strides[0] + z * map.strides[1] : 0, copy.at[0], bytes);
            shim_store_line(copy.to, k * map.box[1] + j, bytes);
        }
}

static void shim_land_pixels(const ShimCopyOfBox &copy) {
    const TensorMap &map = copy.map;
    int w = copy.at[1], h = copy.at[2], n = copy.at[3];
    int last_w = map.extents[1] - 1 + map.upper[0], last_h = map.extents[2] - 1 + map.upper[1];
    if (w < map.lower[0] || w > last_w || h < map.lower[1] || h > last_h)
        return shim::fail("a copy of pixels that begins at (%d, %d), outside of its box", w, h);
    for (int pixel = 0; pixel < map.box[1]; pixel++) {
        int x = w + copy.offset[0], y = h + copy.offset[1];
        bool inside = shim_inside(x, map.extents[1]) && shim_inside(y, map.extents[2]);
        inside = inside && shim_inside(n, map.extents[3]);
        long long offset = x * map.strides[0] + y * map.strides[1] + n * map.strides[2];
        unsigned char bytes[128];
        shim_line(map, inside ? map.address + offset : 0, copy.at[0], bytes);
        shim_store_line(copy.to, pixel, bytes);
        if ((w += map.step[0]) > last_w) w = map.lower[0], h += map.step[1];
        if (h > last_h) h = map.lower[1], n++;
    }
}

static void shim_land(const ShimCopyOfBox &copy) {
    const TensorMap &map = copy.map;
    int lines = map.box[1] * (map.pixels ? 1 : map.box[2]);
    if (!shim_is_shared(copy.to, lines * 128)) return shim::fail("a copy to memory that is not shared");
    map.pixels ? shim_land_pixels(copy) : shim_land_box(copy);
    ShimBarrier state = shim_read(copy.barrier, "counting bytes at");
    state.bytes -= lines * map.box[0] * 2;
    if (state.bytes < 0) return shim::fail("a barrier got more bytes than are expected");
    shim_write(copy.barrier, state);
}

static void shim_ask(const ShimCopyOfBox &copy, bool pixels) {
    if (!shim_fenced) return shim::fail("a copy whose barrier the TMA unit may not see yet");
    if ((uintptr_t)copy.to % 1024) return shim::fail("a swizzled copy to an address that is not a multiple of 1024");
    if (copy.map.pixels != pixels) return shim::fail("a copy by a map of another kind");
    shim_read(copy.barrier, "copying for");
    if (shim_box_count == SHIM_COPIES) return shim::fail("more copies than are waited for");
    if (shim::backwards) shim_land(copy);
    else shim_boxes[shim_box_count++] = copy;
}

static inline void copy_box(void *shared, const TensorMap &map, Barrier *barrier, int x, int y, int z) {
    shim_ask({barrier, (unsigned char *)shared, map, {x, y, z}}, false);
}

static inline void copy_pixels(
    void *shared, const TensorMap &map, Barrier *barrier, int channel, int w, int h, int n, int right, int down
) {
    if (right < 0 || right > 255 || down < 0 || down > 255) shim::fail("offsets (%d, %d) within a window", right, down);
    shim_ask({barrier, (unsigned char *)shared, map, {channel, w, h, n}, {right, down}}, true);
}

// ── warpgroups ───────────────────────────────────────────────────────────────────────────────────────────────────
static int shim_met[16], shim_meetings[16];

static bool shim_has_met(void *group, int meeting) { return shim_meetings[*(int *)group] != meeting; }

static inline void warpgroup_meet(int group, int line = __builtin_LINE()) {
    static int ids[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int meeting = shim_meetings[group];
    if (++shim_met[group] == TILE_THREADS) shim_met[group] = 0, shim_meetings[group]++;
    shim::wait_until(shim_has_met, &ids[group], meeting, line);
}

template <int COUNT> static inline void registers_take() {}
template <int COUNT> static inline void registers_give() {}

// ── products ─────────────────────────────────────────────────────────────────────────────────────────────────────
// The address of an element of an operand: ``row`` of 64 or N, element ``depth`` of the sum. In units of 16 bytes the
// layouts are ((8, n), 2) : ((8, stride), 1) K-major, ((8, n), (8, k)) : ((1, leading), (8, stride)) MN-major, and then
// bits 4 to 6 of the address are exchanged by bits 7 to 9.
struct ShimOperand {
    unsigned start, leading, stride;
    bool flat;

    ShimOperand(unsigned long long bits, bool flat) : flat(flat) {
        start = (bits & 0x3fff) << 4, leading = (bits >> 16 & 0x3fff) << 4, stride = (bits >> 32 & 0x3fff) << 4;
        if (bits >> 62 != 1) shim::fail("an operand that is not swizzled by 128 bytes");
        if (bits >> 49 & 7) shim::fail("an operand whose swizzling does not begin at a multiple of 1024");
    }

    unsigned short at(int row, int depth) const {
        unsigned address = flat ? start + row % 64 * 2 + row / 64 * leading + depth % 8 * 128 + depth / 8 * stride
                                : start + row % 8 * 128 + row / 8 * stride + depth * 2;
        address ^= (address >> 7 & 7) << 4;
        if (!shim_is_shared(shim_shared(address), 2)) {
            shim::fail("an operand beyond shared memory");
            return 0;
        }
        unsigned short bits;
        memcpy(&bits, shim_shared(address), 2);
        return bits;
    }
};

struct ShimProduct {
    float *sums;
    int columns;
    unsigned long long a, b;
    bool a_flat, b_flat;
    float (*value)(unsigned short);
};

// Of one thread, in their order; ``ends`` of the groups that are closed.
struct ShimProducts {
    static const int MOST = 64;
    ShimProduct products[MOST];
    int ends[MOST], count, done, groups, first_group;
    bool begun, unsettled;
};
static ShimProducts shim_products[shim::MOST_THREADS];

static float shim_half(unsigned short bits) { return __half2float(__ushort_as_half(bits)); }
static float shim_bfloat16(unsigned short bits) { return __bfloat162float({bits}); }
static float (*shim_value_of(const __half *))(unsigned short) { return shim_half; }
static float (*shim_value_of(const __nv_bfloat16 *))(unsigned short) { return shim_bfloat16; }

// A thread's own sums: element i is in row 16 (warp % 4) + lane / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (lane % 4) +
// i % 2.
static void shim_multiply(const ShimProduct &product) {
    ShimOperand a(product.a, product.a_flat), b(product.b, product.b_flat);
    int warp = shim::self() / 32 % 4, lane = shim::lane();
    float left[2][16], right[16];
    for (int r = 0; r < 2; r++)
        for (int d = 0; d < 16; d++) left[r][d] = product.value(a.at(16 * warp + lane / 4 + 8 * r, d));
    for (int j = 0; j < product.columns / 4; j++) {
        for (int d = 0; d < 16; d++) right[d] = product.value(b.at(8 * (j / 2) + 2 * (lane % 4) + j % 2, d));
        for (int r = 0; r < 2; r++)
            for (int d = 0; d < 16; d++) product.sums[4 * (j / 2) + 2 * r + j % 2] += left[r][d] * right[d];
    }
}

static inline void products_begin() { shim_products[shim::self()].begun = true; }

template <bool A_FLAT, bool B_FLAT, typename T, int COUNT>
static inline void multiply(const T *type, float (&d)[COUNT], unsigned long long a, unsigned long long b) {
    ShimProducts &own = shim_products[shim::self()];
    if (!own.begun) return shim::fail("products of sums that were not fenced");
    if (own.count == ShimProducts::MOST) return shim::fail("more products than are waited for");
    own.unsettled = true;
    own.products[own.count++] = {d, 2 * COUNT, a, b, A_FLAT, B_FLAT, shim_value_of(type)};
}

static inline void products_close() {
    ShimProducts &own = shim_products[shim::self()];
    own.ends[own.groups++] = own.count;
    own.begun = false;
}

// All lanes of a warp wait together.
template <int PENDING> static inline void products_wait() {
    ShimProducts &own = shim_products[shim::self()];
    for (; own.groups - own.first_group > PENDING; own.first_group++)
        for (; own.done < own.ends[own.first_group]; own.done++) shim_multiply(own.products[own.done]);
    int rest = 0;
    for (int i = own.done; i < own.count; i++) own.products[rest++] = own.products[i];
    for (int i = own.first_group; i < own.groups; i++) own.ends[i - own.first_group] = own.ends[i] - own.done;
    own.groups -= own.first_group, own.count = rest, own.done = own.first_group = 0;
    shim::exchange(~0u, 0, 0, __LINE__);
}

// Here it checks that sums are settled at all, and after their products.
template <int COUNT> static inline void products_settle(float (&)[COUNT]) {
    ShimProducts &own = shim_products[shim::self()];
    if (own.count) return shim::fail("sums are settled before their products are done");
    own.unsettled = false;
}

// ── the end of a block ───────────────────────────────────────────────────────────────────────────────────────────
static void shim_end() {
    if (shim_box_count) shim::fail("a block ended before %d copies were there", shim_box_count);
    for (int t = 0; t < shim::count; t++) {
        if (shim_products[t].count) shim::fail("a block ended before products of thread %d were done", t);
        else if (shim_products[t].unsettled) shim::fail("a block ended before sums of thread %d were settled", t);
        shim_products[t].unsettled = false;
        shim_products[t].count = shim_products[t].done = shim_products[t].groups = shim_products[t].first_group = 0;
    }
    shim_box_count = 0;
    memset(shim_met, 0, sizeof shim_met);
}
static int shim_registered = (shim::block_ended = shim_end, 0);
