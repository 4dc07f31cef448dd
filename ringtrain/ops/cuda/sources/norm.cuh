// What batch normalisation and its gradient share, with those who normalise on the way.
#pragma once
#include "columns.cuh"

__device__ inline REAL inverse_of(REAL var, REAL eps) { return (REAL)1 / sqrt(var + eps); }
__device__ inline REAL scale_of(REAL gamma, REAL var, REAL eps) { return gamma * inverse_of(var, eps); }

// Always rounded in the same places: whether it is above 0 is found again in the gradient.
__device__ inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return fma(a, b, c); }
__device__ inline REAL normal_of(REAL x, REAL mean, REAL scale, REAL beta) { return fused(x - mean, scale, beta); }
