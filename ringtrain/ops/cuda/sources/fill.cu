// One value for every element, whatever its type: the bits of it, repeated in 8 bytes.
#include "common.cuh"

typedef Vector<unsigned long long, 2> Sixteen;

// `bytes` of memory, the first of them aligned to the value's own size.
extern "C" __global__ void fill(void *x, long long bytes, unsigned long long bits) {
    char *at = (char *)x;
    long long head = (16 - (unsigned long long)x % 16) % 16;
    head = head < bytes ? head : bytes;
    long long vectors = (bytes - head) / 16, tail = head + vectors * 16;
    Sixteen value;
    // The first whole 16 bytes begin `head` bytes after the first value: its bits are turned by as much.
    int turn = (int)(head % 8) * 8;
    value.at[0] = value.at[1] = turn ? bits >> turn | bits << (64 - turn) : bits;
    for (long long v = first_index(); v < vectors; v += index_stride()) ((Sixteen *)(at + head))[v] = value;
    for (long long i = first_index(); i < head; i += index_stride()) at[i] = (char)(bits >> i % 8 * 8);
    for (long long i = tail + first_index(); i < bytes; i += index_stride()) at[i] = (char)(bits >> i % 8 * 8);
}
