// What mma.cuh writes in PTX, for the host: the instructions as the PTX ISA defines them, element by element.
//
// The layouts are those of its formulas (row and column of element i of a fragment), not of the drawing in mma.cuh: a
// misreading would have to be made twice. Copies are done as late as is allowed, when the thread waits for them.
#pragma once

struct ShimCopy {
    void *to;
    const void *from;
    int bytes;
};

// Of one thread: copies in the order in which they were asked for, closed into groups.
struct ShimCopies {
    static const int MOST = 4096;
    ShimCopy copies[MOST];
    int done, closed, count;
    int ends[MOST];  // of the groups
    int first_group, groups;
};

static ShimCopies *shim_copies() {
    static ShimCopies *all = (ShimCopies *)mmap(
        0, sizeof(ShimCopies) * shim::MOST_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0
    );
    return &all[shim::self()];
}

static inline void copy_16(void *shared, const void *global, int bytes) {
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) shim::fail("cp.async to or from an address that is not aligned");
    if (bytes < 0 || bytes > 16) shim::fail("cp.async of %d bytes", bytes);
    unsigned char *start = shim::dynamic_shared;
    if ((unsigned char *)shared < start || (unsigned char *)shared + 16 > start + shim::DYNAMIC_BYTES)
        shim::fail("cp.async to memory that is not shared");
    ShimCopies *own = shim_copies();
    if (own->count == ShimCopies::MOST) return shim::fail("more cp.async than are waited for");
    own->copies[own->count++] = {shared, global, bytes};
}

static inline void copies_close() {
    ShimCopies *own = shim_copies();
    own->ends[own->groups++] = own->count;
}

template <int PENDING> static inline void copies_wait() {
    ShimCopies *own = shim_copies();
    for (; own->groups - own->first_group > PENDING; own->first_group++)
        for (; own->done < own->ends[own->first_group]; own->done++) {
            ShimCopy copy = own->copies[own->done];
            memset(copy.to, 0, 16);
            memcpy(copy.to, copy.from, copy.bytes);
        }
    if (own->first_group == own->groups) own->done = own->count = own->first_group = own->groups = 0;
}

// ldmatrix: row r of matrix j is at the address that thread 8 j + r names. Thread 4 r + p gets elements 2 p and 2 p + 1 of
// row r; with .trans, rows and columns are exchanged first.
static void shim_load_matrices(unsigned (&to)[4], const void *line, bool turned) {
    if ((uintptr_t)line % 16) shim::fail("ldmatrix of an address that is not aligned");
    auto addresses = shim::exchange(~0u, (uint64_t)line, 0, __LINE__);
    int lane = shim::lane(), r = lane >> 2, p = lane & 3;
    for (int j = 0; j < 4; j++) {
        uint16_t pair[2];
        for (int e = 0; e < 2; e++) {
            int row = turned ? 2 * p + e : r, column = turned ? r : 2 * p + e;
            pair[e] = ((const uint16_t *)addresses[8 * j + row][0])[column];
        }
        to[j] = pair[0] | (unsigned)pair[1] << 16;
    }
}

static inline void load_matrices(unsigned (&to)[4], const void *line) { shim_load_matrices(to, line, false); }
static inline void load_matrices_turned(unsigned (&to)[4], const void *line) { shim_load_matrices(to, line, true); }

// To nearest, halves away from 0: the magnitude is in the lower 31 bits.
static inline unsigned tf32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7f800000) == 0x7f800000) return bits;
    return (bits + 0x1000) & 0xffffe000;
}

// Where the PTX ISA has element i of a fragment, DEPTH elements of the sum at a time.
template <int DEPTH> struct ShimLayout;
template <> struct ShimLayout<16> {
    static int a_row(int lane, int i) { return (lane >> 2) + ((i < 2 || (4 <= i && i < 6)) ? 0 : 8); }
    static int a_depth(int lane, int i) { return (lane % 4) * 2 + (i & 1) + (i < 4 ? 0 : 8); }
    static int b_depth(int lane, int i) { return (lane % 4) * 2 + (i & 1) + (i < 2 ? 0 : 8); }
};
template <> struct ShimLayout<8> {
    static int a_row(int lane, int i) { return (lane >> 2) + (i == 0 || i == 2 ? 0 : 8); }
    static int a_depth(int lane, int i) { return lane % 4 + (i < 2 ? 0 : 4); }
    static int b_depth(int lane, int i) { return lane % 4 + (i == 0 ? 0 : 4); }
};

static float shim_value(const __half *, const void *fragment, int i) { return __half2float(((const __half *)fragment)[i]); }
static float shim_value(const __nv_bfloat16 *, const void *fragment, int i) {
    return __bfloat162float(((const __nv_bfloat16 *)fragment)[i]);
}
static float shim_value(const float *, const void *fragment, int i) {
    unsigned bits = ((const unsigned *)fragment)[i];
    if (bits & 0x1fff) shim::fail("a float that is not TF32 was given to the tensor cores");
    return ((const float *)fragment)[i];
}

template <typename T>
static inline void multiply(const T *type, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const int DEPTH = 32 / sizeof(T), A_COUNT = 16 / sizeof(T), B_COUNT = 8 / sizeof(T);
    typedef ShimLayout<DEPTH> Layout;
    uint64_t words[2];
    memcpy(words, a, 16);
    uint64_t lefts[32][2], rights[32][2];
    memcpy(lefts, shim::exchange(~0u, words[0], words[1], __LINE__), sizeof lefts);
    memcpy(words, b, 8);
    memcpy(rights, shim::exchange(~0u, words[0], 0, __LINE__), sizeof rights);
    int rows[2] = {shim::lane() >> 2, (shim::lane() >> 2) + 8}, columns[2] = {shim::lane() % 4 * 2, shim::lane() % 4 * 2 + 1};
    float left[2][DEPTH], right[DEPTH][2];
    for (int lane = 0; lane < 32; lane++)
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < A_COUNT && lane >> 2 == rows[0]; i++)
                if (Layout::a_row(lane, i) == rows[k]) left[k][Layout::a_depth(lane, i)] = shim_value(type, lefts[lane], i);
            for (int i = 0; i < B_COUNT && lane >> 2 == columns[k]; i++)
                right[Layout::b_depth(lane, i)][k] = shim_value(type, rights[lane], i);
        }
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < DEPTH; d++) c[i] += left[i / 2][d] * right[d][i % 2];
}
