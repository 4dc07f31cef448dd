// Sums of arrays that lie on several devices, or are several ranks': what an all-reduce does to a slice.
#include "common.cuh"

#define ACTS Wide<ACT>::COUNT
#define MOST 8

struct Sources { const ACT *at[MOST]; };
struct Targets { ACT *at[MOST]; };

__device__ inline bool all_aligned(const Sources &sources, int source_count, const Targets &targets, int target_count) {
    bool wide = true;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        if (i < source_count) wide = wide && aligned(sources.at[i], 16);
        if (i < target_count) wide = wide && aligned(targets.at[i], 16);
    }
    return wide;
}

// All sources are read before a target is written, which may be one of them.
template <int COUNT, int SOURCES>
__device__ void add_vector(const Sources &sources, const Targets &targets, int target_count, long long i) {
    typedef Vector<ACT, COUNT> Some;
    Some read[SOURCES];
#pragma unroll
    for (int s = 0; s < SOURCES; s++) read[s] = ((const Some *)sources.at[s])[i];
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        REAL sum = to_real(read[0].at[k]);
#pragma unroll
        for (int s = 1; s < SOURCES; s++) sum += to_real(read[s].at[k]);
        read[0].at[k] = to_act(sum);
    }
#pragma unroll
    for (int t = 0; t < MOST; t++)
        if (t < target_count) ((Some *)targets.at[t])[i] = read[0];
}

template <int SOURCES>
__device__ void add_up(const Sources &sources, const Targets &targets, int target_count, long long n) {
    long long vectors = all_aligned(sources, SOURCES, targets, target_count) ? n / ACTS : 0;
    for (long long i = first_index(); i < vectors; i += index_stride())
        add_vector<ACTS, SOURCES>(sources, targets, target_count, i);
    for (long long i = vectors * ACTS + first_index(); i < n; i += index_stride())
        add_vector<1, SOURCES>(sources, targets, target_count, i);
}

extern "C" __global__ void add_all(
    const ACT *s0, const ACT *s1, const ACT *s2, const ACT *s3, const ACT *s4, const ACT *s5, const ACT *s6,
    const ACT *s7, ACT *t0, ACT *t1, ACT *t2, ACT *t3, ACT *t4, ACT *t5, ACT *t6, ACT *t7, int source_count,
    int target_count, long long n) {
    Sources sources = {{s0, s1, s2, s3, s4, s5, s6, s7}};
    Targets targets = {{t0, t1, t2, t3, t4, t5, t6, t7}};
    switch (source_count) {
        case 1: return add_up<1>(sources, targets, target_count, n);
        case 2: return add_up<2>(sources, targets, target_count, n);
        case 3: return add_up<3>(sources, targets, target_count, n);
        case 4: return add_up<4>(sources, targets, target_count, n);
        case 5: return add_up<5>(sources, targets, target_count, n);
        case 6: return add_up<6>(sources, targets, target_count, n);
        case 7: return add_up<7>(sources, targets, target_count, n);
        case 8: return add_up<8>(sources, targets, target_count, n);
    }
}
