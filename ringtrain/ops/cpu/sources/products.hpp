// The sizes of products' inner loops, whose sums stay in registers.
#pragma once
#include "vector.hpp"

// NV vectors of features make a panel; MR rows times NV sums are in flight.
#if VECTOR_BYTES == 64 || defined(__aarch64__)
constexpr int NV = 2, MR = 12;  // 24 sums in 32 registers
#else
constexpr int NV = 2, MR = 6;  // 12 sums in 16 registers
#endif
constexpr Int PANEL = NV * LANES;
