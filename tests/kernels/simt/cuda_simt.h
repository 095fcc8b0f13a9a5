// The part of CUDA that the kernels use, as C++.
#pragma once

#include "simt.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ SIMT_SHARED
#define threadIdx simt::thread_index()
#define blockIdx simt::block_index()

namespace {

typedef simt::Brain __nv_bfloat16;
typedef simt::Half __half;

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

inline float2 __half22float2(__half2 v) {
    return {v.x, v.y};
}
inline float __uint_as_float(unsigned bits) {
    return simt::float_of(bits);
}
inline void __syncthreads() {
    simt::barrier();
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, unsigned distance) {
    if (mask != 0xffffffffu) simt::fail("a shuffle without some of its lanes");
    return simt::shuffle_xor(value, distance);
}
