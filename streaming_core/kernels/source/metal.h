// What the shared text needs, in Metal.  MLX puts its own prelude (metal_stdlib, bfloat16_t) before this.
#define INLINE inline
#define DEVICE device
#define THREAD thread
#define SHARED threadgroup
#define UNROLL _Pragma("clang loop unroll(full)")
#define BARRIER() metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup)
#define LOAD(pointer) (*(pointer))
#define SHUFFLE_XOR(value, distance) metal::simd_shuffle_xor(value, ushort(distance))

INLINE float as_float(uint bits) {
    return as_type<float>(bits);
}

INLINE uint masked_or(uint value, uint mask, uint more) {
    return (value & mask) | more;
}

INLINE float2 halves(uint bits) {
    return float2(as_type<half2>(bits));
}

INLINE float exponential(float v) {
    return metal::exp(v);
}

INLINE uint4 load_quad(const DEVICE uint* p) {
    return *(const DEVICE uint4*)p;
}

INLINE uint2 load_pair(const DEVICE uint* p) {
    return *(const DEVICE uint2*)p;
}

typedef bfloat16_t brain;
typedef half half_t;
