// What the shared text needs, in CUDA.  MLX puts its own prelude (cuda_fp16, cuda_bf16) before this.
#define INLINE __device__ __forceinline__
#define DEVICE
#define THREAD
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define BARRIER() __syncthreads()
#define SHUFFLE_XOR(value, distance) __shfl_xor_sync(0xffffffffu, value, distance)

typedef unsigned int uint;
typedef __nv_bfloat16 brain;
typedef __half half_t;

INLINE float as_float(uint bits) {
    return __uint_as_float(bits);
}

INLINE float2 halves(uint bits) {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

INLINE float exponential(float v) {
    return expf(v);
}

// Weights are read once and never written meanwhile: the read-only path.
INLINE uint4 load_quad(const uint* p) {
    return __ldg(reinterpret_cast<const uint4*>(p));
}

INLINE uint2 load_pair(const uint* p) {
    return __ldg(reinterpret_cast<const uint2*>(p));
}

INLINE uint load_word(const uint* p) {
    return __ldg(p);
}
