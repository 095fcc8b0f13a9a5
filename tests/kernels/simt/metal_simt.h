// The part of the Metal Shading Language that the kernels use, as C++.  Address spaces are only words here.
#pragma once

#include "simt.h"

#define device
#define constant
#define thread
#define threadgroup SIMT_SHARED

namespace {

typedef unsigned int uint;
typedef unsigned short ushort;
typedef simt::Brain bfloat16_t;
typedef simt::Half half;
typedef simt::Half float16_t;
typedef simt::Index uint3;

struct alignas(8) uint2 {
    uint x, y;
};
struct alignas(16) uint4 {
    uint x, y, z, w;
};
struct half2 {
    half x, y;
};
struct alignas(8) float2 {
    float x, y;
    float2() = default;
    explicit float2(half2 v) : x(v.x), y(v.y) {}
};
struct alignas(16) float4 {
    float x, y, z, w;
};

template <typename T, typename F>
inline T as_type(F from) {
    static_assert(sizeof(T) == sizeof(F), "as_type changes no size");
    T to;
    memcpy(&to, &from, sizeof to);
    return to;
}

namespace metal {
enum class mem_flags { mem_threadgroup };
inline void threadgroup_barrier(mem_flags) {
    simt::barrier();
}
template <typename T>
inline T simd_shuffle_xor(T value, ushort distance) {
    return simt::shuffle_xor(value, distance);
}
inline float exp(float v) {
    return expf(v);
}
}  // namespace metal
