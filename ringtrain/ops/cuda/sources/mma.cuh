// Products by tensor cores and copies that do not wait: what is written in PTX. (The CPU shim has bodies of its own.)
//
// A warp multiplies 16 x DEPTH by DEPTH x 8, DEPTH 16 for elements of 2 bytes and 8 for float (of which the cores take
// TF32's 19 bits). With group = lane / 4 and place = lane % 4, a lane holds
//
//                 2 bytes, two in a register                    4 bytes
//     a[0]  row group      depth 2 place + {0, 1}         row group      depth place
//     a[1]  row group + 8  depth 2 place + {0, 1}         row group + 8  depth place
//     a[2]  row group      depth 2 place + {8, 9}         row group      depth place + 4
//     a[3]  row group + 8  depth 2 place + {8, 9}         row group + 8  depth place + 4
//     b[0]  column group   depth 2 place + {0, 1}         column group   depth place
//     b[1]  column group   depth 2 place + {8, 9}         column group   depth place + 4
//     c[0] c[1]  row group,     columns 2 place, 2 place + 1
//     c[2] c[3]  row group + 8, columns 2 place, 2 place + 1
//
// load_matrices: four matrices of 8 x 8 elements of 2 bytes. Lane i names the start of line i % 8 of matrix i / 8 (16
// bytes, aligned), and gets of matrix j, into r[j], the elements 2 place + {0, 1} of line group. load_matrices_turned
// reads each matrix the other way round: r[j] has element group of the lines 2 place + {0, 1}.
//
// Source: NVIDIA, PTX ISA, "Matrix Fragments for mma.m16n8k16" and ".m16n8k8", ldmatrix, cp.async.
#pragma once
#include "common.cuh"

#ifdef CUDA_SHIM
#include "cuda_shim_mma.h"
#else

__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// 16 bytes to shared memory: the first ``bytes`` of them from global memory, 0 behind them. Both aligned to 16 bytes.
__device__ __forceinline__ void copy_16(void *shared, const void *global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

// The copies of this thread since the last call are one group.
__device__ __forceinline__ void copies_close() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until all but the last PENDING groups of this thread are there.
template <int PENDING> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void *line) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(line))
                 : "memory");
}

__device__ __forceinline__ void load_matrices_turned(unsigned (&r)[4], const void *line) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(line))
                 : "memory");
}

// The nearest TF32 (10 bits of mantissa), halves away from 0, as the bits of a float.
__device__ __forceinline__ unsigned tf32_bits(float x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

#define MULTIPLY(SHAPE)                                                                         \
    asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

// c += a · b. The pointer only says which type the elements have; float stands for TF32.
__device__ __forceinline__ void multiply(const __half *, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    MULTIPLY("m16n8k16.row.col.f32.f16.f16.f32");
}

__device__ __forceinline__ void multiply(
    const __nv_bfloat16 *, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]
) {
    MULTIPLY("m16n8k16.row.col.f32.bf16.bf16.f32");
}

__device__ __forceinline__ void multiply(const float *, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    MULTIPLY("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef MULTIPLY
#endif
