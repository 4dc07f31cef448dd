// What batch normalisation and its gradient share.
#pragma once
#include "columns.cuh"

__device__ inline REAL inverse_of(REAL var, REAL eps) { return (REAL)1 / sqrt(var + eps); }
